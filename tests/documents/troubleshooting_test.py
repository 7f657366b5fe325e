"""Compares apex_cpp/troubleshooting.md with the sources: every text that a program can reach stands on the page with a remedy,
every text on the page is in the sources, and no internal check is one that a program reaches. A section whose title says
"warns" has warnings alone, and one whose title says "refuses" has none.

A section of the page begins with a mark that names the folders and files of its texts. A text is a row of a table, or an item of
a list whose remedy is the paragraph above. A row's left cell is the text, or its beginning where the rest of the text is the remedy.
"""
import re
import sys

import messages

PAGE = messages.ROOT / "apex_cpp/troubleshooting.md"
TESTS = messages.ROOT / "tests"
SECTION = re.compile(r"^<!-- messages of: (.*?) -->\n(.*?)(?=^#|^<!-- messages of|\Z)", re.M | re.S)
TITLED = re.compile(r"^### ([^\n]*)\n(.*?)(?=^##|\Z)", re.M | re.S)
ROW = re.compile(r"\| (.+?) (?<!\\)\| ?(.*?) ?\|$")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
TELLING = 12  # characters from which a part of a text is taken for the text


def words(text):
    """What is compared: punctuation, capitals and marks of Markdown do not count."""
    return re.sub(rf"[^\w{messages.VALUE}]+", " ", text).strip().lower()


def entries(section):
    """(text, remedy) of the rows and the list items of a section."""
    paragraph, is_open = "", False
    for line in section.splitlines():
        row = ROW.match(line)
        if row and row[1] != "text":
            yield row[1], row[2]
        elif line.startswith("- "):
            yield line[2:], paragraph
        elif line and not line.startswith("|"):
            paragraph = f"{paragraph} {line}" if is_open else line
        is_open = bool(line)


def is_within(file, modules):
    """A module is a folder, and the header and source of the same name beside it."""
    return any(file == module or file.startswith((f"{module}/", f"{module}.")) for module in modules)


def compare(found, page):
    """Complaints about a page, given (file, text) of every message."""
    sections = [(marks.split(), list(entries(text))) for marks, text in SECTION.findall(page)]
    rows = [(folders, *row) for folders, of_section in sections for row in of_section]
    used = set()
    for file, text in found:
        fits = [row for row in rows if is_within(file, row[0]) and words(text) in (words(row[1]), words(" ".join(row[1:])))]
        if not fits:
            yield f"{file}: not on the page. Add it to a section whose mark names its folder, split before its remedy:\n| `{text}` | |"
        used.update((row[1], row[2]) for row in fits)
    for folders, text, remedy in rows:
        if (text, remedy) not in used:
            yield f"no source in {' '.join(folders)} has this text:\n| {text} | {remedy} |"
        if not words(remedy):
            yield f"a text without a remedy: {text}"


def misplaced(page, warnings):
    """Complaints about errors in a section whose title says "warns", and about warnings in one that says "refuses"."""
    texts = {words(text) for _, text in warnings}
    for title, body in TITLED.findall(page):
        kinds = set(re.findall(r"\b(?:warns|refuses)\b", title))
        for text, remedy in entries(body) if kinds else ():
            is_warning = not texts.isdisjoint((words(text), words(f"{text} {remedy}")))
            if is_warning != ("warns" in kinds):
                yield f"'{text}' is {'a warning' if is_warning else 'an error'}, and stands in the section '{title}'"


def exists(module):
    return (messages.ROOT / module).exists() or (messages.ROOT / f"{module}.h").exists()


def unknown_folders(page):
    for marks, _ in SECTION.findall(page):
        yield from (f"a mark names {name}, which does not exist" for name in marks.split() if not exists(name))


def public_tests():
    """(file, source) of the tests that reach the library as a program does: without a header of kernels/."""
    for path in sorted(TESTS.rglob("*.cpp")):
        source = path.read_text()
        if path.parent.name != "kernels" and '#include "kernels/' not in source:
            yield str(path.relative_to(messages.ROOT)), source


def provoked(internal, tests):
    """Complaints about internal checks whose text a test expects that can do no more than a program."""
    parts = [(file, part.strip()) for file, text in internal for part in text.split(messages.VALUE)]
    parts = [(file, part) for file, part in parts if len(part) >= TELLING]
    for test, source in tests:
        literals = [literal for literal in LITERAL.findall(source) if len(literal) >= TELLING]
        for file, part in parts:
            if any(literal in part or part in literal for literal in literals):
                yield f"{file}: '{part}' is an internal check, but {test} expects it: a program reaches it, use TORCH_CHECK"


def check_the_check():
    page = "<!-- messages of: a -->\n| text | what to do |\n|---|---|\n| `x … y.` | Use z. |\n"
    assert not list(compare([("a/f.h", "x … y. Use z.")], page))
    assert not list(compare([("a/f.h", "x … y.")], page))
    assert len(list(compare([("a/f.h", "x … w.")], page))) == 2
    assert list(compare([("b/f.h", "x … y.")], page))
    assert list(compare([("a/f.h", "x.")], page.replace("`x … y.` | Use z. |", "`x.` |  |")))
    listed = "<!-- messages of: a -->\n\nUse z\nor w.\n\n- `x … y.`\n- `v.`\n\n### Next\n\n- `not a text`\n"
    assert not list(compare([("a/f.h", "x … y."), ("a/g.h", "v.")], listed))
    assert len(list(compare([("a/f.h", "x … y.")], listed))) == 1
    assert list(compare([("a/f.h", "x … y."), ("a/g.h", "v.")], listed.replace("Use z\nor w.\n", "")))
    assert list(unknown_folders(page)) and not list(unknown_folders(page.replace("of: a", "of: kernels")))
    text = 'TORCH_CHECK_VALUE(a(b, c), kOp, ": it\'s ", x ? "1" : "2", ", " /* , */ "so. ", c10::str("Use ", f(")")), ".");'
    assert list(messages.messages_of(text, messages.macros_of("kernels/f.cpp"))) == ["…: it's …, so. Use …."]


def check_the_check_of_sections():
    table = "| text | what to do |\n|---|---|\n| `a b.` | Use c. |\n"
    page = f"### `f` refuses x\n\n{table}\n### `f` warns\n\n- `d e.`\n\n### Next\n\n- `g.`\n"
    assert not list(misplaced(page, [("f.h", "d e.")]))
    assert not list(misplaced(page, [("f.h", "d e."), ("f.h", "g.")]))
    assert len(list(misplaced(page, [("f.h", "a b. Use c."), ("f.h", "d e.")]))) == 1
    assert len(list(misplaced(page, []))) == 1
    source = 'TORCH_WARN("a ", n, " b."); TORCH_WARN_ONCE("c d."); TORCH_CHECK(n, "e f."); throw std::bad("g h.");'
    assert list(messages.messages_of(source, (messages.WARNING,))) == ["a … b.", "c d."]
    assert sorted(messages.messages_of(source, messages.MACROS)) == ["a … b.", "c d.", "e f.", "g h."]


def check_the_check_of_internal_texts():
    source = 'TORCH_INTERNAL_ASSERT(n > 0, "a table of ", n, " rows has no kernel"); static_assert(kRows == 1, "one row");'
    reached = {file: list(messages.messages_of(source, messages.macros_of(file)))
               for file in ("kernels/f.cpp", "kernels/f.h", "apex_cpp/f.cpp", "opt_levels/f.h")}
    assert reached["kernels/f.cpp"] == reached["kernels/f.h"] == []
    assert reached["apex_cpp/f.cpp"] == ["a table of … rows has no kernel"]
    assert reached["opt_levels/f.h"] == ["a table of … rows has no kernel", "one row"]
    internal = [("kernels/f.cpp", "a table of … rows has no kernel")]
    assert list(provoked(internal, [("tests/t.cpp", 'expect_error(f, {"rows has no kernel"});')]))
    assert list(provoked(internal, [("tests/t.cpp", 'expect_error(f, {"a table of 3 rows has no kernel"});')]))
    assert not list(provoked(internal, [("tests/t.cpp", 'expect_error(f, {"rows"}); call("of another thing");')]))


check_the_check()
check_the_check_of_sections()
check_the_check_of_internal_texts()
found, internal, warnings = messages.messages(), messages.internal_messages(), messages.warnings()
assert len(found) > 400, f"{len(found)} texts were found: the patterns of messages.py miss most of them"
assert internal, "no internal check was found: the pattern of messages.py misses them"
assert len(warnings) > 15, f"{len(warnings)} warnings were found: the pattern of messages.py misses most of them"
tests = list(public_tests())
assert len(tests) > 100, f"{len(tests)} tests without a header of kernels/ were found"
page = PAGE.read_text()
complaints = [*unknown_folders(page), *compare(found, page), *misplaced(page, warnings), *provoked(internal, tests)]
print("\n".join(complaints))
print(f"{len(found)} texts, {len(internal)} internal checks, {len(complaints)} complaints about {PAGE.relative_to(messages.ROOT)}")
sys.exit(bool(complaints))
