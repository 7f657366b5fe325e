"""Compares apex_cpp/apex_behaviour.md with the tree: every id that a file cites has an entry, and every entry is cited.

An entry is a row of a table whose first cell is the id: `| SL-09 | … |`. The page decides which families of ids there are, so
that names such as UTF-8 are no ids. A file cites `SL-09`, a range (`SL-07..09`, `SL-07 to SL-09`), or several of one family
(`SL-07, -09`). Names in code, which have no hyphen, cite `SL_09`; names of tests also `Sl09`, `Sl07And09` and `Sl07To09`. A file
may also name all ids that begin alike (`SL-*`): one of them at least must have an entry, and none counts as cited by that.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "apex_cpp/apex_behaviour.md"
FOLDERS = ("apex_cpp", "examples", "kernels", "opt_levels", "tests", "tools")
SUFFIXES = {"", ".cmake", ".cpp", ".cu", ".cuh", ".h", ".json", ".md", ".py", ".sh", ".txt", ".yaml"}
ENTRY = re.compile(r"^\| ([A-Z][A-Z0-9]*)-(\d\d|[A-Z][A-Z0-9]*) \|(.*)\|$", re.M)
TEST_NAME = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*\w+,\s*(\w+)")


class Entries:
    """The ids of a page, by family, in the page's order."""

    def __init__(self, page):
        self.ids, self.complaints = {}, []
        for family, rule, cells in ENTRY.findall(page):
            rules = self.ids.setdefault(family, [])
            if rule in rules:
                self.complaints.append(f"{family}-{rule} has two entries")
            if not all(cell.strip() for cell in cells.split("|")):
                self.complaints.append(f"the entry of {family}-{rule} has an empty cell")
            rules.append(rule)
        numbered = [family for family, rules in self.ids.items() if rules[0].isdigit()]
        named = [family for family in self.ids if family not in numbered]
        self.with_hyphen = [
            re.compile(rf"(?<![\w-])({any_of(numbered)})-(\d+|\*)((?:\.\.\d+| to \1-\d+)?)((?:, -\d+)*)"),
            re.compile(rf"(?<![\w-])({any_of(named)})-([A-Z][A-Z0-9]*\*?|\*)()()"),
        ]
        self.in_names = re.compile(rf"(?<![A-Za-z0-9])({any_of(numbered)})_(\d\d)(?!\d)")
        self.in_test_names = re.compile(rf"(?<![a-z])({any_of(map(str.capitalize, numbered))})(\d\d)(?:To(\d\d))?((?:And\d\d)*)(?!\d)")

    def citations(self, text):
        """(what a text says, the ids that it means), an id as (family, rule). No ids: there is no such entry."""
        for pattern in self.with_hyphen:
            for found in pattern.finditer(text):
                family, rule, last, further = found.groups()
                yield found[0], self.meant(family, rule, last[-2:])
                for rule in re.findall(r"\d+", further):
                    yield found[0], self.meant(family, rule)
        for family, rule in self.in_names.findall(text):
            yield f"{family}_{rule}", self.meant(family, rule)
        for name in TEST_NAME.findall(text):
            for family, rule, last, further in self.in_test_names.findall(name):
                yield name, self.meant(family.upper(), rule, last)
                for rule in re.findall(r"\d\d", further):
                    yield name, self.meant(family.upper(), rule)

    def meant(self, family, rule, last=""):
        rules = self.ids[family]
        if rule.endswith("*"):
            return {(family, each) for each in rules if each.startswith(rule[:-1])}
        if rule not in rules or (last and last not in rules):
            return set()
        return {(family, each) for each in rules if rule <= each <= last} if last else {(family, rule)}

    def all(self):
        return [(family, rule) for family, rules in self.ids.items() for rule in rules]


def any_of(names):
    return "|".join(sorted(names, key=len, reverse=True)) or "(?!)"


def compare(page, files):
    """Complaints about a page and the texts of files by name."""
    entries = Entries(page)
    yield from entries.complaints
    cited = set()
    for name, text in [("the page", page), *files.items()]:
        for said, ids in entries.citations(text):
            if not ids:
                yield f"{name} cites {said}, which has no entry"
            if name != "the page" and not said.endswith("*"):
                cited |= ids
    for family, rule in entries.all():
        if (family, rule) not in cited:
            yield f"{family}-{rule} has an entry, and nothing cites it"


def texts():
    """The text files of the repository other than the page, by path."""
    paths = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    chosen = [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path != PAGE]
    read = {str(path.relative_to(ROOT)): path.read_bytes() for path in chosen}
    return {name: content.decode(errors="replace") for name, content in read.items() if b"\0" not in content}


def check_the_check():
    page = "| AB-01 | x | y |\n| AB-02 | x | y |\n| AB-10 | x | y |\n| X-ADD | x | y |\n| X-ADDALL | x | y |\n"
    every_ab, every_x = "AB-01..10", "X-ADD and X-ADDALL"
    complaints = lambda *text, page=page: list(compare(page, {"f.h": " ".join(text)}))
    for cited in ["AB-01, AB-02 (AB-10)", every_ab, "AB-01 to AB-10", "AB-01, -02, -10", "AB_01_AB_02_AB_10",
                  "TEST(A, Ab01And02AndThen_Ab10)", "TEST_P(A, Ab01To10)"]:
        assert not complaints(cited, every_x), cited
    assert complaints("AB-01..02", every_x) == ["AB-10 has an entry, and nothing cites it"]
    assert complaints("AB-01, -10 AB-*", every_x) == ["AB-02 has an entry, and nothing cites it"]
    assert complaints(every_ab, "X-ADD X-ADD*") == ["X-ADDALL has an entry, and nothing cites it"]
    for unknown in ["AB-03", "AB-1", "AB-011", "AB-01..04", "AB-10..01", "AB-01 to AB-11", "AB-01, -03", "A_AB_07",
                    "TEST_F(A, Ab05)", "TYPED_TEST(A, Ab01And03)", "TEST(A, Ab01To09)", "X-SUB", "X-S*"]:
        assert len(complaints(every_ab, every_x, unknown)) == 1, unknown
    for no_id in ["UTF-8", "AAB-03", "x-AB-03", "MAX-SUB", "AB_030", "f(A, Ab05)", "TEST(A, Cab05)", "AB-*", "X-A*"]:
        assert not complaints(every_ab, every_x, no_id), no_id
    for change, complaint in [(page + "| AB-02 | x | y |\n", "AB-02 has two entries"),
                              (page.replace("x", " ", 1), "the entry of AB-01 has an empty cell"),
                              (page.replace("x", "AB-04", 1), "the page cites AB-04, which has no entry")]:
        assert complaints(every_ab, every_x, page=change) == [complaint], complaint


check_the_check()
page, files = PAGE.read_text(), texts()
entries = Entries(page).all()
complaints = list(compare(page, files))
print(f"{len(entries)} ids, {len(files)} files, {len(complaints)} complaints", *complaints, sep="\n")
sys.exit(bool(complaints) or len(entries) < 200 or len(files) < 1000)
