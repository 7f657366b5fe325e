"""The rules by which a report suggests a level, on levels and tables that are made up."""
import math
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, sys.argv.pop(1))
import cells  # noqa: E402
import levels  # noqa: E402
import own_cells  # noqa: E402
from cells import ACCURACY, TEST_LOSS, TRAINING_LOSS  # noqa: E402
from summary import Choice, memory_words, tolerance  # noqa: E402
from times import Ratio, take_times  # noqa: E402
from words import counted, distance, of_factor, unbroken  # noqa: E402


class Level:
    def __init__(self, name, quality=0.9, time=10.0, resident=1000.0, diverged=0, spread=0.01, loses_small_updates=False,
                 measure=ACCURACY):
        self.name, self.quality, self.time, self.resident, self.diverged, self.spread = name, quality, time, resident, diverged, spread
        self.loses_small_updates, self.measure, self.cells = loses_small_updates, measure, [None] * 3


class Group:
    """Levels whose ratios of times are known to a share of `noise` in 24 rounds."""

    tested = 400

    def __init__(self, *members, noise=0.02, rounds=24):
        self.levels, self.reference, self.noise, self.rounds = list(members), members[0], noise, rounds

    def level(self, name):
        return next((level for level in self.levels if level.name == name), None)

    def ratio(self, level, other):
        ratio = level.time / other.time
        low, high = ratio * (1 - self.noise), ratio * (1 + self.noise)
        equal = low >= 1 / 1.1 and high <= 1.1
        order = "equal" if equal else "faster" if high < 1 else "slower" if low > 1 else "unknown"
        return Ratio(self.rounds, ratio, low, high, order)


def choice(*members, **group):
    return Choice(Group(Level("O0"), *members, **group))


class Rules(unittest.TestCase):
    def test_tolerance_is_the_spread_or_what_the_test_set_can_tell(self):
        # assertAlmostEqual rounds to 7 decimals: a few roundings of 2^-53 in values below 1 make no difference.
        self.assertAlmostEqual(tolerance(Level("O0", 0.9, spread=0.02), 400), 0.04)
        self.assertAlmostEqual(tolerance(Level("O0", 0.9, spread=0.0), 400), 0.015)  # sqrt(0.9 * 0.1 / 400)
        self.assertAlmostEqual(tolerance(Level("O0", 1.0, spread=0.0), 400), 0.0025)  # one image of 400
        self.assertAlmostEqual(tolerance(Level("O0", 1.5, spread=0.001, measure=TEST_LOSS), 0), 0.015)  # 1 % of the loss
        self.assertAlmostEqual(tolerance(Level("O0", 1.5, spread=0.02, measure=TEST_LOSS), 0), 0.04)

    def test_takes_the_fastest_that_keeps_the_accuracy(self):
        made = choice(Level("O1", time=8), Level("O2", time=6), Level("O3", 0.879, time=3))
        self.assertEqual(made.headline, "Take O2")
        worse = made.verdict(made.group.level("O3"))
        self.assertEqual((worse.kind, worse.words), ("worse", "2.10 points below O0; 2.00 points are allowed"))
        slower = made.verdict(made.group.level("O1"))
        self.assertEqual((slower.kind, slower.words),
                         ("slower", "takes 1.33 times as long as O2 (1.31 to 1.36), no measurable difference in memory"))
        self.assertEqual(made.reason, "As accurate as O0; takes 0.60 of the time of O0 (0.59 to 0.61), no measurable difference in "
                                      "memory.")
        self.assertEqual(made.duel("O1", "O2"), ("O2", "Both are as good as O0. O2 takes 0.75 of the time of O1 (0.73 to 0.77), no "
                                                       "measurable difference in memory."))

    def test_a_loss_is_kept_where_it_is_not_above_o0s(self):
        made = Choice(Group(*(Level(name, loss, time, measure=TEST_LOSS, spread=0.005)
                              for name, loss, time in (("O0", 1.5, 10), ("O1", 1.52, 5), ("O2", 1.51, 6), ("O4", 1.2, 7)))))
        self.assertEqual(made.headline, "Take O2")
        self.assertEqual(made.verdict(made.group.level("O1")).words, "0.0200 above O0; 0.0150 are allowed")
        self.assertTrue(made.reason.startswith("With O0's loss; takes 0.60 of the time of O0"))

    def test_tells_times_as_shares_however_small_they_are(self):
        self.assertEqual([of_factor(value) for value in (10 / 271, 0.3, 0.999, 1.5, 2.04, 271.2, math.inf)],
                         ["0.037", "0.30", "1.00", "1.50", "2.0", "271", "any number"])

    def test_counts_in_the_singular_and_the_plural(self):
        self.assertEqual([counted("1", "epoch"), counted("20", "epoch"), counted(0, "seed")], ["1 epoch", "20 epochs", "0 seeds"])

    def test_no_line_ends_between_a_number_and_its_unit(self):
        self.assertEqual(unbroken("38 % less, 3.68 ms of 12 MB"), "38\u00a0% less, 3.68\u00a0ms of 12\u00a0MB")
        self.assertEqual(unbroken("2 of 3 Bytes"), "2 of 3 Bytes")

    def test_of_equally_fast_ones_takes_the_smallest(self):
        made = choice(Level("O1", time=6.0, resident=800), Level("O2", time=6.2, resident=600))
        self.assertEqual(made.headline, "Take O2")
        self.assertEqual(made.verdict(made.group.level("O1")).words, "as fast as O2 (0.95 to 0.99 of its time), 33 % more memory")
        self.assertEqual(made.verdict(made.group.level("O2")).words, "as fast as any, with the least memory")
        self.assertEqual(made.duel("O1", "O2"), ("O2", "Both are as good as O0 and equally fast (0.95 to 0.99). O2 takes 25 % less "
                                                       "memory."))

    def test_of_levels_that_are_alike_in_time_and_memory_says_so(self):
        made = choice(Level("O4", time=6.0, resident=900e3), Level("O5", time=6.1, resident=882e3))
        self.assertEqual(made.headline, "Take O4 or O5")
        self.assertTrue(made.reason.startswith("No measurable difference between them. As accurate as O0; takes 0.60"))
        self.assertEqual(made.duel("O4", "O5"), ("Either", "No measurable difference. Both are as good as O0 and equally fast (0.96 to "
                                                           "1.00)."))
        self.assertEqual(memory_words(made.group.level("O4"), made.group.level("O5")), "no measurable difference in memory")

    def test_does_not_decide_where_the_machine_was_busy(self):
        # 5.59 ms is not as fast as 3.68 ms, however much runs of one level differ, where all rounds agree.
        self.assertEqual(choice(Level("O1", time=3.68), Level("O4", time=5.59), noise=0.3).headline, "Take O1")
        close = choice(Level("O1", time=4.6, resident=800), Level("O4", time=5.59, resident=600), noise=0.4)
        self.assertEqual(close.duel("O1", "O4"), ("Not decided", "The machine was busy: O1 took 0.49 to 1.15 of the time of O4 in 24 "
                                                                 "rounds. O4 takes 25 % less memory."))
        self.assertEqual(close.reason, "Between O1 and O4: the machine was busy: O1 took 0.49 to 1.15 of the time of O4 in 24 rounds. "
                                       "Start it again when the machine is quiet. Slower: O0. The least memory of these takes O4.")
        self.assertEqual(close.headline, "Not decided")
        verdict = close.verdict(close.group.level("O4"))
        self.assertEqual((verdict.kind, verdict.words),
                         ("undecided", "the machine was busy: O4 took 0.73 to 1.70 of the time of O1 in 24 rounds"))
        self.assertEqual(close.verdict(close.reference).kind, "slower")

    def test_does_not_blame_the_machine_for_too_few_rounds(self):
        made = choice(Level("O1", time=9), noise=0.3, rounds=3)
        self.assertEqual(made.duel("O1", "O1")[0], "Either")
        self.assertIn("O0 took 0.78 to 1.44 of the time of O1 in 3 rounds, which are too few", made.reason)
        self.assertIn("one round of timing is not enough", choice(Level("O1", time=9), noise=0.3, rounds=1).reason)

    def test_a_run_that_diverged_rules_a_level_out(self):
        made = choice(Level("O1", time=8), Level("O2", time=6, diverged=1))
        self.assertEqual(made.headline, "Take O1")
        self.assertEqual(made.duel("O1", "O2"), ("O1", "It is as good as O0. O2: 1 of 3 runs diverged."))

    def test_says_which_is_smaller_where_o0_is_the_fastest(self):
        made = choice(Level("O1", time=30, resident=500))
        self.assertEqual(made.headline, "Take O0")
        self.assertEqual(made.verdict(made.reference).words, "the fastest")
        self.assertEqual(made.reason, "No level is measurably faster here: 16 bits save no time on this machine. Where memory counts "
                                      "more, take O1: as accurate, 50 % less memory, takes 3.0 times as long as O0 (2.9 to 3.1).")
        little = choice(Level("O1", time=30, resident=900))
        self.assertEqual(little.reason, "No level is measurably faster here: 16 bits save no time on this machine.")
        alike = choice(Level("O1", time=10.1, resident=990))
        self.assertEqual((alike.headline, alike.duel("O1", "O1")[0]), ("Take O0", "Either"))

    def test_does_not_take_16_bit_weights_without_masters(self):
        kept = "weights in 16 bits without masters: small updates are lost; a baseline for speed"
        made = choice(Level("O2", time=6.0, resident=1100), Level("O3", time=6.0, resident=600, loses_small_updates=True))
        self.assertEqual(made.headline, "Take O2")
        self.assertEqual(made.reason, "As accurate as O0; takes 0.60 of the time of O0 (0.59 to 0.61), 10 % more memory.")
        self.assertEqual((made.verdict(made.group.level("O3")).kind, made.verdict(made.group.level("O3")).words), ("baseline", kept))
        alone = choice(Level("O3", time=3.0, loses_small_updates=True))
        self.assertEqual((alone.headline, alone.reason), ("Take O0", "No other level with FP32 weights or masters keeps its accuracy."))
        slower = choice(Level("O2", time=30.0), Level("O3", time=3.0, loses_small_updates=True))
        self.assertEqual((slower.headline, slower.reason), ("Take O0", "No eligible level is measurably faster."))
        worse = choice(Level("O3", 0.5, loses_small_updates=True))
        self.assertEqual(worse.verdict(worse.group.level("O3")).kind, "worse")
        self.assertEqual(worse.reason, "No other level keeps its accuracy.")

    def test_knows_weights_without_masters_by_their_types(self):
        tables = {"O0": ("Float,", False), "O2": ("Half,Float", False), "O3": ("Half,", True), "O3 in BF16": ("BFloat16,", True)}
        with tempfile.TemporaryDirectory() as folder:
            for name, (dtypes, loses) in tables.items():
                (pathlib.Path(folder) / "parameters.csv").write_text(f"parameter,dtype,master_dtype\nbn,Float,\nconv,{dtypes}\n")
                cell = cells.Cell(pathlib.Path(folder), name, "net", name, 0, 1)
                self.assertEqual(levels.Level(name, [cell]).loses_small_updates, loses, name)

    def test_neither_and_none(self):
        made = choice(Level("O1", 0.5), Level("O2", diverged=3))
        self.assertEqual(made.duel("O1", "O2")[0], "Neither")
        self.assertIsNone(made.duel("O4", "O5"))
        self.assertEqual(made.reason, "No other level keeps its accuracy.")

    def test_takes_nothing_where_o0_diverged(self):
        made = Choice(Group(Level("O0", 0.1, diverged=1), Level("O1", diverged=3), Level("O2")))
        self.assertEqual(made.taken, [])
        self.assertEqual(made.headline, "O0 itself diverged: fix the training before you compare levels")
        self.assertEqual(made.reason, "1 of 3 runs diverged, and O0 is the reference of the other levels.")
        self.assertEqual([made.verdict(level).kind for level in made.group.levels], ["diverged", "diverged", "unknown"])
        self.assertEqual(made.verdict(made.group.level("O2")).words, "its reference O0 diverged")
        self.assertIsNone(made.duel("O1", "O2"))

    def test_counts_the_test_images_whatever_the_folder_is_called(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log.txt"
            group = levels.Group("net", 1, [types.SimpleNamespace(first=types.SimpleNamespace(folder=log.parent))])
            for path in ("runs/a", "my test runs/a", "7 test images, of mine/a"):
                log.write_text(f"run folder {path}, 240 training and 60 test images, 1 thread\nepoch 1/1\n", encoding="utf-8")
                self.assertEqual(group.tested, 60)

    def test_memory_of_a_level_is_of_the_runs_that_did_not_diverge(self):
        def cell(diverged, state):
            memory = {"weights": 100, "state": state}
            return types.SimpleNamespace(diverged=diverged, memory=memory, resident=sum(memory.values()))

        level = levels.Level("O2", [cell(False, 50), cell(True, 0), cell(False, 50)])
        self.assertEqual((level.resident, level.memory("state")), (150, 50))
        ruined = levels.Level("O3", [cell(True, 0)])
        self.assertEqual((ruined.is_measured, ruined.resident), (False, 100))

    def test_reads_the_times_of_a_group_and_no_others(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "times.csv").write_text("config,processes,level,rounds,step_ms,low_ms,high_ms\nnet,1,O1,8,4,3,5\nnet,2,O1,8,9,9,9\n")
            (folder / "ratios.csv").write_text("config,processes,level,other,rounds,ratio,low,high,order\n"
                                               "net,1,O1,O0,8,0.5,0,inf,unknown\nother,1,O1,O0,8,0.1,0.1,0.1,faster\n")
            (folder / "rounds.csv").write_text("config,processes,round,level,step_ms,forward_ms,backward_ms,optimizer_ms\n"
                                               "net,1,0,O1,4,1,2,1\nnet,1,1,O1,8,3,4,1\n")
            group = levels.Group("net", 1, [levels.Level("O0"), levels.Level("O1")])
            take_times(folder, group)
            o0, o1 = group.levels
            self.assertEqual((o1.time, o1.time_range, o1.timing.parts), (4.0, (3.0, 5.0), {"forward": 2, "backward": 3, "optimizer": 1}))
            ratio = group.ratio(o1, o0)
            self.assertEqual((ratio.rounds, ratio.median, ratio.low, ratio.high, ratio.order), (8, 0.5, 0.0, math.inf, "unknown"))
            self.assertEqual(group.ratio(o0, o1).order, "unknown")  # not in the table
            self.assertTrue(math.isnan(o0.time))

    def test_reads_a_program_that_wrote_steps_alone(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            cell = own_cells.OwnCell(folder, "a", "program", "O3", 0, 1)
            rows = "".join(f"{step},{3 - step / 10},2.5\n" for step in range(1, 21))
            (folder / "steps.csv").write_text("step,loss,step_ms\n" + rows)
            self.assertEqual((cell.measure, round(cell.quality, 9)), (TRAINING_LOSS, 1.05))  # of the last two steps
            self.assertEqual((cell.diverged, cell.skipped, cell.training_seconds, cell.memory), (False, 0, 0.05, {}))
            self.assertTrue(cell.loses_small_updates)
            (folder / "result.csv").write_text("test_accuracy,test_loss\n0.5,\n")
            again = own_cells.OwnCell(folder, "a", "program", "O3", 0, 1)
            self.assertEqual((again.measure, again.quality), (ACCURACY, 0.5))
            (folder / "result.csv").write_text("test_accuracy,test_loss\n,nan\n")
            self.assertTrue(own_cells.OwnCell(folder, "a", "program", "O3", 0, 1).diverged)
            (folder / "result.csv").unlink()
            (folder / "steps.csv").write_text("step,loss,step_ms,skipped\n10,1,2,False\n20,2,2,True\n30,nan,2,1\n")
            ruined = own_cells.OwnCell(folder, "a", "program", "O3", 0, 1)
            self.assertEqual((ruined.diverged, ruined.skipped_steps), (True, [2, 3]))
            self.assertTrue(math.isnan(levels.Level("O3", [again, ruined]).spread))
            (folder / "steps.csv").write_text("step,loss,step_ms,skipped\n1,1,2,yes\n")
            with self.assertRaisesRegex(cells.Mistake, "has 'yes' in the column skipped"):
                own_cells.OwnCell(folder, "a", "program", "O3", 0, 1).skipped_steps.count(1)

    def test_reads_a_program_that_has_a_folder_run_and_bytes_with_fractions(self):
        with tempfile.TemporaryDirectory() as name:
            folder, cell = pathlib.Path(name), pathlib.Path(name) / "cells/a"
            (cell / "run").mkdir(parents=True)
            (folder / "cells.csv").write_text("cell,config,level,seed,processes,reference,finished\na,program,O0,0,1,a,1\n")
            (cell / "steps.csv").write_text("step,loss,step_ms\n1,2,3\n")
            (cell / "memory.csv").write_text("held,peak\n100.0,1.5e3\n")
            (group,), missing = levels.read_groups(folder)
            self.assertEqual((group.is_own_program, missing), (True, []))
            self.assertEqual(group.reference.first.memory, {"held": 100, "peak": 1500})

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
