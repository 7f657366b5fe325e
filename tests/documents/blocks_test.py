"""Every code block of every page is one that a test reads.

C++ blocks, diffs of C++ programs, and YAML blocks that are level files are compiled and run where tests/programs/CMakeLists.txt lists their
page; other YAML blocks have a test of their own. Shell blocks are parsed here, and the files that they name are in the repository. CMake
blocks consist of lines that tests/package builds with.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("apex_cpp", "examples", "kernels", "opt_levels", "tests", "tools")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
COMPILED = set(re.findall(r"[\w./-]+\.md", re.sub(r"#.*", "", (ROOT / "tests/programs/CMakeLists.txt").read_text())))
CONSUMER = (ROOT / "tests/package/consumer/CMakeLists.txt").read_text()
# Blocks that other tests read: the page, the language, the test.
ELSEWHERE = {
    ("tools/comparison/README.md", "yaml"): "comparison: Grid.ThePagesExamplesAreValidGrids",
    ("tools/comparison/README.md", "cpp"): "comparison: own_program_test.py",
    ("apex_cpp/README.md", "python"): "package: amp_C_test.py",
    ("apex_cpp/porting.md", "python"): "exchange: hostile_test.py",
    ("examples/porting/README.md", "diff"): "package: examples/porting_test.py",
}


def name_of(page):
    return str(page.relative_to(ROOT))


def shell_problems(block):
    parsed = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
    if parsed.returncode:
        yield parsed.stderr.strip()
    for path in re.findall(r"(?<![\w/.-])((?:tools|examples|tests)/[\w./-]*\w)(?![\w$*])", block):
        if not (ROOT / path).exists() and "$" not in path and not path.endswith((".png", ".pdf")):
            yield f"there is no {path}"


def cmake_problems(block):
    commands = [re.sub(r"\bprogram\b", "consumer", line.split("#")[0].strip()) for line in block.splitlines()]
    for command in filter(None, commands):
        if command not in CONSUMER.replace("apex_cpp 0.1 REQUIRED", "apex_cpp REQUIRED"):
            yield f"tests/package/consumer does not say: {command}"


def problems(page, language, block):
    if language in ("cpp", "diff", "yaml"):
        if name_of(page) not in COMPILED and (name_of(page), language) not in ELSEWHERE:
            yield f"a {language} block, and the page is not in tests/programs/CMakeLists.txt"
    elif language == "sh":
        yield from shell_problems(block)
    elif language == "cmake":
        yield from cmake_problems(block)
    elif (name_of(page), language) not in ELSEWHERE:
        yield f"a block in {language}, which no test reads"


def main():
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    count, found = 0, []
    for page in pages:
        for language, block in BLOCK.findall(page.read_text()):
            count += 1
            found += [f"{name_of(page)}: {problem}" for problem in problems(page, language, block)]
    print(f"{count} blocks in {len(pages)} pages, {len(found)} problems", *found, sep="\n")
    return bool(found) or not count


sys.exit(main())
