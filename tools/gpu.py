"""Runs the tests, compute-sanitizer and the benches of a build on this machine's GPU, and writes a report. tools/gpu calls it."""
import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

STAGES = ["test", "check", "bench"]
AT_ONCE = 4  # processes that share the GPU while tests run
# A machine with one GPU that works cannot run the tests that give these reasons.
EXPECTED_SKIPS = re.compile(r"needs (\d+ GPUs|a machine without)|NCCL wants a GPU for each rank")
SMALL = "*GpuMix*:GpuNorms.SetTheFlag*:GpuNorms.OfTensors*:GpuLossScale*:*GpuUpdate.ChangesNothing*:*GpuUpdate.OnAnotherStream*"
# What compute-sanitizer looks for, in which program, in which tests.
CHECKS = [(tool, program, tests)
          for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
          for program, tests in (("cuda_tests", SMALL),
                                 ("normalization_tests", "*OnCuda*GivesTheBitsOfTheCpu/*"),
                                 ("contrib_tests", "*OnCuda*Xentropy*"),
                                 ("statistics_tests", "*OnCuda*GiveTheBits*"))]
BENCHES = ["kernels", "step", "contrib", "statistics", "train"]
OURS = "regex:updates_kernel|sums_kernel|rows_kernel|totals"  # the kernels that ncu profiles
TRAINED = ["digits_o0", "digits_o1", "digits_o2", "digits_o2_fused_adam", "digits_o3", "digits_o4", "digits_o5", "digits_o6"]


def run(command, log, limit, **variables):
    """Runs a command, and keeps its output in a file. Returns the output, the exit code (None: stopped at the limit), the seconds."""
    start = time.monotonic()
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **variables}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=max(limit, 1), env=environment,
                              stdin=subprocess.DEVNULL, check=False)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as stopped:
        output, code = stopped.stdout or b"", None
    text = output.decode(errors="replace")
    log.write_text(f"$ {' '.join(map(str, command))}\n{text}\n", encoding="utf-8")
    return text, code, time.monotonic() - start


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine():
    name, _, rest = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").partition(",")
    version = output_of(sys.executable, "-c", "import torch; print(torch.__version__)")
    return {"gpu": name, "driver and memory": rest.strip(), "torch": version, "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}


class Tests:
    """Runs GoogleTest programs, and reads what they print."""

    def __init__(self, binaries, table, out):
        self.binaries, self.out = binaries, out
        self.rows = [line.split() for line in table.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]

    def path(self, program):
        found = sorted(path for path in self.binaries.rglob(program) if path.is_file())  # a folder may have the same name
        return found[0] if found else None

    def names(self, program, tests):
        suite, names = "", []
        for line in output_of(self.path(program), "--gtest_list_tests", f"--gtest_filter={tests}").splitlines():
            line = line.split("#")[0].rstrip()
            if line.startswith(" "):
                names.append(suite + line.strip())
            elif line.endswith("."):
                suite = line
        return names

    def commands(self):
        """(program, arguments[, variables]) of every process."""
        for program, tests, *how in self.rows:
            if self.path(program) is None:
                yield program, None
            elif how == ["each"]:
                for name in self.names(program, tests):
                    yield program, [f"--gtest_filter={name}"]
            elif how[:1] == ["shards"]:
                for shard in range(int(how[1])):
                    yield program, [f"--gtest_filter={tests}"], {"GTEST_TOTAL_SHARDS": how[1], "GTEST_SHARD_INDEX": str(shard)}
            else:
                yield program, (["--ranks", how[1]] if how else []) + [f"--gtest_filter={tests}"]

    def run_one(self, number, end, program, arguments, variables=None):
        if arguments is None:
            return {"program": program, "failed": ["the program was not built"], "passed": 0, "skipped": {}, "seconds": 0.0}
        log = self.out / f"test_{number:02d}_{program}.log"
        text, code, seconds = run([self.path(program), *arguments], log, end - time.monotonic(), APEX_CPP_REQUIRE_GPU="1", OMP_NUM_THREADS="4",
                                  **(variables or {}))
        skipped = {name: "".join(re.findall(rf"\[ RUN      \] {re.escape(name)}\n.*\n(.*)\n", text))
                   for name in set(re.findall(r"\[  SKIPPED \] (\S+?)(?: \(|,|$)", text, re.M))}
        failed = sorted(set(re.findall(r"\[  FAILED  \] ([^\s,]+\.[^\s,]+)", text)))
        failed += [f"{name}: skipped ({reason})" for name, reason in skipped.items() if not EXPECTED_SKIPS.search(reason)]
        passed = len(re.findall(r"\[       OK \]", text))
        if code != 0 and not failed:
            failed = [f"{' '.join(arguments)}: " + ("did not end in time" if code is None else f"ended with exit code {code}")]
        if passed == 0 and not failed and not skipped:
            failed = [f"{' '.join(arguments)}: no test ran"]
        return {"program": program, "passed": passed, "failed": failed, "skipped": skipped, "seconds": round(seconds, 1)}

    def run(self, end):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [pool.submit(self.run_one, number, end, *command) for number, command in enumerate(self.commands())]
            for job in concurrent.futures.as_completed(jobs):
                row = job.result()
                print(f"{row['program']}: {row['passed']} passed, {len(row['failed'])} failed, {row['seconds']} s", flush=True)
            return [job.result() for job in jobs]


def train(tests, configs, out, end):
    """Trains the digits at every level, on the GPU that the configs' `device: auto` takes. The last line says the accuracy."""
    program, rows = tests.path("train"), []
    for name in TRAINED if program else []:
        shutil.rmtree(out / "runs" / name, ignore_errors=True)
        text, code, seconds = run([program, configs / f"{name}.yaml", "--run-dir", out / "runs" / name],
                                  out / f"train_{name}.log", end - time.monotonic())
        rows.append({"config": name, "exit code": code, "seconds": round(seconds, 1), "last line": text.strip().rsplit("\n", 1)[-1]})
        print(rows[-1], flush=True)
    return rows


def check(tests, out, end):
    """compute-sanitizer. LibTorch's caching allocator would hide accesses past the end of a tensor."""
    sanitizer, rows = shutil.which("compute-sanitizer"), []
    if sanitizer is None:
        return [{"tool": "compute-sanitizer", "program": "", "errors": "not installed"}]

    def one(tool, program, names):
        log = out / f"check_{tool}_{program}.log"
        text, code, seconds = run([sanitizer, "--tool", tool, "--error-exitcode", "77", tests.path(program), f"--gtest_filter={names}"],
                                  log, end - time.monotonic(), PYTORCH_NO_CUDA_MEMORY_CACHING="1", APEX_CPP_REQUIRE_GPU="1")
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
        return {"tool": tool, "program": program, "exit code": code, "seconds": round(seconds, 1),
                "tests": len(re.findall(r"\[       OK \]", text)), "summary": summary[-1] if summary else "none: " + text[-300:]}

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for job in [pool.submit(one, *row) for row in CHECKS]:
            rows.append(job.result())
            print(rows[-1], flush=True)
    return rows


def bench(tests, out, end, rounds):
    rows = []
    for suite in BENCHES:
        table = out / f"bench_{suite}.csv"
        command = [tests.path("bench"), suite, "--device", "cuda", "--rounds", str(rounds), "--csv", table]
        text, code, seconds = run(command, out / f"bench_{suite}.log", end - time.monotonic())
        print(f"bench {suite}: exit code {code}, {seconds:.0f} s", flush=True)
        rows.append({"suite": suite, "exit code": code, "seconds": round(seconds, 1), "text": text})
        if table.exists():
            with open(table, newline="", encoding="utf-8") as file:
                rows[-1]["figures"] = list(csv.DictReader(file))
    return rows


def profile(tests, out, end):
    """ncu, where it is: how near every kernel comes to the limits of memory and arithmetic. Without the right to read the GPU's counters
    ncu ends with an error, which is reported and is no failure."""
    ncu = shutil.which("ncu")
    if ncu is None:
        return {"summary": "not installed"}
    text, code, seconds = run([ncu, "--csv", "--page", "details", "--section", "SpeedOfLight", "--section", "Occupancy", "--kernel-name", OURS,
                               "--launch-count", "200", tests.path("bench"), "kernels", "--device", "cuda", "--rounds", "1"],
                              out / "ncu.csv", end - time.monotonic())
    errors = re.findall(r"==ERROR== (.*)", text)
    summary = errors[0] if errors else "ncu.csv" if code == 0 else f"exit code {code}"
    return {"summary": summary, "seconds": round(seconds, 1)}


def markdown(report):
    lines = ["# apex_cpp on a GPU", "", *(f"- {key}: {value}" for key, value in report["machine"].items()), ""]
    if "test" in report:
        rows = report["test"]
        lines += ["## Tests", "", f"{sum(row['passed'] for row in rows)} passed, {sum(len(row['failed']) for row in rows)} failed.", "",
                  "| program | passed | failed | skipped | seconds |", "|---|---|---|---|---|"]
        lines += [f"| {row['program']} | {row['passed']} | {len(row['failed'])} | {len(row['skipped'])} | {row['seconds']} |" for row in rows]
        lines += ["", *(f"- failed: {row['program']} {name}" for row in rows for name in row["failed"])]
        lines += [f"- skipped: {row['program']} {name}: {reason}" for row in rows for name, reason in row["skipped"].items()]
    if report.get("train"):
        lines += ["", "## Training at every level", "", *(f"- {row['config']}: {row['last line']} ({row['seconds']} s)" for row in report["train"])]
    if "check" in report:
        lines += ["", "## compute-sanitizer", "", "| tool | program | tests | summary | seconds |", "|---|---|---|---|---|"]
        lines += [f"| {row['tool']} | {row['program']} | {row.get('tests', 0)} | {row.get('summary', row.get('errors'))} | {row.get('seconds', 0)} |"
                  for row in report["check"]]
    for row in report.get("bench", []):
        lines += ["", f"## bench {row['suite']}", "", "```", row["text"].strip(), "```"]
    if "ncu" in report:
        lines += ["", "## ncu", "", report["ncu"]["summary"]]
    return "\n".join(lines) + "\n"


def succeeded(report):
    return (not any(row["failed"] for row in report.get("test", [])) and all(row["exit code"] == 0 for row in report.get("train", []))
            and all(row.get("exit code", 1) == 0 for row in report.get("check", []))
            and all(row["exit code"] == 0 for row in report.get("bench", [])))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=pathlib.Path, required=True, help="the folder with the built programs")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="the folder with tests/ and examples/")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder for report.md, report.json and the logs")
    parser.add_argument("--only", choices=STAGES, help="one stage")
    parser.add_argument("--limit", type=int, default=540, help="seconds that a stage may take (default: 540)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of every bench (default: 9)")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    tests = Tests(arguments.binaries, arguments.source / "tests/cuda/on_gpu.txt", out)
    report = {"machine": machine()}
    print(report["machine"], flush=True)
    for stage in [arguments.only] if arguments.only else STAGES:
        end = time.monotonic() + arguments.limit
        if stage == "test":
            report["test"] = tests.run(end)
            report["train"] = train(tests, arguments.source / "examples/train/configs", out, end)
        elif stage == "check":
            report["check"] = check(tests, out, end)
        else:
            report["bench"] = bench(tests, out, end, arguments.rounds)
            report["ncu"] = profile(tests, out, end)
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (out / "report.md").write_text(markdown(report), encoding="utf-8")
    print(f"the report: {out / 'report.md'}")
    sys.exit(0 if succeeded(report) else 1)


if __name__ == "__main__":
    main()
