"""Computes the table of formats in opt_levels/README.md from bit patterns, and compares.

Every format is a sign, an exponent of `exponent` bits and a fraction of `fraction` bits: the upper bits of a wider IEEE format that
Python's struct module reads (FP16 is the 'e' of struct itself).
"""
import pathlib
import re
import struct
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "opt_levels/README.md"
# name: exponent bits, fraction bits, bits in memory
FORMATS = {"FP16": (5, 10, 16), "BF16": (8, 7, 16), "TF32": (8, 10, 32), "FP32": (8, 23, 32)}


def value(exponent_bits, fraction_bits, pattern):
    """What the bits of a positive number mean, read by struct."""
    if exponent_bits == 5:
        return struct.unpack("<e", pattern.to_bytes(2, "little"))[0]
    return struct.unpack("<f", (pattern << 23 - fraction_bits).to_bytes(4, "little"))[0]


def row(name):
    exponent, fraction, bits = FORMATS[name]
    of = lambda pattern: value(exponent, fraction, pattern)
    one = (2 ** (exponent - 1) - 1) << fraction
    infinity = (2**exponent - 1) << fraction
    assert of(one) == 1 and of(infinity) == float("inf")
    # The first pattern from which neighbours are two apart: every whole number up to it has a pattern.
    exact = next(of(start) for start in range(one, infinity, 1 << fraction) if of(start + 1) - of(start) == 2)
    numbers = [of(infinity - 1), of(1 << fraction), of(1), of(one + 1) - 1, exact]
    return [name, str(bits), f"{exponent} + {fraction}"] + [f"{number:.9g}" for number in numbers]


def rows_of(page):
    section = page.split("## Formats", 1)[1]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    return [each[:8] for each in cells[2:]]


expected, found = [row(name) for name in FORMATS], rows_of(PAGE.read_text())
for line in expected:
    print("|", " | ".join(line), "|", "" if line in found else "<- differs from opt_levels/README.md")
sys.exit(expected != found)
