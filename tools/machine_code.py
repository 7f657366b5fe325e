"""Prints what a compiler made of the CUDA kernels, for every GPU architecture in the object files: registers and stack of a thread,
shared memory of a block, how many threads a multiprocessor holds, how much of the memory traffic is in 128-bit accesses, and how many
bytes a multiprocessor can have in flight: the most that a thread loads before it uses one of them, times the threads. By Little's law an
H200 needs about 30 KB of them for the whole bandwidth of its memory."""
import argparse
import csv
import pathlib
import re
import shutil
import subprocess
import sys

REGISTERS, WARP = 65536, 32  # of a multiprocessor; threads
MOST_BLOCKS = 32  # of a multiprocessor, some architectures have fewer
MOST_THREADS = {75: 1024, 86: 1536, 89: 1536, 120: 1536}  # of a multiprocessor; others: 2048
BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
COLUMNS = ["architecture", "kernel", "registers", "stack", "shared", "threads", "resident", "wide", "flying"]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def short(name):
    """A kernel's name without namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|apex::kernels::(\w+::)*|^void ", "", name)
    return re.sub(r"\(.*", "", name).strip()


def demangled(names):
    return dict(zip(names, subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")))


def usage(file):
    """{(architecture, mangled name): registers, stack and shared memory}."""
    found, architecture, name = {}, 0, ""
    for line in output_of("cuobjdump", "-res-usage", file).splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r" Function (\S+):", line):
            name = match[1]
        elif match := re.match(r"\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            found[architecture, name] = dict(zip(("registers", "stack", "shared"), map(int, match.groups())))
    return found


def threads(file):
    """{(architecture, mangled name): threads of a block}, from the launch bounds."""
    found, architecture, name, waits = {}, 0, "", False
    for line in output_of("cuobjdump", "-elf", file).splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\.nv\.info\.(\S+)", line):
            name = match[1]
        elif "EIATTR_MAX_THREADS" in line:
            waits = True
        elif waits and (match := re.search(r"Value:\s+0x([0-9a-f]+)", line)):
            found[architecture, name], waits = int(match[1], 16), False
    return found


class Accesses:
    """Accesses to global memory in a kernel's code, of which `take` is given one instruction after the other."""

    def __init__(self):
        self.total = self.wide = 0  # bits
        self.waited_for, self.flying, self.most_flying = set(), 0, 0  # registers; bits that are loaded and not yet used

    def take(self, name, operands):
        access = re.match(r"(LDG|STG|LD|ST)\.E(\S*)", name)
        bits = next((BITS[part] for part in access[2].split(".") if part in BITS), 32) if access else 0
        self.total += bits
        self.wide += bits if bits == 128 else 0
        loads = access is not None and access[1].startswith("LD")
        registers = [int(number) for number in re.findall(r"\bR(\d+)", operands)]
        if self.waited_for.intersection(registers[1:] if loads else registers) or re.match(r"BRA|EXIT|BAR|BSYNC|WARPSYNC|CALL|RET", name):
            self.waited_for, self.flying = set(), 0
        if loads and registers:
            self.waited_for.update(range(registers[0], registers[0] + max(1, bits // 32)))
            self.flying += bits
            self.most_flying = max(self.most_flying, self.flying)


def accesses(file):
    """{(architecture, mangled name): Accesses}."""
    found, architecture, name = {}, 0, ""
    for line in output_of("cuobjdump", "-sass", file).splitlines():
        if match := re.match(r"\s*code for sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.search(r"Function : (\S+)", line):
            name = match[1]
            found[architecture, name] = Accesses()
        elif match := re.match(r"\s*/\*\w+\*/\s+(?:@!?U?P\w+ )?\s*(\S+)\s*([^;]*);", line):
            found[architecture, name].take(match[1], match[2])
    return found


def resident(architecture, registers, block):
    """Threads that a multiprocessor holds. Registers are given to warps, 256 at a time."""
    of_warp = -(-registers * WARP // 256) * 256
    blocks = min(REGISTERS // of_warp // (block // WARP), MOST_THREADS.get(architecture, 2048) // block, MOST_BLOCKS) if block else 0
    return blocks * block


def rows_of(files, with_code):
    for file in files:
        bounds, memory = threads(file), accesses(file) if with_code else {}
        found = usage(file)
        names = demangled([name for _, name in found])
        for (architecture, name), row in found.items():
            block = bounds.get((architecture, name), 0)
            held, code = resident(architecture, row["registers"], block), memory.get((architecture, name), Accesses())
            yield {"architecture": f"sm_{architecture}", "kernel": short(names[name]), **row, "threads": block,
                   "resident": held,
                   "wide": round(100 * code.wide / max(1, code.total)), "flying": code.most_flying // 8 * held}


def check(rows, table):
    """Finds the kernels for float32 that use more stack than the table allows: a thread's stack is in slow memory. Architectures that
    the table does not name are left out."""
    with open(table, newline="", encoding="utf-8") as file:
        allowed = {(row["architecture"], row["kernel"]): int(row["stack"]) for row in csv.DictReader(file)}
    known = {architecture for architecture, _ in allowed}
    rows = [row for row in rows if row["architecture"] in known and "double" not in row["kernel"] and ", true>" not in row["kernel"]]
    limits = [allowed.get((row["architecture"], row["kernel"]), 0) for row in rows]
    bad = [f"{row['architecture']} {row['kernel']}: {row['stack']} bytes of stack, {limit} are allowed"
           for row, limit in zip(rows, limits) if row["stack"] > limit]
    print("\n".join(bad) or f"{len(rows)} kernels: none uses more stack than {table} allows")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="object files with CUDA code")
    parser.add_argument("--csv", type=pathlib.Path, help="also write the table to a file")
    parser.add_argument("--check", type=pathlib.Path, metavar="TABLE", help="compare the stack with a table instead")
    arguments = parser.parse_args()
    if not shutil.which("cuobjdump"):
        sys.exit("machine_code: there is no cuobjdump on PATH: run tools/bench machine_code, which brings it")
    rows = [row for row in rows_of(arguments.files, not arguments.check) if "cub::" not in row["kernel"]]
    if arguments.check:
        sys.exit(check(rows, arguments.check))
    width = max(len(row["kernel"]) for row in rows)
    print(f"{'':6} {'kernel':{width}} registers stack shared threads resident 128-bit in flight")
    for row in sorted(rows, key=lambda row: (row["architecture"], row["kernel"])):
        print(f"{row['architecture']:6} {row['kernel']:{width}} {row['registers']:9} {row['stack']:5} {row['shared']:6} {row['threads']:7} "
              f"{row['resident']:8} {row['wide']:5} % {row['flying'] / 1000:6.0f} KB")
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
