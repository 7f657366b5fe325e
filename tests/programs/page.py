"""Makes a test of every ```cpp, ```diff and ```yaml block of a page, so that what pages show is compiled and run:
page.py OUT.cpp PAGE.md...

A ```yaml block is read as a level file. A ```cpp block is the body of a test of the fixture `Page` in page.h, whose members are the names
that pages take for granted. A ```diff block is two such bodies: the program before the change and after it. A comment above a block, which
readers do not see, changes that:
    <!-- with: CODE -->      CODE stands before the block
    <!-- then: CODE -->      the block stands outside of functions, and CODE is the body of the test
    <!-- compiled: CODE -->  as `with`, but the block is only compiled
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- (with|then|compiled):(.*?)-->\n)?```(cpp|diff)\n(.*?)```", re.S)
LEVEL = re.compile(r"```yaml\n(.*?)```", re.S)


def name_of(page, line):
    """A page of the repository is named by its path, a page that the build made by its file name."""
    path = page.resolve()
    is_built = not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] == "build"
    path = pathlib.Path(path.name) if is_built else path.relative_to(ROOT)
    return re.sub(r"\W", "_", f"{path.with_suffix('')}_line_{line}")


def line_at(text, position):
    return text[:position].count("\n") + 1


def level_test_of(page, text, match):
    level = f'amp::OptLevel::from_yaml_string(R"yaml({match.group(1)})yaml")'
    return f"TEST_F(Page, {name_of(page, line_at(text, match.start(1)))}) {{ EXPECT_NO_THROW({level}); }}\n"


def side_of(diff, removed):
    """The program on one side of a change. Lines that are not in it stay as empty ones: compilers then count as the page does."""
    return "\n".join("" if line.startswith(removed) else line[1:] for line in diff.split("\n"))


def tests_of(page, text, match):
    kind, code, language, block = match.group(1), match.group(2) or "", match.group(3), match.group(4)
    line = line_at(text, match.start(4))
    name = name_of(page, line)
    if language == "cpp":
        return [test_of(page, line, name, kind, code, block)]
    sides = {"before": side_of(block, removed="+"), "after": side_of(block, removed="-")}
    return [test_of(page, line, f"{name}_{side}", kind, code, program) for side, program in sides.items()]


def test_of(page, line, name, kind, code, block):
    block = re.sub(r"^#include.*$", "", block, flags=re.M)
    block = f'#line {line} "{page}"\n{block}'
    if kind == "then":
        return f"namespace {name} {{\n{block}\n}}\nTEST_F(Page, {name}) {{\nusing namespace {name};\n{code}\n}}\n"
    if kind == "compiled":
        return f"TEST_F(Page, {name}) {{\n[[maybe_unused]] const auto block = [&] {{\n{code}\n{block}\n}};\n}}\n"
    return f"TEST_F(Page, {name}) {{\n{code}\n{block}\n}}\n"


def main(out, *pages):
    tests, includes = [], set()
    for page in map(pathlib.Path, pages):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            includes.update(re.findall(r"^[+ ]?(#include [<\"][^>\"]+[>\"])", match.group(4), flags=re.M))
            if re.sub(r"^#include.*$", "", match.group(4), flags=re.M).strip():
                tests += tests_of(page, text, match)
        tests += [level_test_of(page, text, match) for match in LEVEL.finditer(text)]
    head = ['#include "tests/programs/page.h"', *sorted(includes), "namespace pages {"]
    pathlib.Path(out).write_text("\n".join(head + tests + ["}", ""]))


main(*sys.argv[1:])
