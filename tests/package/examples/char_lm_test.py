"""The language model learns more than character frequencies, follows its learning-rate schedule, and writes in the text's alphabet."""
import collections
import math
import os
import pathlib
import re
import unittest

from support import PROGRAMS, Example, main, numbers

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
TINY = ("--layers", 2, "--width", 64, "--heads", 2, "--context", 32, "--dropout", 0)


class CharLm(Example):
    def test_it_learns_the_text(self):
        steps, warmup, lr, min_lr, sample = 60, 10, 4e-3, 5e-4, 200
        output = self.program("char_lm", "--layers", 2, "--width", 192, "--heads", 4, "--context", 32, "--dropout", 0, "--batch", 16,
                              "--steps", steps, "--warmup", warmup, "--lr", lr, "--min-lr", min_lr, "--sample", sample, "--report", 5)
        text = TEXT.read_text("latin-1")
        train, validation = text[:len(text) - len(text) // 10], text[-(len(text) // 10):]
        counts = collections.Counter(train)

        # The best loss from character frequencies alone on the validation part; new characters count as if seen once.
        frequencies = -sum(math.log(max(counts[c], 1) / len(train)) for c in validation) / len(validation)
        # 0.3 is what a model must have learned beyond them; no rounding stands behind it.
        self.assertLess(numbers(r"validation ([\d.]+)", output)[-1], frequencies - 0.3)

        guessing = math.log(len(set(text)))
        self.check_schedule(output, steps, warmup, lr, min_lr)
        self.check_sample(output, sample, set(text), lambda c: -math.log(max(counts[c], 1) / len(train)), guessing)

    def check_schedule(self, output, steps, warmup, lr, min_lr):
        reported = dict(zip(numbers(r"step (\d+): train", output), numbers(r"lr ([\d.e+-]+)", output)))
        self.assertEqual(max(reported), steps)
        self.assertLess(min(reported), warmup)
        for step, rate in reported.items():
            share = (step - 1 - warmup) / (steps - warmup)
            cosine = min_lr + (lr - min_lr) * (1 + math.cos(math.pi * share)) / 2
            self.assertAlmostEqual(rate, lr * step / warmup if step <= warmup else cosine, delta=rate / 100)  # of three digits

    def check_sample(self, output, count, alphabet, surprise, guessing):
        written = output.split("characters:\n")[1]
        self.assertEqual(written[-1], "\n")
        written = written[:-1]
        self.assertEqual(len(written), count)
        self.assertLessEqual(set(written), alphabet)
        # Characters drawn uniformly would have an average loss above `guessing`.
        self.assertLess(sum(map(surprise, written)) / count, guessing)

    def test_accumulation_equals_a_larger_batch(self):
        def losses(batch, accumulation):
            output = self.program("char_lm", *TINY, "--opt-level", "O0", "--steps", 5, "--report", 1, "--sample", 0, "--batch",
                                  batch, "--accumulation", accumulation)
            return numbers(r"validation ([\d.]+)", output)[0], numbers(r"train ([\d.]+)", output)

        (untrained, whole), (_, parts) = losses(8, 1), losses(4, 2)
        # The same characters, in sums of another order. A sum over 8 * 32 of them is off by 256 * 2^-24 = 1.5e-5 of it at most, and a step
        # by as much of what it lowers the loss, which is below 4.4 in all: 7e-5 on either side. Printing four digits adds 5e-5.
        for a, b in zip(whole, parts):
            self.assertAlmostEqual(a, b, delta=2 * (7e-5 + 5e-5))
        self.assertLess(whole[-1], whole[0])
        # Weights begin at a deviation of 0.02, and are tied: the logit of the character that was just read is 64 * 0.02^2 over the
        # deviation of an embedding and a position together; all others are smaller, and the loss is nearly that of guessing.
        guessing = math.log(len(set(TEXT.read_text("latin-1"))))
        self.assertAlmostEqual(untrained, guessing, delta=64 * 0.02**2 / (0.02 * math.sqrt(2)))

    @unittest.skipUnless("COMPARE" in os.environ, "this build has no tools/compare")
    def test_its_grid_compares_levels(self):
        grid = pathlib.Path(os.environ["GRID"]).read_text()
        for pattern, instead in ((r"build: .*\n", ""), (r"\S+/char_lm ", f"{PROGRAMS / 'char_lm'} "), (r"(?<=levels: ).*(?={)", "[O0, "),
                                 (r"(?<=seeds: ).*", "[0]"), (r"(?<=steps: ).*", "6"), (r"(?<=rounds: ).*", "2")):
            grid, count = re.subn(pattern, instead, grid)
            self.assertEqual(count, 1, pattern)
        (self.folder / "grid.yaml").write_text(grid)
        self.command(os.environ["COMPARE"], "grid.yaml", "--out", "out")
        plain, without_masters = (self.folder / "out/cells" / f"program-{level}-seed0" for level in ("O0", "O5_master_weights_false"))
        rows = [(folder / "parameters.csv").read_text().splitlines() for folder in (plain, without_masters)]
        self.assertEqual({line.split(",", 2)[2] for line in rows[0][1:]}, {"Float,Float,"})
        self.assertEqual({line.split(",", 2)[2] for line in rows[1][1:]}, {"BFloat16,BFloat16,"})
        losses = [float((folder / "result.csv").read_text().splitlines()[1].split(",")[1]) for folder in (plain, without_masters)]
        self.assertNotEqual(*losses)
        # In six steps the loss falls a little below that of guessing. Rounded to BF16, by 2^-8 at most, it must take more than half of this
        # way, too: weights that lost their steps would stay where they began.
        guessing = math.log(len(set(TEXT.read_text("latin-1"))))
        self.assertLess(losses[0], guessing)
        self.assertLess(losses[1], (losses[0] + guessing) / 2)
        self.assertFalse((self.folder / "char_lm.safetensors").exists())

    def test_bad_arguments_are_errors(self):
        self.assertIn("O9", self.program("char_lm", "--opt-level", "O9", *TINY, code=1))
        (self.folder / "short.txt").write_text("too short")
        self.assertIn("too few for a context of 32", self.program("char_lm", "short.txt", *TINY, code=1))


main()
