"""Reads every error and warning text of the library, and of its CMake code, out of their sources, with … in place of values.

A text is what a macro of MACROS, or a function of HELPERS that hands its arguments to one, is given: string literals joined,
constants that are string literals put in, and every other expression as "…".
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("apex_cpp", "kernels", "opt_levels")
SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
VALUE = "…"

# What stands before the text: a condition or the class of the error, both, nothing, or a condition with commas of its own.
MACROS = (
    (re.compile(r"\b(?:TORCH_CHECK(?:_VALUE|_TYPE|_INDEX|_NOT_IMPLEMENTED)?|C10_THROW_ERROR)\s*\("), slice(1, None)),
    (re.compile(r"\bTORCH_CHECK_WITH\s*\("), slice(2, None)),
    (re.compile(r"\b(?:TORCH_WARN(?:_ONCE|_DEPRECATION)?|throw std::\w+)\s*\("), slice(0, None)),
    (re.compile(r"\bstatic_assert\s*\("), slice(-1, None)),
)
# Functions of one file that complete a text: how they are called, and the text around what they are given.
HELPERS = {"apex_cpp/amp/checkpoint/safetensors_header.cpp": (re.compile(r"(?<!void )\bcheck\("), "…: {}.")}
# Texts that nobody meets who uses the library: the compiler checks them when the library itself is built.
INTERNAL = {
    "element i of a block belongs to lane i",
    "a lane's counts fit into 16 bits",
    "one name for each member",
    "tensors are written and read as they lie in memory",
}
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


def messages_of(source):
    constants = {name: joined(literals) for name, literals in CONSTANT.findall(source)}
    for macro, text in MACROS:
        for match in macro.finditer(source):
            yield text_of_all(arguments(source, match.end())[text], constants)


def cmake_messages():
    for path in [ROOT / "CMakeLists.txt", *(ROOT / "tools/cmake").glob("*.cmake")]:
        for match in CMAKE_ERROR.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), tidy(re.sub(r"\$\{\w+\}", VALUE, joined(match.group(1))))


def messages():
    """(file, text) of every message; texts without a word, which pass on what another message said, are left out."""
    found = set(cmake_messages())
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in SUFFIXES:
                continue
            file, source = str(path.relative_to(ROOT)), path.read_text()
            found.update((file, tidy(text)) for text in messages_of(source))
            if file in HELPERS:
                helper, around = HELPERS[file]
                calls = (arguments(source, match.end())[1:] for match in helper.finditer(source))
                found.update((file, tidy(around.format(text_of_all(call, {})))) for call in calls)
    return sorted((file, text) for file, text in found if re.search(r"\w\w", text) and text not in INTERNAL)
