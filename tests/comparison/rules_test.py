"""The rules by which a report suggests a level, on levels that are made up."""
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, sys.argv.pop(1))
import cells  # noqa: E402
from summary import Choice, time_words, tolerance  # noqa: E402
from words import counted, distance  # noqa: E402


class Level:
    def __init__(self, name, accuracy=0.9, time=10.0, resident=1000.0, diverged=0, spread=0.01, slowest=None,
                 loses_small_updates=False):
        self.name, self.accuracy, self.resident, self.diverged, self.spread = name, accuracy, resident, diverged, spread
        self.loses_small_updates = loses_small_updates
        self._time, self.cells, self._slowest = time, [None] * 3, slowest or time

    def time(self):
        return self._time

    def time_range(self):
        return self._time, self._slowest


class Group:
    tested = 400

    def __init__(self, *levels):
        self.levels, self.reference = list(levels), levels[0]

    def level(self, name):
        return next((level for level in self.levels if level.name == name), None)


def choice(*levels):
    return Choice(Group(Level("O0"), *levels))


class Rules(unittest.TestCase):
    def test_tolerance_is_the_spread_or_what_the_test_set_can_tell(self):
        self.assertAlmostEqual(tolerance(Level("O0", 0.9, spread=0.02), 400), 0.04)
        self.assertAlmostEqual(tolerance(Level("O0", 0.9, spread=0.0), 400), 0.015)  # sqrt(0.9 * 0.1 / 400)
        self.assertAlmostEqual(tolerance(Level("O0", 1.0, spread=0.0), 400), 0.0025)  # one image of 400

    def test_takes_the_fastest_that_keeps_the_accuracy(self):
        made = choice(Level("O1", time=8), Level("O2", time=6), Level("O3", 0.879, time=3))
        self.assertEqual(made.taken.name, "O2")
        self.assertEqual(made.verdict(made.group.level("O3")).kind, "accuracy")
        self.assertIn("2.10 points below O0; 2.00 are allowed", made.verdict(made.group.level("O3")).words)
        self.assertEqual(made.verdict(made.group.level("O1")).words, "takes 1.3 times as long as O2")
        self.assertEqual(made.reason, "As accurate as O0; takes 0.6 of the time of O0, with the same memory.")
        self.assertEqual(made.duel("O1", "O2"), ("O2", "Both are as accurate as O0. O2 takes 0.75 of the time of O1, with the "
                                                       "same memory."))

    def test_tells_times_as_shares_however_small_they_are(self):
        made = choice(Level("O1", time=3.0), Level("O2", time=10 / 271))
        self.assertEqual(made.reason, "As accurate as O0; takes 0.0037 of the time of O0, with the same memory.")
        self.assertEqual(made.verdict(made.reference).words, "takes 271.0 times as long as O2")
        self.assertEqual(time_words(made.group.level("O1"), made.reference), "takes 0.3 of the time of O0")

    def test_counts_in_the_singular_and_the_plural(self):
        self.assertEqual([counted("1", "epoch"), counted("20", "epoch"), counted(0, "seed")], ["1 epoch", "20 epochs", "0 seeds"])

    def test_of_equally_fast_ones_takes_the_smallest(self):
        made = choice(Level("O1", time=6.0, resident=800), Level("O2", time=6.2, resident=600))
        self.assertEqual(made.taken.name, "O2")
        self.assertEqual(made.verdict(made.group.level("O1")).words, "as fast as O2, 33 % more memory")
        self.assertEqual(made.verdict(made.taken).words, "as fast as any, with the least memory of those")
        self.assertEqual(made.duel("O1", "O2"), ("O2", "Both are as accurate as O0 and equally fast. O2 takes 25 % less memory."))

    def test_levels_whose_runs_overlap_are_equally_fast(self):
        made = choice(Level("O1", time=4, slowest=6.5, resident=800), Level("O2", time=6, slowest=7, resident=600))
        self.assertEqual(made.taken.name, "O2")
        self.assertAlmostEqual(made.noise, 1.625)
        apart = choice(Level("O1", time=4, slowest=5.9, resident=800), Level("O2", time=6, slowest=7, resident=600))
        self.assertEqual(apart.taken.name, "O1")

    def test_a_run_that_diverged_rules_a_level_out(self):
        made = choice(Level("O1", time=8), Level("O2", time=6, diverged=1))
        self.assertEqual(made.taken.name, "O1")
        self.assertEqual(made.duel("O1", "O2"), ("O1", "It keeps the accuracy. O2: 1 of 3 runs diverged."))

    def test_says_which_is_smaller_where_o0_is_the_fastest(self):
        made = choice(Level("O1", time=30, resident=500))
        self.assertEqual(made.headline, "Take O0")
        self.assertEqual(made.verdict(made.taken).words, "the fastest")
        self.assertEqual(made.reason, "As fast as any here: 16 bits save no time on this machine. Where memory counts more, take "
                                      "O1: as accurate, 50 % less memory, takes 3.0 times as long as O0.")
        little = choice(Level("O1", time=30, resident=900))
        self.assertEqual(little.reason, "As fast as any here: 16 bits save no time on this machine.")

    def test_does_not_take_16_bit_weights_without_masters(self):
        kept = "weights in 16 bits without masters: small updates are lost; a baseline for speed"
        made = choice(Level("O2", time=6.0, resident=1100), Level("O3", time=6.0, resident=600, loses_small_updates=True))
        self.assertEqual(made.headline, "Take O2")
        self.assertEqual(made.reason, "As accurate as O0; takes 0.6 of the time of O0, with 10 % more memory.")
        self.assertEqual((made.verdict(made.group.level("O3")).kind, made.verdict(made.group.level("O3")).words), ("baseline", kept))
        alone = choice(Level("O3", time=3.0, loses_small_updates=True))
        self.assertEqual((alone.headline, alone.reason), ("Take O0", "No other level with FP32 weights or masters keeps its accuracy."))
        slower = choice(Level("O2", time=30.0), Level("O3", time=3.0, loses_small_updates=True))
        self.assertEqual((slower.headline, slower.reason), ("Take O0", "As fast as any that may be taken."))
        worse = choice(Level("O3", 0.5, loses_small_updates=True))
        self.assertEqual(worse.verdict(worse.group.level("O3")).kind, "accuracy")
        self.assertEqual(worse.reason, "No other level keeps its accuracy.")

    def test_knows_weights_without_masters_by_their_types(self):
        tables = {"O0": ("Float,", False), "O2": ("Half,Float", False), "O3": ("Half,", True), "O3 in BF16": ("BFloat16,", True)}
        with tempfile.TemporaryDirectory() as folder:
            for name, (dtypes, loses) in tables.items():
                (pathlib.Path(folder) / "parameters.csv").write_text(f"parameter,dtype,master_dtype\nbn,Float,\nconv,{dtypes}\n")
                cell = cells.Cell(pathlib.Path(folder), name, "net", name, 0, 1)
                self.assertEqual(cells.Level(name, [cell]).loses_small_updates, loses, name)

    def test_neither_and_none(self):
        made = choice(Level("O1", 0.5), Level("O2", diverged=3))
        self.assertEqual(made.duel("O1", "O2")[0], "Neither")
        self.assertIsNone(made.duel("O4", "O5"))
        self.assertEqual(made.reason, "No other level keeps its accuracy.")

    def test_takes_nothing_where_o0_diverged(self):
        made = Choice(Group(Level("O0", 0.1, diverged=1), Level("O1", diverged=3), Level("O2")))
        self.assertIsNone(made.taken)
        self.assertEqual(made.headline, "O0 itself diverged: the training is to be put right before levels are compared")
        self.assertEqual(made.reason, "1 of 3 runs diverged, and O0 is what the accuracy of the others is measured by.")
        self.assertEqual([made.verdict(level).kind for level in made.group.levels], ["diverged", "diverged", "unknown"])
        self.assertEqual(made.verdict(made.group.level("O2")).words, "O0, by which its accuracy is measured, diverged")
        self.assertIsNone(made.duel("O1", "O2"))

    def test_counts_the_test_images_whatever_the_folder_is_called(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log.txt"
            group = cells.Group("net", 1, [types.SimpleNamespace(first=types.SimpleNamespace(folder=log.parent))])
            for path in ("runs/a", "my test runs/a", "7 test images, of mine/a"):
                log.write_text(f"run folder {path}, 240 training and 60 test images, 1 thread\nepoch 1/1\n", encoding="utf-8")
                self.assertEqual(group.tested, 60)

    def test_figures_of_a_level_are_of_the_runs_that_did_not_diverge(self):
        def cell(diverged, time, state):
            memory = {"weights": 100, "state": state}
            return types.SimpleNamespace(diverged=diverged, times={"step": time, "forward": time / 2}, memory=memory,
                                         resident=sum(memory.values()))

        level = cells.Level("O2", [cell(False, 8.0, 50), cell(True, 1.0, 0), cell(False, 9.0, 50)])
        self.assertEqual((level.resident, level.memory("state")), (150, 50))
        self.assertEqual((level.time(), level.time("forward"), level.time_range()), (8.0, 4.0, (8.0, 9.0)))
        ruined = cells.Level("O3", [cell(True, 1.0, 0)])
        self.assertEqual((ruined.is_measured, ruined.time(), ruined.resident), (False, 1.0, 100))

    def test_differences_from_and_to_zeros_are_told(self):
        row = {"inf": "0", "nan": "0", "dtype": "Half", "relative_error": "nan", "sqnr_db": "nan", "cosine": "0"}
        shown = distance(row)
        self.assertEqual((shown["text"], shown["error"], shown["cosine"], shown["good"]), ("–", "–", "0", 0))
        lost = distance({**row, "relative_error": "1", "sqnr_db": "0"})
        self.assertEqual((lost["text"], lost["error"], lost["cosine"], lost["good"]), ("0 dB", "100 %", "0", 0))
        self.assertEqual(distance({**row, "cosine": "nan"})["cosine"], "–")  # O0 has Inf
        equal = distance({**row, "relative_error": "0", "sqnr_db": "inf", "cosine": "1"})
        self.assertEqual((equal["text"], equal["error"], equal["cosine"], equal["good"]), ("equal", "0", "1", 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
