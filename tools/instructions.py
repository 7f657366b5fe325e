"""Counts the instructions of training steps of a small network, by valgrind's callgrind, and compares them with the committed table.
Costs that creep in show here before any clock could tell: on one machine a count repeats to one in ten thousand."""
import argparse
import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).with_name("benchmarks") / "instructions" / "instructions.csv"
BOUND = 0.02  # a step may grow by so much


def count(program):
    """Instructions of a step, by case. callgrind writes one dump for each call of counted_steps, in the order of the printed names."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=counted_steps", "--dump-after=counted_steps",
                   f"--callgrind-out-file={folder}/out", program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "APEX_CPP_CPU_16BIT": "float32"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"instructions: valgrind failed:\n{done.stderr}")
        cases = [line.split(",") for line in done.stdout.splitlines()]
        totals = []
        for number in range(1, len(cases) + 1):
            text = pathlib.Path(f"{folder}/out.{number}").read_text(encoding="utf-8")
            totals.append(int(re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE).group(1)))
        return {name: total // int(steps) for (name, steps), total in zip(cases, totals)}


def read_table():
    with open(TABLE, newline="", encoding="utf-8") as file:
        return {row["case"]: int(row["instructions"]) for row in csv.DictReader(file)}


def write_table(counts):
    with open(TABLE, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "instructions"])
        writer.writerows(counts.items())


def compare(counts, table):
    """Prints both figures of each case; the number of cases that are missing on a side, or grew beyond the bound."""
    bad = 0
    print(f"{'instructions of a step':24} {'now':>10} {'table':>10} change")
    for name in dict.fromkeys([*table, *counts]):
        now, then = counts.get(name), table.get(name)
        if now is None or then is None:
            bad += 1
            print(f"{name:24} {now or '-':>10} {then or '-':>10}")
            continue
        grew = now > then * (1 + BOUND)
        bad += grew
        print(f"{name:24} {now:10} {then:10} {100 * (now / then - 1):+.2f} %{' more than allowed' if grew else ''}")
    return bad


def main():
    parser = argparse.ArgumentParser(prog="tools/bench instructions", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the counts to the table, to commit them")
    parser.add_argument("program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("instructions: valgrind is missing: tools/setup --analysis installs it")
    counts = count(arguments.program)
    bad = compare(counts, read_table() if TABLE.exists() else {})
    if arguments.update:
        write_table(counts)
    elif bad:
        sys.exit(f"instructions: {bad} cases differ from {TABLE.name} by more than {BOUND:.0%}. If they must, `tools/bench instructions --update`")


if __name__ == "__main__":
    main()
