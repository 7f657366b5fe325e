#!/usr/bin/env python3
"""Trains every combination of level, loss scale, keep_batchnorm_fp32 and optimizer, as Apex's tests/L1/cross_product does, and compares where
each ends with O0.

usage: convergence.py BUILD FOLDER [--seeds N] [--jobs N]   (BUILD has the train and distributed programs; APEX_CPP_DATA: the digits)

The network is that of tools/compare: convolutions and batch norm, on digits with so much noise that no level reads all of them.
Beside these it trains O5 with other storages of masters and moments.
1. The mean test accuracy of a combination, over the seeds, lies between O0's lowest and highest seed, or matrix.py explains why
   it may not.
2. Combinations that differ in nothing that counts have the same losses, bit for bit, in every step: a level's defaults of loss_scale and
   keep_batchnorm_fp32 and the same values set by hand, and at O0, O4 and O5, which have FP32's exponents, all loss scales.
Each run's result is a row of a table in FOLDER, which belongs to these programs; the command continues where it was stopped. Exits with 1 if
a comparison fails."""
import argparse
import concurrent.futures
import csv
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import matrix

ROOT = pathlib.Path(__file__).resolve().parents[2]


def say(*words):
    print("convergence:", *words, file=sys.stderr, flush=True)


def config_of(run):
    amp = {"opt_level": run.level}
    if run.loss_scale != "none":
        amp["loss_scale"] = run.loss_scale if run.loss_scale == "dynamic" else float(run.loss_scale)
    if run.keep_batchnorm_fp32 != "none":
        amp["keep_batchnorm_fp32"] = run.keep_batchnorm_fp32 == "true"
    if run.optimizer == matrix.WITHOUT_MASTERS:
        amp["master_weights"] = False
    return {"model": {"type": "convnet", "widths": [8, 16, 32]}, "data": {"set": "digits", "noise": 1},
            "optimizer": matrix.optimizer_keys(run.optimizer), "schedule": {"type": "cosine", "warmup_epochs": 2},
            "epochs": matrix.epochs_of(run.optimizer), "batch_size": 64, "device": "cpu", "amp": amp}


def train(build, folder, run):
    """A row of results.csv: the run, how it ended, and a digest of every step's loss."""
    config = folder / "configs" / f"{run.name()}.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(config_of(run)))  # JSON is YAML
    run_folder = folder / "runs" / run.name()
    shutil.rmtree(run_folder, ignore_errors=True)
    command = [build / "examples/train/train"]
    if run.optimizer == "DistributedFusedAdam":
        command = [ROOT / "tools/comparison/start_processes", "2", build / "examples/distributed/distributed"]
    done = subprocess.run([*command, config, "--seed", str(run.seed), "--run-dir", run_folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode not in (0, 3):  # 3: diverged
        raise SystemExit(f"{run.name()} failed:\n{done.stdout}")
    with open(run_folder / "metrics.csv", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    with open(run_folder / "steps.csv", newline="") as file:
        losses = [row["loss"] for row in csv.DictReader(file)]
    shutil.rmtree(run_folder)
    accuracy = 100 * float(last["test_accuracy"]) if done.returncode == 0 else 0.0  # of a network that diverged
    return [*run, f"{accuracy:.2f}", last["skipped_steps"], "trained" if done.returncode == 0 else "diverged",
            hashlib.sha256(" ".join(losses).encode()).hexdigest()[:16]]


def table_of(build, folder):
    """Where the results of these programs are."""
    digest = hashlib.sha256()
    for program in ("examples/train/train", "examples/distributed/distributed"):
        digest.update((build / program).read_bytes())
    return folder / f"results-{digest.hexdigest()[:12]}.csv"


def results_of(path):
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        rows = [matrix.Result(*row) for row in list(csv.reader(file))[1:]]
    return {row.run(): row for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    folder, build = arguments.folder.resolve(), arguments.build.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = table_of(build, folder)
    results = results_of(path)
    runs = [matrix.Run(*cell, str(seed)) for cell in matrix.cells() for seed in range(arguments.seeds)]
    waiting = [run for run in runs if run not in results]
    with open(path, "a", newline="") as file, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(matrix.Result._fields)
        for count, row in enumerate(pool.map(lambda run: train(build, folder, run), waiting), len(runs) - len(waiting) + 1):
            writer.writerow(row)
            file.flush()
            if count % 20 == 0:
                say(f"{count} of {len(runs)} trained")
    faults = matrix.faults(results_of(path), arguments.seeds)
    print(matrix.table(results_of(path), arguments.seeds))
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
