"""Shared by the tests of the copied examples: a fresh folder with digits.csv, runs of programs, and bounds for accuracies."""
import gzip
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

EXAMPLE = pathlib.Path(os.environ["EXAMPLE"])
PROGRAMS = pathlib.Path(os.environ["PROGRAMS"])
TEST_DIGITS = 360  # every fifth of 1797 lines
SKIPPED = 77       # the exit code of a skipped test, as ctest knows it


class Example(unittest.TestCase):
    """A test in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.digits = gzip.decompress(pathlib.Path(os.environ["DIGITS"]).read_bytes()).decode()
        (self.folder / "digits.csv").write_text(self.digits)

    def command(self, *command, code=0, within=".", env={}):
        """Runs a program in the folder; returns its stdout and stderr. Its error messages must contain no stack trace."""
        cwd = self.folder / within
        cwd.mkdir(exist_ok=True)
        done = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **env}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        if code != 0:
            self.assertNotIn("frame #", done.stdout)
        return done.stdout

    def program(self, name, *arguments, **options):
        return self.command(PROGRAMS / name, *arguments, **options)

    def assert_epochs_are_checked(self, program, *before):
        """The program must refuse a number of epochs, after the arguments `before`, that is not a number."""
        output = self.program(program, *before, "3x", code=1)
        self.assertRegex(output, r"got '3x'\nusage: \w+ .*\[epochs")

    def assert_better_than_chance(self, accuracy, classes=10, count=TEST_DIGITS):
        """The accuracy must be four standard deviations above guessing."""
        self.assertGreater(accuracy, 1 / classes + 4 * deviation(1 / classes, count))


def deviation(share, count):
    """The standard deviation of a share of `count` independent trials."""
    return math.sqrt(share * (1 - share) / count)


def numbers(pattern, text):
    """All numbers that the pattern's group matches."""
    return [float(number) for number in re.findall(pattern, text)]


def readme_block(language):
    return re.search(rf"```{language}\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S).group(1)


def main():
    unittest.main(argv=sys.argv[:1])
