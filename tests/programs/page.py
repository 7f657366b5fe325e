"""Makes a test of every ```cpp block of a page, so that what the pages show is compiled and run: page.py OUT.cpp PAGE.md...

A block is the body of a test of the fixture `Page` in page.h, whose members are the names that pages take for granted. A comment
above a block, which readers do not see, changes that:
    <!-- with: CODE -->      CODE stands before the block
    <!-- then: CODE -->      the block stands outside of functions, and CODE is the body of the test
    <!-- compiled: CODE -->  as `with`, but the block is only compiled
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- (with|then|compiled):(.*?)-->\n)?```cpp\n(.*?)```", re.S)


def test_of(page, text, match):
    kind, code, block = match.group(1), match.group(2) or "", match.group(3)
    line = text[: match.start(3)].count("\n") + 1
    name = re.sub(r"\W", "_", f"{page.resolve().relative_to(ROOT).with_suffix('')}_line_{line}")
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
            includes.update(re.findall(r"^#include [<\"][^>\"]+[>\"]", match.group(3), flags=re.M))
            if re.sub(r"^#include.*$", "", match.group(3), flags=re.M).strip():
                tests.append(test_of(page, text, match))
    head = ['#include "tests/programs/page.h"', *sorted(includes), "namespace pages {"]
    pathlib.Path(out).write_text("\n".join(head + tests + ["}", ""]))


main(*sys.argv[1:])
