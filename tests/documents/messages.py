"""Reads every error and warning text of the library, and of its CMake code, out of their sources, with … in place of values.

A text is the argument of a macro of MACROS, or of a function of HELPERS that passes it to such a macro: string literals joined,
constants that are string literals put in, and every other expression as "…".

Programs cannot reach two kinds of texts. They are marked by how they are written:
- TORCH_INTERNAL_ASSERT in kernels/: only the library calls these functions, and checks the arguments first. Elsewhere the macro
  counts as any other.
- static_assert outside of the headers that programs compile: it can only fail while the library itself is built.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("apex_cpp", "kernels", "opt_levels")
SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
VALUE = "…"

WARNING = (re.compile(r"\bTORCH_WARN(?:_ONCE|_DEPRECATION)?\s*\("), slice(0, None))
# What stands before the text: a condition or the class of the error, both, nothing, or a condition with commas of its own.
MACROS = (
    (re.compile(r"\b(?:TORCH_CHECK(?:_VALUE|_TYPE|_INDEX|_NOT_IMPLEMENTED)?|C10_THROW_ERROR)\s*\("), slice(1, None)),
    (re.compile(r"\bTORCH_CHECK_WITH\s*\("), slice(2, None)),
    (re.compile(r"\bthrow std::\w+\s*\("), slice(0, None)),
    WARNING,
)
INTERNAL = (re.compile(r"\bTORCH_INTERNAL_ASSERT(?:_DEBUG_ONLY)?\s*\("), slice(1, None))
COMPILE_TIME = (re.compile(r"\bstatic_assert\s*\("), slice(-1, None))
INTERNAL_FOLDER = "kernels"
# Functions of one file that complete a text: how they are called, and the text around what they are given.
HELPERS = {"apex_cpp/amp/checkpoint/safetensors_header.cpp": (re.compile(r"(?<!void )\bcheck\("), "…: {}.")}
CMAKE_ERROR = re.compile(r'message\(FATAL_ERROR\s+((?:"(?:\\.|[^"\\])*"\s*)+)\)')
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|\w+(?:::\w+)*|\S', re.S)
CONSTANT = re.compile(r'constexpr const char\* (k\w+)\s*=\s*((?:"(?:\\.|[^"\\])*"\s*)+);')


def joined(literals):
    text = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', literals))
    return re.sub(r"\\(.)", lambda escape: {"n": " "}.get(escape.group(1), escape.group(1)), text)


def split(tokens, separator):
    """Tokens up to the bracket that closes what they stand in, split where `separator` stands outside of brackets."""
    parts, depth = [[]], 0
    for token in tokens:
        depth += (token in "([{") - (token in ")]}")
        if depth < 0:
            break
        if token == separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def arguments(source, start):
    """The arguments of a call, each a list of tokens; `start` is behind the opening bracket."""
    tokens = (match.group() for match in TOKEN.finditer(source, start))
    return split((token for token in tokens if not token.startswith(("//", "/*"))), ",")


def text_of(tokens, constants):
    if all(token.startswith('"') for token in tokens):
        return joined(" ".join(tokens))
    terms = split(tokens, "+")
    if len(terms) > 1 and "?" not in tokens:
        return text_of_all(terms, constants)
    if tokens[0] in ("c10::str", "std::string"):
        return text_of_all(split(tokens[2:], ","), constants)
    if tokens[0] == "given":  # resolve.cpp's NAME=VALUE
        return text_of(split(tokens[2:], ",")[0], constants) + "=" + VALUE
    return constants.get(tokens[0], VALUE) if len(tokens) == 1 else VALUE


def text_of_all(parts, constants):
    return "".join(text_of(part, constants) for part in parts)


def tidy(text):
    text = re.sub(f"{VALUE}{VALUE}+", VALUE, text)
    text = re.sub(f"^{VALUE}(?=\\w)", f"{VALUE} ", text)
    return re.sub(r"\s+", " ", text).strip()


def is_internal_folder(file):
    return file.startswith(f"{INTERNAL_FOLDER}/")


def macros_of(file):
    """The macros whose texts a program can reach."""
    if is_internal_folder(file):
        return MACROS
    return (*MACROS, INTERNAL, COMPILE_TIME) if file.endswith((".h", ".cuh")) else (*MACROS, INTERNAL)


def messages_of(source, macros):
    constants = {name: joined(literals) for name, literals in CONSTANT.findall(source)}
    for macro, text in macros:
        for match in macro.finditer(source):
            yield text_of_all(arguments(source, match.end())[text], constants)


def cmake_messages():
    for path in [ROOT / "CMakeLists.txt", *(ROOT / "tools/cmake").glob("*.cmake")]:
        for match in CMAKE_ERROR.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), tidy(re.sub(r"\$\{\w+\}", VALUE, joined(match.group(1))))


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield str(path.relative_to(ROOT)), path.read_text()


def with_words(found):
    """Without the texts that have no word of their own, which pass on another message."""
    return sorted((file, text) for file, text in set(found) if re.search(r"\w\w", text))


def messages():
    """(file, text) of every message that a program can reach."""
    found = list(cmake_messages())
    for file, source in sources():
        found += [(file, tidy(text)) for text in messages_of(source, macros_of(file))]
        if file in HELPERS:
            helper, around = HELPERS[file]
            calls = (arguments(source, match.end())[1:] for match in helper.finditer(source))
            found += [(file, tidy(around.format(text_of_all(call, {})))) for call in calls]
    return with_words(found)


def warnings():
    """(file, text) of every warning: the program continues."""
    return with_words((file, tidy(text)) for file, source in sources() for text in messages_of(source, (WARNING,)))


def internal_messages():
    """(file, text) of every internal check."""
    return with_words((file, tidy(text)) for file, source in sources() if is_internal_folder(file)
                      for text in messages_of(source, (INTERNAL,)))
