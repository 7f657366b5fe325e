#!/usr/bin/env python3
"""Removes each barrier, fence, atomic and shuffle of the CUDA code, one at a time, and checks that the tests notice.

usage: mutants.py BUILD [NUMBER...]

BUILD is a release build with cuda_host_tests and cuda_host_tsan_tests. A mutant is one changed file: its units are compiled again, with the
commands of the build and the changed file in front, and linked to a copy of the library that the tests load. The tests run with several seeds
without a sanitizer, and once with ThreadSanitizer. Exits with 1 if neither notices a mutant."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = range(4)
LIMIT = 300  # seconds of a run; a mutant may wait forever

NORMS = ("kernels/cuda/norms.cu",)
UPDATES = NORMS + ("kernels/cuda/updates.cu",)
ROWS = ("kernels/normalization/cuda/normalization.cu",)
XENTROPY = ("kernels/xentropy/cuda/rows.cu",)
STATISTICS = ("kernels/statistics/cuda/launch.cu",)

# The tests that a file's mutants run.
FILTERS = {
    UPDATES: "HostNorms.Of*:*ForTensorsOfSeveralParts/Lamb:*ForTensorsOfSeveralParts/Novograd:HostSteps.*",
    UPDATES + STATISTICS: "HostNorms.Of*",
    NORMS: "HostNorms.Of*:*ForTensorsOfSeveralParts/Lamb",
    ROWS: "*OfMoreRowsThanBlocksHasTheBitsOfTheCpu/LayerHalfFloat:*OfMoreRowsThanBlocksHasTheBitsOfTheCpu/LayerDoubleDouble",
    XENTROPY: "*Xentropy.OfMoreRowsThanBlocks*/FloatFloat",
    STATISTICS: "*HostStatistics.OfMoreTilesThanBlocks*/Float",
}

# File, text, which occurrence, what replaces it, and the units that the file is a part of.
MUTANTS = (
    ("kernels/cuda/launch.cuh", "__syncthreads();", 0, "", UPDATES + STATISTICS),
    ("kernels/cuda/launch.cuh", "__syncthreads();", 1, "", UPDATES),
    ("kernels/cuda/launch.cuh", "__syncthreads();", 2, "", UPDATES),
    ("kernels/cuda/launch.cuh", "__threadfence();", 0, "", UPDATES),
    ("kernels/cuda/launch.cuh", "__threadfence();", 1, "", UPDATES),
    ("kernels/cuda/launch.cuh", "atomicInc(ticket, calls - 1)", 0, "atomicInc(ticket, calls)", UPDATES),
    ("kernels/cuda/launch.cuh", "atomicInc(ticket, calls - 1)", 0, "(*ticket)++", UPDATES),
    ("kernels/cuda/norms.h", "block.barrier();", 0, "", NORMS),
    ("kernels/cuda/norms.h", "block.barrier();", 1, "", NORMS),
    ("kernels/cuda/norms.h", "block.barrier();", 2, "", NORMS),
    ("kernels/cuda/norms.h", "block.barrier();", 3, "", NORMS),
    ("kernels/normalization/cuda/row_groups.cuh", "__syncthreads();", 0, "", ROWS),
    ("kernels/normalization/cuda/row_groups.cuh", "__syncthreads();", 1, "", ROWS),
    ("kernels/normalization/cuda/row_groups.cuh", "int apart = kWarp / 2", 0, "int apart = kWarp / 4", ROWS),
    ("kernels/normalization/cuda/row_groups.cuh", "apart > 0", 0, "apart > 1", ROWS),
    ("kernels/normalization/cuda/row_groups.cuh", "0xffffffffu", 0, "0x0000ffffu", ROWS),
    ("kernels/normalization/cuda/row_groups.cuh", "turn_ ^= 1;", 0, "", ROWS),
    ("kernels/normalization/cuda/normalization.cu", "__syncthreads();", 0, "", ROWS),
    ("kernels/xentropy/cuda/rows.cu", "__syncthreads();", 0, "", XENTROPY),
    ("kernels/xentropy/cuda/rows.cu", "int apart = kWarp / 2", 0, "int apart = kWarp / 4", XENTROPY),
    ("kernels/xentropy/cuda/rows.cu", "apart > 0", 0, "apart > 1", XENTROPY),
    ("kernels/xentropy/cuda/rows.cu", "0xffffffffu", 0, "0x0000ffffu", XENTROPY),
    ("kernels/statistics/bins.h", "block.barrier();", 0, "", STATISTICS),
    ("kernels/statistics/bins.h", "block.barrier();", 1, "", STATISTICS),
    ("kernels/statistics/bins.h", "block.barrier();", 2, "", STATISTICS),
    ("kernels/statistics/bins.h", "atomicAdd(total, count);", 0, "*total += count;", STATISTICS),
    ("kernels/statistics/bins.h", "atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(count));", 0,
     "*total += count;", STATISTICS),
)


# Mutants that change nothing, and why. They need not be noticed.
EQUIVALENT = {
}

# What has to be a mutant, wherever device code has it.
SYNCHRONIZATION = re.compile(r"__syncthreads\(\);|__threadfence\(\);|block\.barrier\(\);|atomic[A-Z]\w*\(|__shfl_\w+\(")


def occurrences(file, text):
    return [match.start() for match in re.finditer(re.escape(text), (ROOT / file).read_text())]


def without_mutant():
    """The places of barriers, fences, atomics and shuffles that no mutant changes."""
    covered = {(file, place) for file, text, which, _, _ in MUTANTS for place in occurrences(file, text)[which:which + 1]}
    for path in sorted(ROOT.glob("kernels/**/*")):
        if path.suffix not in (".cu", ".cuh", ".h") or "cuda" not in path.parts and path.name != "bins.h":
            continue
        file, source = path.relative_to(ROOT).as_posix(), path.read_text()
        for match in SYNCHRONIZATION.finditer(source):
            ends = source.index("\n", match.start())
            near = [place for of, place in covered if of == file and source.rfind("\n", 0, match.start()) < place <= ends + 1]
            if not near and not source[source.rfind("\n", 0, match.start()) + 1:].lstrip().startswith("//"):
                yield f"{file}:{source.count(chr(10), 0, match.start()) + 1} {match.group()}"


def write_changed(work, file, text, occurrence, replacement):
    """Writes the changed file, and returns the number of the line."""
    source, place = (ROOT / file).read_text(), occurrences(file, text)[occurrence]
    if not replacement and text.endswith(";"):
        replacement = ";"
    (work / file).parent.mkdir(parents=True)
    (work / file).write_text(source[:place] + replacement + source[place + len(text):])
    return source.count("\n", 0, place) + 1


class Library:
    """The shared library of one program of the tests."""

    def __init__(self, build, name, program, compiled):
        self.build, self.name, self.program = build, name, build / "tests/cuda_host" / program
        objects = build / f"tests/cuda_host/CMakeFiles/{name}.dir"
        self.objects = {str(path.relative_to(build)): path for path in objects.rglob("*.o")}
        marker = f"CMakeFiles/{name}.dir/"
        self.commands = {}
        for entry in compiled:
            if marker in entry["command"] and entry["file"].endswith(".cu"):
                self.commands[os.path.relpath(entry["file"], ROOT)] = entry["command"]
        self.sanitizer = ["-fsanitize=thread"] if name.endswith("tsan") else []

    def compile(self, work, unit):
        """Compiles a unit again, with the changed file of `work` in front of the unchanged one. Returns the names of both objects."""
        flags = shlex.split(self.commands[unit])
        source = work / unit if (work / unit).exists() else ROOT / unit
        before = flags[flags.index("-o") + 1]
        after = work / self.name / f"{len(list((work / self.name).iterdir()))}.o"
        shadow = f"-I{ROOT}/tests/cuda_host/shadow"
        subprocess.run([flags[0], shadow, f"-I{work}", *flags[1:flags.index("-o")], "-Wno-error", "-c", str(source), "-o", str(after)],
                       check=True, cwd=self.build, stderr=subprocess.DEVNULL)
        return before, after

    def link(self, work, units):
        """Makes the library of a mutant in a folder in `work`, and returns the folder."""
        folder = work / self.name
        folder.mkdir()
        objects = dict(self.objects)
        for unit in units:
            before, after = self.compile(work, unit)
            objects[before] = after
        subprocess.run(["g++", "-shared", *self.sanitizer, f"-Wl,--version-script={ROOT}/tests/cuda_host/exports.map",
                        *map(str, objects.values()), "-o", str(folder / f"lib{self.name}.so")], check=True)
        return folder

    def notices(self, folder, tests, seed):
        environment = dict(os.environ, LD_LIBRARY_PATH=str(folder), CUDA_HOST_SEED=str(seed), OMP_NUM_THREADS="1", TSAN_OPTIONS="halt_on_error=1")
        command = [str(self.program), "--gtest_brief=1", f"--gtest_filter={tests}"]
        try:
            result = subprocess.run((["setarch", "-R"] if self.sanitizer else []) + command, env=environment, capture_output=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return True
        return result.returncode != 0


def verdict(library, work, units, seeds):
    folder = library.link(work, units)
    return sum(library.notices(folder, FILTERS[units], seed) for seed in seeds)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    chosen = [int(number) for number in sys.argv[2:]] or range(len(MUTANTS))
    compiled = json.loads((build / "compile_commands.json").read_text())
    plain = Library(build, "cuda_host_device", "cuda_host_tests", compiled)
    threads = Library(build, "cuda_host_device_tsan", "cuda_host_tsan_tests", compiled)
    for tests in FILTERS.values():
        for library in (plain, threads):
            if library.notices(library.program.parent, tests, 0):
                sys.exit(f"mutants.py: {library.program.name} --gtest_filter={tests} fails without a change")

    def try_one(number):
        """What is printed of a mutant, and whether it was missed."""
        file, text, occurrence, replacement, units = MUTANTS[number]
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            line = write_changed(work, file, text, occurrence, replacement)
            by_seeds, by_tsan = verdict(plain, work, units, SEEDS), verdict(threads, work, units, [0])
        reason = EQUIVALENT.get((file, text))
        result = f"seeds {by_seeds} of {len(SEEDS)}, ThreadSanitizer {'yes' if by_tsan else 'no'}" + (f" ({reason})" if reason else "")
        return f"{number:2} {file}:{line} {text} -> {replacement or 'nothing'}: {result}", not by_seeds and not by_tsan and reason is None

    missed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for result, is_missed in pool.map(try_one, chosen):
            print(result, flush=True)
            missed += is_missed
    uncovered = list(without_mutant())
    print(f"{len(chosen)} mutants, {missed} not noticed", *(f"no mutant: {place}" for place in uncovered), sep="\n")
    return missed != 0 or bool(uncovered)


if __name__ == "__main__":
    sys.exit(main())
