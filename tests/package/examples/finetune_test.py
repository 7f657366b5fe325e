"""Python's weights are loaded bit for bit, do not change while they are frozen, and train once they are not."""
import sys

import numpy
from safetensors.numpy import load_file, save_file

from support import EXAMPLE, Example, main, numbers


def rounded(name, weight):
    """The dtypes at O2: batch norms in FP32, all other weights in FP16."""
    return weight if "norm" in name else weight.astype(numpy.float16).astype(numpy.float32)


class Finetune(Example):
    def test_frozen_weights_stay_as_python_made_them(self):
        self.command(sys.executable, "-W", "ignore", EXAMPLE / "pretrain.py", "digits.csv", "backbone.safetensors")
        output = self.program("finetune", "backbone.safetensors", "digits.csv", "O2", 2)
        accuracies = {phase: numbers(rf"(?m)^{phase}, epoch \d: accuracy ([\d.]+)", output) for phase in ("frozen", "unfrozen")}
        python, frozen, finetuned = (load_file(self.folder / f"{name}.safetensors") for name in ("backbone", "frozen", "finetuned"))
        moved = set()
        for name, weight in python.items():
            name_here = f"backbone.{name}"
            self.assertTrue(numpy.array_equal(frozen[name_here], rounded(name, weight)), name)
            if not numpy.array_equal(finetuned[name_here], frozen[name_here]):
                moved.add(name)
        self.assertEqual(moved, set(python))
        self.assertFalse(numpy.array_equal(finetuned["head.weight"], frozen["head.weight"]))
        for found in accuracies.values():
            self.assert_better_than_chance(found[-1])
        self.assertGreater(accuracies["unfrozen"][-1], accuracies["frozen"][-1])

    def test_weights_of_another_network_are_an_error(self):
        save_file({"conv1.weight": numpy.zeros((16, 1, 3, 3), numpy.float32)}, self.folder / "other.safetensors")
        self.assertIn("'conv2.weight'", self.program("finetune", "other.safetensors", code=1))

    def test_bad_arguments_show_the_usage(self):
        self.assertIn("usage: finetune backbone.safetensors", self.program("finetune", code=1))
        self.assertIn("usage: pretrain.py digits.csv", self.command(sys.executable, "-W", "ignore", EXAMPLE / "pretrain.py", code=1))
        self.assert_epochs_are_checked("finetune", "backbone.safetensors", "digits.csv", "O2")


main()
