#!/usr/bin/env python3
"""Puts small faults into the library, one at a time, and counts how many the tests notice.

usage: mutation.py FOLDER TORCH_PREFIX [--count N] [--seed N] [--minutes N] [--fresh] [--todays]

All mutants are compiled into one build in FOLDER, each behind a switch (mutants.h). A first run of every test notes which mutants each
GoogleTest case reaches (listener.cpp), or the test as a whole where it has no such cases; a mutant then runs the cases that reach it, those of
its own folder and short ones first, until one fails. First each mutant runs up to a minute of tests; then those that are still alive, and
that explained.csv does not explain, run the others. What is done is kept in FOLDER: the command goes on where it was stopped, with today's
tests while the library is the same: mutants that survived are tried again where their tests have changed. Exits with 1 if a mutant survives
that explained.csv does not explain."""
import argparse
import concurrent.futures
import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import rules
from source_tree import ROOT, SourceTree, in_one_line

JOBS = 2
NEAREST = 60  # seconds of tests that every mutant runs before any runs more
QUICK = 5  # seconds: a program's cases that take no longer run before its others
START = 0.5  # seconds that a program takes to start
LONGEST = 100000  # characters of a filter: Linux takes 131071 in one argument
RANKS = 4  # kRanks of mutants.h
# Tests of text, of packages and of tools, and of device code: no mutant is in what they test.
OTHER_LABELS = {"package", "documents", "layering", "tools", "port_check", "must_not_compile", "mutation", "cuda", "cuda_host"}
# Tests whose exit code does not say whether they pass, or that use what another test makes.
OTHER_PROPERTIES = {"PASS_REGULAR_EXPRESSION", "SKIP_REGULAR_EXPRESSION", "FIXTURES_REQUIRED", "WILL_FAIL"}
# Alone notices a missing lock.
THREAD_SANITIZER = "threads.tsan"


def say(*words):
    print("mutation:", *words, file=sys.stderr, flush=True)


class Test:
    def __init__(self, entry):
        properties = {one["name"]: one["value"] for one in entry.get("properties", [])}
        self.name, self.command = entry["name"], entry["command"]
        self.labels = set(properties.get("LABELS", []))
        self.folder = properties.get("WORKING_DIRECTORY")
        self.environment = dict(one.split("=", 1) for one in properties.get("ENVIRONMENT", []))
        self.environment["OMP_WAIT_POLICY"] = "PASSIVE"
        self.is_other = bool(self.labels & OTHER_LABELS or properties.keys() & OTHER_PROPERTIES or self.name.endswith(".asan"))
        self.alone = threading.Lock()  # two runs of one test may write the same files
        self.without_mutant = {}  # whether these cases pass

    def run(self, limit, cases="", **variables):
        """Seconds, and whether it passed in `limit` seconds. `cases`: a filter of GoogleTest, or all."""
        with self.alone:
            return self._run(limit, self.command + [f"--gtest_filter={cases}"] * bool(cases), variables)

    def passes_without_mutant(self, limit, cases):
        """Also without the cases before them. True for the whole test, which has passed when it was recorded."""
        if cases and cases not in self.without_mutant:
            self.without_mutant[cases] = self.run(limit, cases)[1]
        return not cases or self.without_mutant[cases]

    def _run(self, limit, command, variables):
        environment = {**os.environ, **self.environment, "GTEST_FAIL_FAST": "1", "GTEST_BRIEF": "1", **variables}
        begin = time.monotonic()
        running = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            passed = running.wait(limit) == 0
        except subprocess.TimeoutExpired:
            passed = False
        finally:
            try:
                os.killpg(running.pid, 9)  # ranks of a test that was stopped
            except ProcessLookupError:
                pass
            running.wait()
        return time.monotonic() - begin, passed


def targets(tree):
    """The programs of the copy's tests, and those of other folders that tests run."""
    folders = sorted(path.parent.name for path in (tree.source / "tests").glob("*/CMakeLists.txt"))
    return [f"tests/{folder}/all" for folder in folders if folder not in OTHER_LABELS] + [
        "examples/all", "tools/comparison/all", "tools/doctor/all"]


def tests_of(tree):
    listed = subprocess.run(["ctest", "--show-only=json-v1"], cwd=tree.build, check=True, capture_output=True, text=True).stdout
    tests = [Test(entry) for entry in json.loads(listed)["tests"] if "command" in entry]
    tests.append(Test({"name": THREAD_SANITIZER, "command": ["setarch", "-R", f"{tree.sanitized}/tests/threads/threads_tests"], "properties": [
        {"name": "ENVIRONMENT", "value": ["OMP_NUM_THREADS=1", "TSAN_OPTIONS=halt_on_error=1"]}]}))
    return {test.name: test for test in tests if not test.is_other}


@dataclasses.dataclass
class Reached:
    """What a test that passes without a mutant reaches."""
    built: float  # when its program was
    seconds: float
    cases: dict  # {filter: [seconds, numbers of mutants]}; the filter "": the whole test

    def pieces(self, number):
        """[(seconds, filter)]: the cases that reach a mutant, quick ones first."""
        found = sorted((seconds, cases) for cases, (seconds, numbers) in self.cases.items() if number in numbers)
        if not found:
            return []
        if any(not cases for _, cases in found) or sum(len(cases) + 1 for _, cases in found) > LONGEST:
            return [(self.seconds, "")]
        pieces = [[0, []], [0, []]]
        for seconds, cases in found:
            piece = pieces[bool(pieces[0][1]) and pieces[0][0] + seconds > QUICK]
            piece[0] += seconds
            piece[1].append(cases)
        return [(seconds + START, ":".join(cases)) for seconds, cases in pieces if cases]


def record_test(test, folder, built):
    """What one test reaches, or None if it fails."""
    with tempfile.NamedTemporaryFile(dir=folder) as bits, tempfile.NamedTemporaryFile("r", dir=folder) as lines:
        bits.write(bytes(RANKS * rules.LIMIT))
        bits.flush()
        seconds, passed = test.run(900, APEX_MUTANTS_REACHED=bits.name, APEX_MUTANTS_CASES=lines.name)
        if not passed:
            return None
        cases = {}
        for line in lines.read().splitlines():
            name, of_case, *numbers = line.split()
            case = cases.setdefault("" if name == "*" else name, [0, []])
            case[0] = max(case[0], float(of_case))
            case[1] = sorted({*case[1], *map(int, numbers)})
        left = {at % rules.LIMIT for at, hit in enumerate(pathlib.Path(bits.name).read_bytes()) if hit}
        whole = cases.setdefault("", [seconds, []])
        whole[1] = sorted(left.union(whole[1]))
        return Reached(built, seconds, {name: case for name, case in cases.items() if case[1]})


def record(folder, tests):
    """{test: Reached} of the tests that pass without a mutant. Runs those that are new, or built again since they were recorded."""
    path = folder / "reached.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    reached = {name: one and Reached(**one) for name, one in kept.items()}
    built = {name: max([0, *(os.path.getmtime(part) for part in test.command if os.path.isabs(part) and os.path.isfile(part))])
             for name, test in tests.items()}
    waiting = [name for name in tests if name not in reached or (reached[name] and reached[name].built != built[name])]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for name, one in zip(waiting, pool.map(lambda name: record_test(tests[name], folder, built[name]), waiting)):
            say(f"{name}: {one.seconds:.1f} s" if one else f"{name} FAILS WITHOUT A MUTANT and is left out")
            reached[name] = one
            path.write_text(json.dumps({name: one and dataclasses.asdict(one) for name, one in reached.items()}))
    return {name: one for name, one in reached.items() if one and name in tests}


def in_order(chosen, tests, reached):
    """[(test, filter, seconds)] that reach the mutant: those of its folder first, then by time. For a missing lock, the one test that can
    notice it."""
    parts = set(pathlib.Path(chosen.file).with_suffix("").parts)
    pieces = [(name, cases, seconds) for name, one in reached.items() if (name == THREAD_SANITIZER) == (chosen.rule == "lock")
              for seconds, cases in one.pieces(chosen.number)]
    return sorted(pieces, key=lambda piece: piece[2] / (4 if tests[piece[0]].labels & parts else 1))


def in_turns(chosen, tests, reached):
    """The tests of a mutant in two parts: the first NEAREST seconds of them, and the others."""
    pieces, seconds = in_order(chosen, tests, reached), 0
    for count, piece in enumerate(pieces):
        seconds += piece[2]
        if count and seconds > NEAREST:
            return pieces[:count], pieces[count:]
    return pieces, []


def outcome(chosen, pieces, without_killer, tests):
    begin = time.monotonic()
    for name, cases, seconds in pieces:
        limit = 5 * seconds + 20
        _, passed = tests[name].run(limit, cases, APEX_MUTANT=str(chosen.number))
        if not passed and tests[name].passes_without_mutant(limit, cases):
            return "killed", name, time.monotonic() - begin
    return without_killer, "", time.monotonic() - begin


def read_rows(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Explanations:
    """explained.csv. Its column `code` is a part of the line where the mutant is, for a text that the file has elsewhere, too."""

    def __init__(self, originals):
        self.originals, self.rows = originals, read_rows(ROOT / "tests/mutation/explained.csv")

    def of(self, one):
        key = (one.file, one.rule, in_one_line(one.original))
        rows = [row for row in self.rows if (row["file"], row["rule"], row["original"]) == key]
        line = (self.originals / one.file).read_text().split("\n")[one.line - 1] if rows else ""
        return next((row["reason"] for row in rows if row["code"] in line), None)


def run_turn(turn, path, chosen, tests, reached, explained, deadline):
    """Turn 0 runs the nearest tests of each mutant, turn 1 the other tests of those that are alive. Appends each mutant's outcome to
    results.csv, where its last row counts."""
    results = {int(row["number"]): row for row in read_rows(path)}

    def is_known(one):
        result = results.get(one.number)
        if not result or result["outcome"] == "alive" and turn == 1:
            return False
        return result["outcome"] == "killed" or all(reached[name].built < float(result["finished"]) for name, _, _ in in_order(one, tests, reached))

    waiting = [one for one in chosen if not is_known(one) and not (turn == 1 and explained.of(one))]
    done = len(chosen) - len(waiting)
    with open(path, "a", newline="") as file, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(["number", "outcome", "test", "seconds", "finished"])

        def one_mutant(one):
            parts = in_turns(one, tests, reached)
            without_killer = "alive" if turn == 0 and parts[1] else "survived" if parts[0] else "not reached"
            return None if time.monotonic() > deadline else outcome(one, parts[turn], without_killer, tests)

        running = {pool.submit(one_mutant, one): one for one in waiting}
        for count, future in enumerate(concurrent.futures.as_completed(running), done + 1):
            one, result = running[future], future.result()
            if result is None:
                continue
            writer.writerow([one.number, *result[:2], f"{result[2]:.1f}", f"{time.time():.0f}"])
            file.flush()
            say(f"{count} of {len(chosen)}: {result[0]} {result[1]} in {result[2]:.0f} s: {one}")


def report(path, chosen, explained):
    """Prints the table, and returns whether every survivor is explained."""
    results = {int(row["number"]): row for row in read_rows(path)}
    groups, missed = {}, []
    for one in chosen:
        if one.number not in results:
            continue
        reason = explained.of(one)
        killed = results[one.number]["outcome"] == "killed"
        for key in (one.rule, one.file.split("/")[0], "all"):
            counts = groups.setdefault(key, [0, 0, 0])
            counts[0 if killed else 1 if reason else 2] += 1
        if not killed and not reason:
            missed.append(f"{results[one.number]['outcome']}: {one}")
    print(f"{'mutants':12} killed explained missed  share killed")
    for key, (killed, equivalent, left) in groups.items():
        print(f"{key:12} {killed:6} {equivalent:9} {left:6}  {killed / (killed + left or 1):.1%}")
    print(*missed, sep="\n")
    return not missed and len(results) >= len(chosen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("torch_prefix")
    parser.add_argument("--count", type=int, default=320, help="mutants, as many of each rule")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--minutes", type=float, default=600, help="stop after this time, and go on with the next call")
    parser.add_argument("--fresh", action="store_true", help="begin again, from today's sources")
    parser.add_argument("--todays", action="store_true", help="begin again if the library has changed since")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    folder = arguments.folder.resolve()
    tree = SourceTree(folder)
    if arguments.fresh or not tree.table.exists() or arguments.todays and tree.library_has_changed():
        for name in ("reached.json", "results.csv"):
            (folder / name).unlink(missing_ok=True)
        tree.make(arguments.count, arguments.seed)
        tree.configure(arguments.torch_prefix)
    tree.take_todays_tests(say)
    say(f"building {folder}/build")
    chosen = tree.compile(targets(tree), say)
    tests = tests_of(tree)
    say(f"{len(chosen)} mutants, {len(tests)} tests")
    reached = record(folder, tests)
    results, explained = folder / "results.csv", Explanations(tree.original)
    for turn in (0, 1):
        run_turn(turn, results, chosen, tests, reached, explained, deadline)
    return 0 if report(results, chosen, explained) else 1


if __name__ == "__main__":
    sys.exit(main())
