"""Runs a small grid with the real program, interrupts it, damages it, and reads its report in a real browser."""
import csv
import hashlib
import html.parser
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import unittest

COMPARE, WRITE_REPORT, START_PROCESSES = (sys.argv.pop(1) for _ in range(3))
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
LEVELS, SEEDS = ("O0", "O2"), (0, 1)
WIDE, MIDDLE, NARROW = (1280, 3000), (700, 3000), (390, 3000)

CONFIG = """\
model: {type: convnet, widths: [4, 8]}
data: {set: digits, dir: DATA}
optimizer: {type: SGD, lr: 0.1, momentum: 0.9}
epochs: 1
batch_size: 20
device: cpu
threads: 1
amp: {opt_level: O0}
"""
# Of that network on 8x8 images of 10 classes: two convolutions, a linear layer of 8x4x4 inputs, two batch norms.
SIXTEEN_BIT = 4 * 9 + 8 * 4 * 9 + 10 * 8 * 4 * 4 + 10
BATCH_NORM = 2 * (4 + 8)
STEPS = 240 // 20


def easy_digits():
    """Ten well separated kinds of 8x8 image with noise, in the form of digits.csv."""
    generator = random.Random(1)
    kinds = [[generator.randrange(2) * 10 + 2 for _ in range(64)] for _ in range(10)]
    images = [[pixel + generator.randrange(5) for pixel in kinds[row % 10]] for row in range(300)]
    return "".join(",".join(map(str, image)) + f",{row % 10}\n" for row, image in enumerate(images))


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Page(html.parser.HTMLParser):
    """What a test asks of a page: its tables' cells by the tables' ids, its text, and every address it names."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.addresses, self.words, self.tags = {}, [], [], []
        self._table = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.addresses += [attributes[name] for name in ("src", "href", "xlink:href", "data", "srcset") if attributes.get(name)]
        if tag == "table":
            self._table = self.tables.setdefault(attributes.get("id", f"unnamed {len(self.tables)}"), [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th") and self._table:
            self._table[-1].append("")

    def handle_endtag(self, tag):
        self._table = None if tag == "table" else self._table

    def handle_data(self, data):
        self.words.append(data)
        if self._table and self._table[-1]:
            self._table[-1][-1] += data


class Comparison(unittest.TestCase):
    """One grid for all tests, in their order: each run costs seconds."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="apex_cpp-comparison-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        (cls.folder / "data").mkdir()
        (cls.folder / "data" / "digits.csv").write_text(easy_digits())
        (cls.folder / "net.yaml").write_text(CONFIG.replace("DATA", "data"))
        grid = f"configs: [net.yaml]\nlevels: [{', '.join(LEVELS)}]\nseeds: {list(SEEDS)}\nrounds: 3\n"
        (cls.folder / "grid.yaml").write_text(grid)
        cls.out = cls.folder / "out"

    def start(self, grid="grid.yaml", *options):
        return subprocess.Popen([COMPARE, grid, "--out", self.out, *options], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def run_all(self, *arguments, code=0):
        process = self.start(*arguments)
        output, _ = process.communicate()
        self.assertEqual(process.returncode, code, output)
        return output

    def write_report(self):
        return subprocess.run([WRITE_REPORT, self.out.name], cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def cell(self, level, seed):
        return self.out / "cells" / f"net-{level}-seed{seed}"

    def stamps(self):
        return {path.name: (path / "files.csv").stat().st_mtime_ns for path in (self.out / "cells").iterdir()
                if not path.name.endswith(".part")}

    def test_1_goes_on_where_it_was_killed(self):
        process = self.start()
        for line in process.stdout:
            if line.startswith("cell 2/4"):  # the second cell has begun, or has even ended
                break
        os.killpg(process.pid, signal.SIGSTOP)
        self.assertIn("another comparison is running in", self.run_all(code=2))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        before = self.stamps()
        self.assertIn("net-O0-seed0", before)
        self.assertLess(len(before), 4)
        output = self.run_all()
        self.assertIn(f"{len(before)} of them finished before", output)
        after = self.stamps()
        self.assertEqual(len(after), 4)
        self.assertEqual({name: after[name] for name in before}, before)
        self.assertNotIn("\r", output)  # no bar that is drawn over in a log

    def test_2_makes_a_damaged_cell_anew_alike(self):
        before, damaged = self.stamps(), self.cell("O2", 1)
        steps = (damaged / "run" / "steps.csv").read_bytes()
        (damaged / "run" / "steps.csv").write_bytes(steps[:-9])
        self.run_all()
        after = self.stamps()
        self.assertEqual({name for name in after if after[name] != before[name]}, {damaged.name})
        self.assertEqual((damaged / "run" / "steps.csv").read_bytes(), steps)

    def test_3_figures_are_those_of_the_closed_forms(self):
        self.assertEqual(self.write_report().splitlines()[-1], f"report: {self.out.resolve() / 'report.html'}")
        runs = {(row["level"], int(row["seed"])): row for row in rows(self.out / "tables" / "runs.csv")}
        self.assertEqual(set(runs), {(level, seed) for level in LEVELS for seed in SEEDS})
        total = SIXTEEN_BIT + BATCH_NORM
        expected = {
            "O0": {"weights": 4 * total, "masters": 0, "gradients": 4 * total, "state": 4 * total},
            "O2": {"weights": 2 * SIXTEEN_BIT + 4 * BATCH_NORM, "masters": 4 * SIXTEEN_BIT,
                   "gradients": 2 * SIXTEEN_BIT + 4 * BATCH_NORM + 4 * SIXTEEN_BIT, "state": 4 * total},
        }
        for (level, seed), row in runs.items():
            self.assertEqual({part: int(row[f"{part}_bytes"]) for part in expected[level]}, expected[level], (level, seed))
            metrics, steps = rows(self.cell(level, seed) / "run/metrics.csv"), rows(self.cell(level, seed) / "run/steps.csv")
            self.assertEqual((row["measure"], float(row["value"])), ("test accuracy", float(metrics[-1]["test_accuracy"])))
            self.assertEqual(int(row["skipped_steps"]), sum(int(step["skipped"]) for step in steps))
            self.assertEqual(len(steps), STEPS)
            self.assertEqual(len(list((self.cell(level, seed) / "run").glob("*tfevents*"))), 1)

    def test_3_times_are_medians_of_rounds_and_of_their_ratios(self):
        of = {level: [row for row in rows(self.out / "rounds.csv") if row["level"] == level] for level in LEVELS}
        self.assertEqual([row["round"] for row in of["O2"]], ["0", "1", "2"])
        for row in rows(self.out / "tables" / "levels.csv"):
            rounds = of[row["level"]]
            self.assertEqual(float(row["step_ms"]), statistics.median(float(each["step_ms"]) for each in rounds))
            parts = [statistics.median(float(each[f"{part}_ms"]) for each in rounds) for part in ("forward", "backward", "optimizer")]
            self.assertEqual([float(row[f"{part}_ms"]) for part in ("forward", "backward", "optimizer")], parts)
            self.assertTrue(all(part > 0 for part in parts))
        ratio = next(row for row in rows(self.out / "ratios.csv") if row["level"] == "O2")
        each = [float(level["step_ms"]) / float(other["step_ms"]) for level, other in zip(of["O2"], of["O0"])]
        self.assertEqual(float(ratio["ratio"]), statistics.median(each))
        self.assertTrue(float(ratio["low"]) <= float(ratio["ratio"]) <= float(ratio["high"]))
        before, orders = (self.out / "rounds.csv").read_bytes(), {row["order"] for row in rows(self.out / "ratios.csv")}
        output = self.run_all()  # rounds that have shown the order are not made again; the others are
        self.assertEqual((self.out / "rounds.csv").read_bytes() == before, "unknown" not in orders)
        self.assertEqual("timing net: rounds 1 to 3" in output, "unknown" in orders)
        self.write_report()

    def test_4_memory_of_activations_is_what_autograd_keeps(self):
        # Of 20 images: batch norm keeps its input, ReLU its output, pooling the places (int64) of what it took, the linear layer
        # its input. What there is of single numbers and of 20x10 scores is less than a twentieth of that.
        values, places = 20 * (2 * 4 * 64 + 2 * 8 * 64 + 8 * 16), 20 * 8 * 16
        for level, size in (("O0", 4), ("O2", 2)):
            kept = int(rows(self.cell(level, 0) / "memory.csv")[0]["saved_for_backward"])
            expected = size * values + 8 * places
            self.assertGreaterEqual(kept, expected, level)
            self.assertLess(kept, 1.05 * expected, level)

    def test_5_layers_have_the_dtypes_of_the_level_and_o0_equals_itself(self):
        layers = rows(self.out / "tables" / "layers.csv")
        of = {level: [row for row in layers if row["level"] == level] for level in LEVELS}
        self.assertEqual({row["dtype"] for row in of["O0"]}, {"Float"})
        self.assertEqual({row["dtype"] for row in of["O2"] if row["kind"] == "output"}, {"Half"})
        self.assertEqual({row["relative_error"] for row in of["O0"]}, {"0"})
        # Eight layers, of which each rounds input, weight and output to FP16, by 2^-11: 1.2 %. Two batch norms subtract means: 0.2 is for
        # channels whose mean is up to four of their deviations. Other weights or images would be off by 1 and more.
        self.assertTrue(all(0 < float(row["relative_error"]) < 0.2 for row in of["O2"] if row["kind"] == "output"))
        # The two are one figure: SQNR = -20 log10 of the relative error. A rounding of the logarithm, 70 at most, by 2^-53 moves the power by
        # 70 * ln(10) / 20 times as much.
        for row in of["O2"]:
            self.assertAlmostEqual(10 ** (-float(row["sqnr_db"]) / 20), float(row["relative_error"]), delta=1e-14)

    def dom(self):
        ended = subprocess.run([BROWSER, *self.flags(), "--dump-dom", "--enable-logging=stderr", self.address], check=True,
                               capture_output=True, text=True, timeout=120)
        return ended.stdout, ended.stderr

    @property
    def address(self):
        return (self.out / "report.html").resolve().as_uri()

    def flags(self):
        return ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-sandbox"]  # which root and containers cannot have

    def test_6_report_is_whole_in_a_browser(self):
        if BROWSER is None:
            self.skipTest("there is no chromium-headless-shell (Debian's package; tools/test installs it where it may)")
        text, errors = self.dom()
        page = Page(text)
        self.assertNotRegex(errors, r"CONSOLE.*(Error|Refused|Failed)")
        self.assertNotIn("script", page.tags)
        outside = [address for address in page.addresses if not address.startswith("#")]
        self.assertEqual(outside, [])  # nothing is fetched
        self.assertEqual([url for url in re.findall(r"url\(([^)]*)\)", text) if not url.strip("\"'&quot;").startswith("#")], [])
        levels = page.tables["levels-0"]
        self.assertEqual([row[0].strip() for row in levels], ["Level", *LEVELS])
        for row in levels[1:]:
            self.assertTrue(all(cell.strip() for cell in row), row)
        for name in ("dtypes-0", "underflow-0", "layers-0-0", "layers-0-1", "layers-0-2"):
            self.assertGreater(len(page.tables[name]), 2, name)
            self.assertTrue(all(cell.strip() for row in page.tables[name] for cell in row), name)
        self.assertRegex(" ".join(page.words), r"Which level\?\s+(Take O[02]|Not decided)\s+\S+")
        self.assertIn("scale", text)
        self.assertEqual(page.tags.count("svg"), 2 * len(LEVELS) + 1 + 3)  # accuracy, loss; the scale of O2; three kinds of O2
        self.assertEqual(len(set(re.findall(r'\bid="([^"]+)"', text))), len(re.findall(r'\bid="([^"]+)"', text)))

    def measured(self, width, expression):
        """What a script finds in a copy of the page, in a window of that width: a number."""
        copy = self.folder / "measured.html"
        script = f"<script>document.title = 'found ' + ({expression})</script>"
        page = (self.out / "report.html").read_text(encoding="utf-8")
        copy.write_text(page.replace("</body>", script + "</body>"), encoding="utf-8")
        text = subprocess.run([BROWSER, *self.flags(), f"--window-size={width},1000", "--dump-dom", copy.resolve().as_uri()],
                              check=True, capture_output=True, text=True, timeout=120).stdout
        return float(re.search(r"<title>found ([-.\d]+)</title>", text).group(1))

    def test_7_report_fits_a_wide_and_a_narrow_window(self):
        if BROWSER is None:
            self.skipTest("there is no chromium-headless-shell")
        pictures = set()
        for width, height in (WIDE, MIDDLE, NARROW):
            self.assertLessEqual(self.measured(width, "document.documentElement.scrollWidth"), width)
            picture = self.folder / f"{width}.png"
            subprocess.run([BROWSER, *self.flags(), f"--window-size={width},{height}", f"--screenshot={picture}", self.address],
                           check=True, capture_output=True, timeout=120)
            content = picture.read_bytes()
            self.assertEqual((int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")), (width, height))
            self.assertGreater(len(content), 50_000)  # an empty page of that size takes a tenth
            pictures.add(hashlib.sha256(content).hexdigest())
        self.assertEqual(len(pictures), 3)

    def test_7_a_level_has_its_dot_and_its_values_beside_its_name(self):
        if BROWSER is None:
            self.skipTest("there is no chromium-headless-shell")
        box = "document.querySelector('.levels tbody {}').getBoundingClientRect()"
        name_is_one_line = f"{box.format('.name')}.height - {box.format('.dot')}.height"
        for width, _ in (WIDE, MIDDLE, NARROW):
            self.assertLess(self.measured(width, name_is_one_line), 24, width)  # a line is 24 px high, with the dot on one of its own two
        # Where rows are cards: from the card's edge to the end of a value and what stands behind it.
        reach = "(() => { const range = document.createRange(); range.selectNodeContents(document.querySelector('.levels tbody td')); " \
                "return range.getBoundingClientRect().right - document.querySelector('.levels tbody tr').getBoundingClientRect().left })()"
        self.assertLess(self.measured(MIDDLE[0], reach), 320)

    def test_7_panels_can_be_compared_and_colours_are_explained(self):
        page = (self.out / "report.html").read_text(encoding="utf-8")
        self.assertIn("loss minus that of O0", page)
        self.assertIn('<i class="scale"></i>', page)  # the legend of the tables of distances
        self.assertRegex(page, r"\d\u00a0ms")
        self.assertNotRegex(re.sub(r"<style>.*?</style>", "", page, flags=re.S), r">[^<]*\d (ms|%|kB|MB)")

    def test_8_tells_in_words_and_markdown_the_same(self):
        text = (self.out / "report.md").read_text(encoding="utf-8")
        page = (self.out / "report.html").read_text(encoding="utf-8")
        headline = re.search(r"\*\*(Take O\d|Not decided)\*\*", text).group(1)
        self.assertIn(f'<p class="reply">{headline}</p>', page)
        for level in LEVELS:
            self.assertRegex(text, rf"(?m)^\| {level} \|")
        for words in ("1 epoch, batches of 20", ", 1 thread"):
            self.assertRegex(text, rf"{words}\b")
            self.assertRegex(page, rf"{words}\b")
        self.assertRegex(text, r"\n\n\| level \|")  # what is no line of a table's own paragraph is no table
        self.assertRegex(text, r"\n\n\| memory \|")

    def test_9_runs_several_processes_and_reports_without_a_cell_that_failed(self):
        (self.folder / "grid.yaml").write_text(
            "configs: [net.yaml]\nlevels: [O0, O2, {torch_amp: {autocast: bfloat16, grad_scaler: true}}]\nseeds: [0]\n"
            "processes: [1, 2]\nrounds: 2\n")
        name, waiting = "net-O0-seed0-2processes", "net-O2-seed0-2processes"
        torch_amp = "net-autocast_BF16_+_GradScaler-seed0-2processes"
        output = self.run_all("grid.yaml", "--start-processes", "false", code=1)
        self.assertIn(f"{name} failed with exit code 1", output)
        self.assertIn(f"{waiting} is skipped: {name}, to which it is compared, failed", output)
        self.write_report()
        self.assertIn(f"3 runs failed and are not in this report: {name}, {waiting}, {torch_amp}.",
                      (self.out / "report.html").read_text(encoding="utf-8"))
        self.run_all("grid.yaml", "--start-processes", START_PROCESSES)
        log = (self.out / "cells" / name / "log.txt").read_text(encoding="utf-8")
        self.assertIn("2 processes with batches of 10 images", log)
        alone, together = (rows(self.out / "cells" / cell / "parameters.csv") for cell in ("net-O0-seed0", name))
        self.assertEqual(together, alone)
        self.assertEqual(rows(self.out / "cells" / waiting / "pass.csv")[0]["weights"], "trained")  # of the O0 made now
        self.check_torch_amp()

    def check_torch_amp(self):
        """Everything that the report has of a level is there of autocast and GradScaler, but casts, which are not seen."""
        self.write_report()
        name = "autocast BF16 + GradScaler"
        total = SIXTEEN_BIT + BATCH_NORM
        found = {row["processes"]: row for row in rows(self.out / "tables" / "runs.csv") if row["level"] == name}
        self.assertEqual(set(found), {"1", "2"})
        for row in found.values():
            self.assertEqual((row["casts_made"], row["casts_cached"], row["loss_scale"]), ("", "", "65536.0"))
            self.assertEqual([int(row[f"{part}_bytes"]) for part in ("weights", "masters", "gradients", "state")],
                             [4 * total, 0, 4 * total, 4 * total])
            self.assertTrue(all(float(row[figure]) > 0 for figure in ("training_seconds", "operator_calls")), row)
        timed = [row for row in rows(self.out / "tables" / "levels.csv") if row["level"] == name]
        self.assertEqual([row["rounds"] for row in timed], ["2", "2"])
        self.assertTrue(all(float(row["step_ms"]) > 0 for row in timed))
        layers = [row for row in rows(self.out / "tables" / "layers.csv") if row["level"] == name and row["kind"] == "output"]
        self.assertEqual({row["dtype"] for row in layers}, {"BFloat16"})
        text = (self.out / "report.md").read_text(encoding="utf-8")
        self.assertEqual(len(re.findall(rf"(?m)^\| {re.escape(name)} \| 0:\d\d \|", text)), 2)
        self.assertEqual(len(re.findall(r"(?m)^\| casts in a step \| 0 \| \d+ \| – \|", text)), 2)


class RuinedReference(unittest.TestCase):
    """A training that O0 loses, compared from a folder above the grid's, in one whose name has a word of the log's."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="apex_cpp-comparison-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("data", "grids"):
            (self.folder / name).mkdir()
        (self.folder / "data" / "digits.csv").write_text(easy_digits())
        # Weight decay alone takes the weights to infinity in a dozen steps.
        config = CONFIG.replace("DATA", "data").replace("lr: 0.1", "lr: 1000, weight_decay: 1").replace("epochs: 1", "epochs: 3")
        (self.folder / "grids" / "net.yaml").write_text(config)
        (self.folder / "grids" / "lists.yaml").write_text("casts: {float32: [aten::mm]}\n")
        (self.folder / "grids" / "grid.yaml").write_text(
            "configs: [net.yaml]\nlevels: [O0, {opt_level: O1, casts: lists.yaml}]\nseeds: [0]\nrounds: 2\n")

    def test_has_its_report_say_that_first_and_suggests_no_level(self):
        out = self.folder / "a test of mine"
        ended = subprocess.run([COMPARE, "grids/grid.yaml", "--out", out], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        subprocess.run([WRITE_REPORT, out], check=True, capture_output=True)
        text, page = ((out / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
        headline = "O0 itself diverged: fix the training before you compare levels"
        self.assertIn(f"**{headline}**. 1 of 1 runs diverged", text)
        self.assertIn(f'<p class="reply">{headline}</p>', page)
        for said in (text, page):
            self.assertNotIn("Take O", said)
            self.assertNotIn("O1 or O2", said)

    def compare_two_processes(self, start_processes):
        (self.folder / "grids" / "grid.yaml").write_text("configs: [net.yaml]\nlevels: [O0, O4]\nseeds: [0]\nprocesses: [2]\nrounds: 2\n")
        return subprocess.run([COMPARE, "grids/grid.yaml", "--out", "out", "--start-processes", start_processes], cwd=self.folder,
                              capture_output=True, text=True)

    def test_of_two_processes_is_reported_once_the_leader_has_written_its_tables(self):
        ended = self.compare_two_processes(START_PROCESSES)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        log = (self.folder / "out/cells/net-O0-seed0-2processes/log.txt").read_text(encoding="utf-8")
        self.assertIn("start_processes: rank 0 ended with exit code 3", log)
        subprocess.run([WRITE_REPORT, self.folder / "out"], check=True, capture_output=True)
        self.assertIn("1 of 1 runs diverged", (self.folder / "out/report.md").read_text(encoding="utf-8"))

    def test_without_its_tables_is_no_finished_run(self):
        diverges = self.folder / "diverges"
        diverges.write_text("#!/bin/sh\nexit 3\n")
        diverges.chmod(0o755)
        ended = self.compare_two_processes(diverges)
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        self.assertIn("failed with exit code 1: the run ended without its tables", ended.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
