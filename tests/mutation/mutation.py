#!/usr/bin/env python3
"""Puts small faults into the library, one at a time, and counts how many the tests notice.

usage: mutation.py FOLDER TORCH_PREFIX [--count N] [--seed N] [--minutes N] [--fresh] [--todays]

All mutants are compiled into one build in FOLDER, each behind a switch (mutants.h). A first run of every test notes which mutants it
reaches; a mutant then runs the tests that reach it, those of its own folder and short ones first, until one fails. First each mutant runs
up to a minute of tests; then those that are still alive, and that explained.csv does not explain, run the others. What is done is kept in
FOLDER: the command goes on where it was stopped, with today's tests while the library is the same: mutants that survived are tried again
where their tests have changed. Exits with 1 if a mutant survives that explained.csv does not explain."""
import argparse
import concurrent.futures
import csv
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

    def run(self, limit, **variables):
        """Seconds, and whether it passed in `limit` seconds."""
        with self.alone:
            return self._run(limit, variables)

    def _run(self, limit, variables):
        environment = {**os.environ, **self.environment, "GTEST_FAIL_FAST": "1", "GTEST_BRIEF": "1", **variables}
        begin = time.monotonic()
        running = subprocess.Popen(self.command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
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


def record(folder, tests):
    """{test: [seconds, the mutants that it reaches, when its program was built]} of the tests that pass without a mutant. Runs those that are
    new, or built again since they were recorded."""
    path = folder / "reached.json"
    reached = json.loads(path.read_text()) if path.exists() else {}
    built = {name: max([0, *(os.path.getmtime(part) for part in test.command if os.path.isabs(part) and os.path.isfile(part))])
             for name, test in tests.items()}

    def one_test(name):
        with tempfile.NamedTemporaryFile(dir=folder) as bits:
            bits.write(bytes(rules.LIMIT))
            bits.flush()
            seconds, passed = tests[name].run(900, APEX_MUTANTS_REACHED=bits.name)
            return seconds, passed, [number for number, hit in enumerate(pathlib.Path(bits.name).read_bytes()) if hit]

    waiting = [name for name in tests if name not in reached or (reached[name] and reached[name][2] != built[name])]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for name, (seconds, passed, numbers) in zip(waiting, pool.map(one_test, waiting)):
            say(f"{name}: {seconds:.1f} s" if passed else f"{name} FAILS WITHOUT A MUTANT and is left out")
            reached[name] = [seconds, numbers, built[name]] if passed else None
            path.write_text(json.dumps(reached))
    return {name: what for name, what in reached.items() if what and name in tests}


def in_order(chosen, tests, reached):
    """The tests that reach the mutant: those of its folder first, then by time. For a missing lock, the one test that can notice it."""
    parts = set(pathlib.Path(chosen.file).with_suffix("").parts)
    names = [name for name, (_, numbers, _) in reached.items()
             if chosen.number in numbers and (name == THREAD_SANITIZER) == (chosen.rule == "lock")]
    return sorted(names, key=lambda name: reached[name][0] / (4 if tests[name].labels & parts else 1))


def in_turns(chosen, tests, reached):
    """The tests of a mutant in two parts: the first NEAREST seconds of them, and the others."""
    names, seconds = in_order(chosen, tests, reached), 0
    for count, name in enumerate(names):
        seconds += reached[name][0]
        if count and seconds > NEAREST:
            return names[:count], names[count:]
    return names, []


def outcome(chosen, names, without_killer, tests, reached):
    begin = time.monotonic()
    for name in names:
        _, passed = tests[name].run(5 * reached[name][0] + 20, APEX_MUTANT=str(chosen.number))
        if not passed:
            return "killed", name, time.monotonic() - begin
    return without_killer, "", time.monotonic() - begin


def read_rows(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def explanations():
    return {(row["file"], row["rule"], row["original"]): row["reason"] for row in read_rows(ROOT / "tests/mutation/explained.csv")}


def explanation(explained, one):
    return explained.get((one.file, one.rule, in_one_line(one.original)))


def run_turn(turn, path, chosen, tests, reached, deadline):
    """Turn 0 runs the nearest tests of each mutant, turn 1 the other tests of those that are alive. Appends each mutant's outcome to
    results.csv, where its last row counts."""
    results = {int(row["number"]): row for row in read_rows(path)}
    explained = explanations()

    def is_known(one):
        result = results.get(one.number)
        if not result or result["outcome"] == "alive" and turn == 1:
            return False
        return result["outcome"] == "killed" or all(reached[name][2] < float(result["finished"]) for name in in_order(one, tests, reached))

    waiting = [one for one in chosen if not is_known(one) and not (turn == 1 and explanation(explained, one))]
    done = len(chosen) - len(waiting)
    with open(path, "a", newline="") as file, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(["number", "outcome", "test", "seconds", "finished"])

        def one_mutant(one):
            parts = in_turns(one, tests, reached)
            without_killer = "alive" if turn == 0 and parts[1] else "survived" if parts[0] else "not reached"
            return None if time.monotonic() > deadline else outcome(one, parts[turn], without_killer, tests, reached)

        running = {pool.submit(one_mutant, one): one for one in waiting}
        for count, future in enumerate(concurrent.futures.as_completed(running), done + 1):
            one, result = running[future], future.result()
            if result is None:
                continue
            writer.writerow([one.number, *result[:2], f"{result[2]:.1f}", f"{time.time():.0f}"])
            file.flush()
            say(f"{count} of {len(chosen)}: {result[0]} {result[1]} in {result[2]:.0f} s: {one}")


def report(folder, chosen):
    """Prints the table, and returns whether every survivor is explained."""
    results = {int(row["number"]): row for row in read_rows(folder / "results.csv")}
    explained = explanations()
    groups, missed = {}, []
    for one in chosen:
        if one.number not in results:
            continue
        reason = explanation(explained, one)
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
    for turn in (0, 1):
        run_turn(turn, folder / "results.csv", chosen, tests, reached, deadline)
    return 0 if report(folder, chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
