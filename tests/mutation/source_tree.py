"""A copy of the repository with mutants, and the build of it."""
import collections
import csv
import dataclasses
import hashlib
import pathlib
import re
import shutil
import subprocess

import rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("apex_cpp", "kernels", "opt_levels")
INCLUDE = b"#include <tests/mutation/mutants.h>  "  # on the first line: lines keep their numbers
NUMBER = re.compile(r"APEX_MUTANT\((\d+)\)")


def in_one_line(text):
    return " ".join(text.split())


@dataclasses.dataclass
class Chosen:
    number: int
    rule: str
    file: str
    line: int
    start: int  # bytes of the source
    original: str
    fault: str

    def __str__(self):
        return f"{self.number} {self.file}:{self.line} {self.rule}: {in_one_line(self.original)[:80]} -> {in_one_line(self.fault)[:80]}"


def tracked(*folders):
    """The files that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def is_page(name):
    """Tests compile the blocks of pages, so a page belongs to the tests."""
    return name.endswith(".md")


def sources():
    """The files that get mutants. Device code has mutants of its own, tests/cuda_host/mutants.py."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp") and "cuda" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def choose(count, seed):
    """{file: {number: mutant}}: as many of each rule, by chance. None overlaps another. The chance is a checksum of the mutant's texts, so a
    change of the library leaves all mutants in other places as they are."""
    by_rule = {}
    for file in sources():
        same = collections.Counter()
        for mutant in rules.candidates((ROOT / file).read_bytes()):
            texts = (mutant.rule, mutant.original, mutant.fault)
            same[texts] += 1
            chance = hashlib.sha256("\0".join([str(seed), file, *texts, str(same[texts])]).encode()).digest()
            by_rule.setdefault(mutant.rule, []).append((chance, file, mutant))
    chosen, number = {}, 0
    for turn, rule in enumerate(sorted(by_rule)):
        wanted = (count - number) // (len(by_rule) - turn)
        for _, file, mutant in sorted(by_rule[rule]):
            taken = chosen.setdefault(file, {})
            if wanted and all(mutant.end <= other.start or other.end <= mutant.start for other in taken.values()):
                number, wanted = number + 1, wanted - 1
                taken[number] = mutant
    return {file: taken for file, taken in chosen.items() if taken}


def places_of_errors(log):
    """(file, line) of the library's sources that a compiler's errors name: where they are, from where a template is used, or where the macro
    is expanded in which they are."""
    places, is_error = set(), False
    for line in log.split("\n"):
        found = re.match(r"(?:.*?/)?((?:apex_cpp|kernels|opt_levels)/[^:\s]+):(\d+):\d+:\s+(error|warning|note|required|in .constexpr)", line)
        kind = re.search(r": (error|warning): ", line)
        is_error = kind[1] == "error" if kind else is_error
        if found and (found[3] == "error" or found[3].startswith(("required", "in ")) or is_error and "in expansion of macro" in line):
            places.add((found[1], int(found[2])))
    return places


class SourceTree:
    def __init__(self, folder):
        self.source, self.table = folder / "source", folder / "mutants.csv"
        self.original = folder / "original"  # the files that have mutants, without them
        self.build, self.sanitized = folder / "build", folder / "build-tsan"

    def make(self, count, seed):
        for folder in (self.source, self.original):
            shutil.rmtree(folder, ignore_errors=True)
        for name in tracked():
            self.copy(name, self.source)
        chosen = choose(count, seed)
        for name in chosen:
            self.copy(name, self.original)
        self.write(chosen)
        self.save([Chosen(number, mutant.rule, file, mutant.line, mutant.start, mutant.original, mutant.fault)
                   for file, taken in chosen.items() for number, mutant in taken.items()])

    def write(self, chosen):
        for file, taken in chosen.items():
            (self.source / file).write_bytes(INCLUDE + b"\n#line 1\n" + rules.apply((self.original / file).read_bytes(), taken))

    @staticmethod
    def copy(name, folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
        shutil.copymode(ROOT / name, folder / name)

    def differs(self, name):
        """Whether the file has changed, or is new, since the copy was made."""
        copied = next((folder / name for folder in (self.original, self.source) if (folder / name).exists()), None)
        return not copied or copied.read_bytes() != (ROOT / name).read_bytes()

    def library_has_changed(self):
        return any(map(self.differs, (name for name in tracked(*FOLDERS) if not is_page(name))))

    def take_todays_tests(self, say):
        """Copies test files and pages that were added or changed since, if they are for the same library."""
        if self.library_has_changed():
            say("the library has changed: the tests stay those of the copy (--fresh begins again, from today's sources)")
            return
        pages = filter(is_page, tracked(*FOLDERS))
        for name in filter(self.differs, [*pages, *tracked("tests")]):
            self.copy(name, self.source)

    def save(self, chosen):
        with open(self.table, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([field.name for field in dataclasses.fields(Chosen)])
            writer.writerows(dataclasses.astuple(one) for one in sorted(chosen, key=lambda one: one.number))

    def load(self):
        with open(self.table, newline="") as file:
            return [Chosen(**{**row, **{name: int(row[name]) for name in ("number", "line", "start")}}) for row in csv.DictReader(file)]

    def configure(self, prefix):
        for preset, build in (("release", self.build), ("tsan", self.sanitized)):
            subprocess.run(["cmake", "--preset", preset, "-S", str(self.source), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}",
                            "-DAPEX_CPP_CUDA=OFF", "-DAPEX_CPP_WERROR=OFF", "-DAPEX_CPP_MUTATION=ON"], check=True, stdout=subprocess.DEVNULL, cwd=self.source)

    def compile(self, targets, say):
        """Builds the targets. Takes out the mutants that do not compile, and returns the others."""
        chosen = self.load()
        while True:
            log = self.build.parent / "build.log"
            with open(log, "w") as file:
                built = subprocess.run(["cmake", "--build", str(self.build), "--target", *targets, "--", "-k", "0"], stdout=file, stderr=subprocess.STDOUT)
            if built.returncode == 0:
                subprocess.run(["cmake", "--build", str(self.sanitized), "--target", "threads_tests"], check=True, stdout=subprocess.DEVNULL)
                return chosen
            wrong = self.in_errors(log.read_text())
            if not wrong:
                raise SystemExit(f"mutation: the build failed, and not by a mutant: see {log}")
            say(f"{len(wrong)} mutants do not compile")
            files = {one.file for one in chosen if one.number in wrong}
            chosen = [one for one in chosen if one.number not in wrong]
            self.save(chosen)
            for file in files:
                self.write_again(file)

    def in_errors(self, log):
        """The mutants nearest to the lines of the compiler's errors."""
        wrong = set()
        for file, line in places_of_errors(log):
            lines = (self.source / file).read_text().split("\n")[2:]
            near = [(abs(index + 1 - line), int(number)) for index, text in enumerate(lines) for number in NUMBER.findall(text)]
            if near and min(near)[0] <= 3:
                wrong |= {number for distance, number in near if distance == min(near)[0]}
        return wrong

    def write_again(self, file):
        """Writes a file with the mutants of it that the table still has."""
        numbers = {(one.start, one.rule, one.original): one.number for one in self.load() if one.file == file}
        found = {numbers.get((mutant.start, mutant.rule, mutant.original)): mutant for mutant in rules.candidates((self.original / file).read_bytes())}
        found.pop(None, None)
        self.write({file: found})
