"""Compares levels by a program of one's own, the one of the page, and reads the report."""
import csv
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPARE, WRITE_REPORT, PAGE_PROGRAM = (sys.argv.pop(1) for _ in range(3))


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class OwnProgram(unittest.TestCase):
    """The program of the page, by its two ways."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="apex_cpp-comparison-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "my_train").symlink_to(PAGE_PROGRAM)
        page = (pathlib.Path(WRITE_REPORT).parents[1] / "README.md").read_text(encoding="utf-8")
        grid = re.search(r"```yaml\n(program:.*?)```", page, re.S).group(1)
        (self.folder / "grid.yaml").write_text(grid + "rounds: 2\n")

    def compare(self, grid, code=0):
        ended = subprocess.run([COMPARE, grid, "--out", "out"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr

    def report(self, folder):
        subprocess.run([WRITE_REPORT, self.folder / folder], check=True, capture_output=True)
        return [(self.folder / folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html")]

    def test_gets_the_same_report_in_one_process_and_in_one_for_each_run(self):
        self.compare("grid.yaml")
        subprocess.run([self.folder / "my_train"], cwd=self.folder, check=True, capture_output=True)
        shown = {}
        for folder, seeds in (("out", 3), ("runs/mine", 2)):
            text, page = self.report(folder)
            shown[folder] = re.findall(r"<h2>(.*?)</h2>", page), re.findall(r"<thead>.*?</thead>", page)
            levels = {row["level"]: row for row in rows(self.folder / folder / "tables" / "levels.csv")}
            self.assertEqual(list(levels), ["O0", "O1", "O4", "O5"])
            self.assertEqual({row["runs"] for row in levels.values()}, {str(seeds)})
            self.assertEqual({row["measure"] for row in levels.values()}, {"training loss"})
            self.assertTrue(all(float(row["step_ms"]) > 0 for row in levels.values()))
            self.assertRegex(text, r"\*\*(Take O|Not decided)")
            self.assertRegex(text, r"(?m)^\| model addmm \| FP32 \| FP16 \| BF16 \| BF16 \|")
        self.assertEqual(shown["out"], shown["runs/mine"])
        self.assertEqual(shown["out"][0], ["Time per step", "Memory", "Training loss", "Who computes in what"])
        self.assertEqual(self.losses("out", "O4"), self.losses("runs/mine", "O4"))

    def losses(self, folder, level):
        return [row["loss"] for row in rows(self.folder / folder / "cells" / f"program-{level}-seed1" / "steps.csv")]

    def test_a_program_that_changed_runs_again(self):
        text = ("import sys\nlevel, seed, out = sys.argv[1:]\nwith open(out + '/steps.csv', 'w') as file:\n"
                "    file.write('step,loss,step_ms\\n' + ''.join(f'{i},LOSS,1\\n' for i in range(20)))\n")
        (self.folder / "own.yaml").write_text(
            f"program: {sys.executable} train.py {{level}} {{seed}} {{folder}}\nlevels: [O0, O5]\nseeds: [1]\n")
        for loss in ("1", "2"):
            (self.folder / "train.py").write_text(text.replace("LOSS", loss))
            self.compare("own.yaml")
            self.assertEqual(set(self.losses("out", "O5")), {loss})
        self.assertIn("2 of them finished before", self.compare("own.yaml"))

    def test_a_folder_is_for_one_grid(self):
        (self.folder / "train.py").write_text(
            "import sys\nwith open(sys.argv[3] + '/steps.csv', 'w') as file: file.write('step,loss,step_ms\\n1,1,1\\n')\n")
        grid = f"program: {sys.executable} train.py {{level}} {{seed}} {{folder}}\nlevels: [O0]\nseeds: [1]\n"
        (self.folder / "own.yaml").write_text(grid)
        (self.folder / "other.yaml").write_text(grid + "# another\n")
        self.compare("own.yaml")
        self.assertIn(f"holds the runs of {self.folder.resolve() / 'own.yaml'}: choose another folder with --out",
                      self.compare("other.yaml", code=2))
        self.assertIn("1 of them finished before", self.compare("own.yaml"))

    def test_report_escapes_names_of_levels_and_says_what_a_step_is(self):
        (self.folder / "train.py").write_text(
            "import sys\nwith open(sys.argv[3] + '/steps.csv', 'w') as file:\n"
            "    file.write('step,loss,step_ms\\n' + ''.join(f'{i},1,1\\n' for i in range(20)))\n")
        (self.folder / "own.yaml").write_text(
            f"program: {sys.executable} train.py {{level}} {{seed}} {{folder}}\n"
            "levels: [O0, {opt_level: O4, float32_modules: ['a\"<b']}]\nseeds: [1]\n")
        self.compare("own.yaml")
        _, page = self.report("out")
        self.assertRegex(page, r'aria-label="loss minus that of O0 at O4 float32_modules [^"<]*a[^"<]*&quot;&lt;b')
        self.assertIn("loading data included", page)
        self.assertNotIn("loading data is no part of a step", page)

    def test_in_any_language_needs_steps_alone_and_its_mistakes_are_told(self):
        (self.folder / "train.py").write_text(
            "import sys\nlevel, seed, out = sys.argv[1:]\nif level == 'O1': sys.exit('no such level here')\n"
            "with open(out + '/steps.csv', 'w') as file:\n"
            "    file.write('step,loss,step_ms,loss_scale,skipped\\n')\n"
            "    for i in range(20):\n"
            "        loss = 'nan' if level == 'O5' and seed != '0' and i > 15 else 5 - i / 10\n"
            "        file.write(f'{10 * i},{loss},{2 if level == \"O0\" else 1},{2 if i < 9 else 1},{i == 8}\\n')\n")
        (self.folder / "own.yaml").write_text(f"program: {sys.executable} train.py {{level}} {{seed}} {{folder}}\nlevels: [O0, O1, O4, O5]\n")
        output = self.compare("own.yaml", code=1)
        self.assertIn("program-O1-seed0 failed with exit code 1: no such level here", output)
        text, page = self.report("out")
        self.assertIn("**Take O4**. With O0's loss; takes 0.50 of the time of O0 (0.50 to 0.50).", text)
        self.assertIn("3 runs failed and are not in this report", page)
        levels = {row["level"]: row for row in rows(self.folder / "out" / "tables" / "levels.csv")}
        self.assertEqual({row["rounds"] for row in levels.values()}, {"3"})  # the seeds
        self.assertEqual({row["skipped_steps"] for row in levels.values()}, {"3"})
        self.assertIn("2 of 3 runs diverged", text)
        self.assertEqual((levels["O5"]["diverged"], levels["O5"]["value"]), ("2", "nan"))
        (self.folder / "own.yaml").write_text("build: exit 3\nprogram: true {level} {seed} {folder}\nlevels: [O0]\n")
        self.assertIn("the command of key 'build' failed with exit code 3; its output: ", self.compare("own.yaml", code=2))
        (self.folder / "own.yaml").write_text("build: true\nprogram: true {level} {seed} {folder}\nlevels: [O0]\n")
        self.assertIn("the program has not written a steps.csv with a column 'step' in {folder}", self.compare("own.yaml", code=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
