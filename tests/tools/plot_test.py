"""tools/plot as a user calls it, on tables that are whole, cut off, or none."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PLOT = sys.argv.pop(1)
BENCH = "suite,group,benchmark,threads,quantity,value\ncasts,ops,relu,1,amp/torch,1.2\n"
STEPS = "epoch,step,loss\n1,1,0.5\n1,2,0.25\n"
LEVELS = "config,processes,level,step_ms,weights_bytes,activations_bytes,peak_bytes\nnet,1,O0,8,300,500,900\nnet,1,O5,2,500,100,900\n"


class Plot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The first drawing on a machine may say that a cache of fonts is being made.
        with tempfile.TemporaryDirectory(prefix="apex_cpp-plot-") as folder:
            (pathlib.Path(folder) / "t.csv").write_text(STEPS)
            subprocess.run([PLOT, "t.csv"], cwd=folder, capture_output=True, check=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="apex_cpp-plot-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def plot(self, table, *options):
        """Exit code, standard output and standard error of the call for that table and the files among the options."""
        (self.folder / "t.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
        ended = subprocess.run([PLOT, "t.csv", *options], cwd=self.folder, capture_output=True, text=True)
        return ended.returncode, ended.stdout, ended.stderr

    def assert_drawn(self, name):
        self.assertEqual((self.folder / name).read_bytes()[:4], b"\x89PNG")

    def test_draws_beside_the_table_and_prints_the_name(self):
        for table in (BENCH, STEPS):
            self.assertEqual(self.plot(table), (0, "t.png\n", ""))
            self.assert_drawn("t.png")
            (self.folder / "t.png").unlink()

    def drawing(self, table, *options):
        """The text of the image as SVG, whose comments are the texts in the picture."""
        self.assertEqual(self.plot(table, "--out", "t.svg", *options)[0], 0)
        return (self.folder / "t.svg").read_text(encoding="utf-8")

    def test_draws_a_history_over_its_updates(self):
        drawn = self.drawing("update,scale_before,scale_after,skipped,reason\n3,65536,32768,1,overflow\n9,32768,65536,0,growth\n")
        for text in ("update", "scale before", "scale after"):
            self.assertIn(f"<!-- {text} -->", drawn)

    def test_marks_a_point_that_is_alone(self):
        marker = '<g clip-path="url('
        self.assertIn(marker, self.drawing("epoch,step,loss\n1,1,0.5\n"))
        self.assertNotIn(marker, self.drawing(STEPS))

    def test_draws_statistics_by_tensor_the_largest_of_many(self):
        def table(count):
            rows = (f"1,{step},weight,layer{i},{i + 1},0.5\n" for step in (1, 2) for i in range(count))
            return "epoch,step,tensor,name,numel,norm\n" + "".join(rows)

        drawn = self.drawing(table(3))
        for i in range(3):
            self.assertIn(f"<!-- weight layer{i} -->", drawn)
        self.assertEqual(self.plot(table(12))[1:], ("t.png\n", f"plot: {self.folder.name}: the 10 largest of 12 tensors are drawn\n"))
        drawn = self.drawing(table(12))
        self.assertNotIn("<!-- weight layer1 -->", drawn)
        self.assertIn("<!-- weight layer2 -->", drawn)

    def test_draws_times_and_memory_of_levels_over_those_of_o0(self):
        self.assertEqual(self.plot(LEVELS), (0, "t.png\n", ""))
        drawn = self.drawing(LEVELS)
        # 2 ms of 8 ms, and 600 bytes of 800: the peak holds the other bytes already.
        for text in ("time of a step (O0 = 1)", "memory (O0 = 1)", "O0", "O5", "1.00", "0.25", "0.75"):
            self.assertIn(f"<!-- {text} -->", drawn)
        self.assertNotIn("<!-- net -->", drawn)
        drawn = self.drawing(LEVELS + "net,2,O0,4,300,500,900\nnet,2,O1,5,300,500,900\n")
        for text in ("net", "net, 2 processes", "O1", "1.25"):
            self.assertIn(f"<!-- {text} -->", drawn)
        self.assertNotIn("<!-- net -->", self.drawing(LEVELS + "wide,1,O0,4,300,500,900\n", "--only", "wide"))

    def test_draws_the_peak_of_a_program_that_counts_no_parts_of_memory(self):
        header = "config,processes,level,step_ms,weights_bytes,peak_bytes\n"
        drawn = self.drawing(header + "program,1,O0,8,nan,800\nprogram,1,O5,2,nan,400\n")
        for text in ("memory (O0 = 1)", "0.50"):
            self.assertIn(f"<!-- {text} -->", drawn)
        self.assertNotIn("memory", self.drawing(header + "program,1,O0,8,nan,nan\nprogram,1,O5,2,nan,nan\n"))

    def test_refuses_levels_that_it_cannot_compare(self):
        for table, message in ((LEVELS.replace("O0", "O1"), "'net' has no O0 to compare with"),
                            (LEVELS.replace(",2,", ",,"), "level 'O5': '' is not a number of step_ms; measure it again")):
            self.assertEqual(self.plot(table), (2, "", f"plot: {message}\n"))
        self.assertEqual(self.plot(LEVELS, "--only", "other"), (2, "", "plot: there is no training to draw\n"))

    def test_refuses_a_table_of_another_kind(self):
        (self.folder / "levels.csv").write_text(LEVELS)
        message = "plot: results of tools/bench, levels of tools/compare and tables of runs cannot be drawn in one image\n"
        self.assertEqual(self.plot(STEPS, "levels.csv"), (2, "", message))
        (self.folder / "metrics.csv").write_text("epoch,loss\n1,0.5\n")
        message = "plot: metrics.csv has no column 'step': draw tables of one kind together\n"
        self.assertEqual(self.plot(STEPS, "metrics.csv"), (2, "", message))

    def test_leaves_out_what_is_cut_off_and_says_so(self):
        for table in (BENCH + "casts,ops,linear,1,amp/torch", BENCH + "casts,op", STEPS + "1,3"):
            rows = table.count("\n")
            self.assertEqual(self.plot(table), (0, "t.png\n", f"plot: t.csv: 1 of {rows} rows cut off and left out\n"))
        message = "plot: benchmark 'ops/linear': '' is not a number of value; measure it again\n"
        self.assertEqual(self.plot(BENCH + "casts,ops,linear,1,amp/torch,"), (2, "", message))

    def test_takes_a_title_as_it_is(self):
        self.assertEqual(self.plot(BENCH, "--title", r"costs $5, saves $\foo$"), (0, "t.png\n", ""))

    def test_writes_images_alone(self):
        code, out, error = self.plot(BENCH, "--out", "sub")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("'sub' is not the name of an image, which ends in .png, .svg, .pdf", error)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["t.csv"])
        self.assertEqual(self.plot(BENCH, "--out", "sub.PNG"), (0, "sub.PNG\n", ""))
        self.assert_drawn("sub.PNG")

    def test_names_the_file_that_is_no_table(self):
        code, out, error = self.plot(b"step,loss\n1,\xff\n")
        self.assertEqual((code, out), (2, ""))
        self.assertRegex(error, r"^plot: cannot read t\.csv: it is not a text table \(.*\)\n$")
        self.assertEqual(self.plot("step,loss\n"), (2, "", "plot: t.csv has no rows\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
