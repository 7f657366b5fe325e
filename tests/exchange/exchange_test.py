"""Training that goes on in the other language: C++ and Python's torch.optim exchange training states.

Twelve pairs of a model and an optimizer take 6 steps: in C++ alone, in Python alone, and 3 here and then 3 there. Where both run the
same kernels all four have the same bits; elsewhere they agree within the bounds of `bounds`, and a state that has only been through the
other side and back has lost no bit. EXCHANGE_PROGRAM: exchange_program.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import safetensors
import safetensors.torch
import torch

from module import training_state
from pairs import PAIRS, Training

PROGRAM = os.environ["EXCHANGE_PROGRAM"]
HALF, WHOLE = 3, 6
LEVELS = ["O0", "O1", "O2", "O3", "O4", "O5"]
U = 2.0**-24  # the largest relative error of an operation in float32


class Content:
    """What a file holds: the tensors, and the JSON text without the loss scale."""

    def __init__(self, path):
        with safetensors.safe_open(path, framework="pt") as file:
            self.state = json.loads(file.metadata()["training_state"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.scaler = self.state.pop("scaler")


def bounds(name, lr, weight, steps=WHOLE, gradient=2.1):
    """How far results of one formula may differ after `steps` steps, with gradients, also after weight decay, of up to `gradient`.

    A state is a sum or an average of `steps` terms of up to G, the gradient or its square. A side makes at most 4 roundings a step,
    of values of up to steps * G: together both sides differ by 8 * steps^2 * U * G. A step adds to a weight lr times a quotient q of
    such states, or a state. Adam's |q| is at most sqrt(steps), with an error of 8 * steps * sqrt(steps) * U / (1 - beta1) from the
    mean, with beta1 up to 0.9, and less from the mean of squares, all of whose terms are positive; the others' errors are smaller. Two
    roundings on each side are the weight's own.
    """
    if name.startswith("model/"):
        return steps * (4 * U * weight + 100 * steps * steps**0.5 * U * lr)
    return 8 * steps**2 * U * (gradient if name.endswith(("momentum_buffer", "exp_avg", "grad_avg")) else gradient**2)


class Exchange(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cpp(*(f"begin:{name}:plain:{name}.begin" for name in PAIRS))
        cls.cpp(*(f"train:{name}:plain:{name}.begin:0:{HALF}:{name}.cpp_half" for name in PAIRS))
        cls.cpp(*(f"train:{name}:plain:{name}.begin:0:{WHOLE}:{name}.cpp" for name in PAIRS))
        for name in PAIRS:
            cls.python(name, f"{name}.begin", 0, HALF, f"{name}.python_half")
            cls.python(name, f"{name}.begin", 0, WHOLE, f"{name}.python")

    @classmethod
    def path(cls, file):
        return pathlib.Path(cls.folder.name, file)

    @classmethod
    def cpp(cls, *jobs):
        result = subprocess.run([PROGRAM, cls.folder.name, *jobs], capture_output=True, text=True)
        if result.returncode != 0:
            raise AssertionError(f"{jobs}: {result.stderr}")
        return result.stdout

    @classmethod
    def python(cls, name, source, begin, end, target, mode="plain"):
        training = Training(name, mode)
        training_state.load(cls.path(source), training.model, training.optimizer, training.scaler)
        training.run(safetensors.torch.load_file(cls.path(f"{name}.gradients")), begin, end)
        training_state.save(cls.path(target), training.model, training.optimizer, training.scaler)

    def assert_same(self, first, second):
        """Also the options, the steps and the order of the parameters."""
        one, other = Content(self.path(first)), Content(self.path(second))
        self.assertEqual(one.state, other.state, (first, second))
        self.assertEqual(one.tensors.keys(), other.tensors.keys(), (first, second))
        for name, tensor in one.tensors.items():
            same = torch.equal(tensor.view(-1).view(torch.uint8), other.tensors[name].view(-1).view(torch.uint8))
            self.assertTrue(same, f"{first} and {second} differ in {name}")

    def assert_agree(self, pair, first, second):
        """The same bits where the kernels are the same, otherwise within the bounds."""
        _, _, has_same_kernels = PAIRS[pair]
        self.assert_same(first, second) if has_same_kernels else self.assert_close(pair, first, second)

    def assert_close(self, pair, first, second):
        one, other = Content(self.path(first)), Content(self.path(second))
        self.assertEqual(one.tensors.keys(), other.tensors.keys(), (first, second))
        for name, excess in self.excesses(one, other).items():
            self.assertLessEqual(excess, 0, f"{pair}: {first} and {second} differ in {name}")
        if pair != "fused_adagrad":  # which counts no steps
            self.assertEqual(one.state, other.state, (first, second))

    @staticmethod
    def excesses(one, other):
        """By how much each tensor differs more than it may."""
        lr = max(group["lr"] for group in one.state["optimizer"]["param_groups"])
        excess = {}
        for name, tensor in one.tensors.items():
            difference = (tensor - other.tensors[name]).abs().max().item()
            excess[name] = difference - bounds(name, lr, tensor.abs().max().item())
        return excess

    def test_the_pairs_are_ten_and_train(self):
        self.assertGreaterEqual(len(PAIRS), 10)
        for name in PAIRS:
            begin, end = Content(self.path(f"{name}.begin")), Content(self.path(f"{name}.cpp"))
            for key in end.tensors:
                if key.startswith("model/") and "running" not in key and "num_batches" not in key:
                    self.assertFalse(torch.equal(begin.tensors[key], end.tensors[key]), key)

    def test_steps_in_cpp_then_in_python(self):
        for name in PAIRS:
            self.python(name, f"{name}.cpp_half", HALF, WHOLE, f"{name}.cpp_python")
            for uninterrupted in f"{name}.cpp", f"{name}.python":
                self.assert_agree(name, f"{name}.cpp_python", uninterrupted)

    def test_steps_in_python_then_in_cpp(self):
        self.cpp(*(f"train:{name}:plain:{name}.python_half:{HALF}:{WHOLE}:{name}.python_cpp" for name in PAIRS))
        for name in PAIRS:
            for uninterrupted in f"{name}.cpp", f"{name}.python":
                self.assert_agree(name, f"{name}.python_cpp", uninterrupted)

    def test_a_state_that_has_been_on_the_other_side_has_lost_nothing(self):
        for name in PAIRS:
            self.python(name, f"{name}.cpp_half", 0, 0, f"{name}.through_python")
            self.assert_same(f"{name}.through_python", f"{name}.cpp_half")
        self.cpp(*(f"train:{name}:plain:{name}.through_python:{HALF}:{WHOLE}:{name}.cpp_again" for name in PAIRS))
        self.cpp(*(f"train:{name}:plain:{name}.python_half:0:0:{name}.through_cpp" for name in PAIRS))
        for name in PAIRS:
            self.assert_same(f"{name}.cpp_again", f"{name}.cpp")
            if name != "fused_adagrad":
                self.assert_same(f"{name}.through_cpp", f"{name}.python_half")
                self.python(name, f"{name}.through_cpp", HALF, WHOLE, f"{name}.python_again")
                self.assert_same(f"{name}.python_again", f"{name}.python")

    def test_the_bounds_are_exceeded_where_the_states_are_left_behind(self):
        for name in PAIRS:
            if name == "sgd":  # which has no state
                continue
            training = Training(name)
            training.model.load_state_dict(training_state.read(self.path(f"{name}.cpp_half"))["model"])
            training.run(safetensors.torch.load_file(self.path(f"{name}.gradients")), HALF, WHOLE)
            training_state.save(self.path(f"{name}.forgetful"), training.model, training.optimizer)
            excess = self.excesses(Content(self.path(f"{name}.forgetful")), Content(self.path(f"{name}.cpp")))
            wrong = [key for key, value in excess.items() if value > 0]
            parameters = [key for key, _ in training.model.named_parameters()]
            self.assertLessEqual({f"model/{key}" for key in parameters}, set(wrong), name)

    def test_every_level_with_float32_values_has_the_states_of_plain_training(self):
        for level in LEVELS:
            if level == "O3":
                continue
            self.cpp(*(f"train:{name}:{level}:{name}.begin:0:{HALF}:{name}.{level}" for name in PAIRS))
            self.cpp(*(f"train:{name}:{level}:{name}.python_half:{HALF}:{WHOLE}:{name}.{level}_end" for name in PAIRS))
            self.cpp(*(f"train:{name}:plain:{name}.python_half:{HALF}:{WHOLE}:{name}.plain_end" for name in PAIRS))
            for name in PAIRS:
                self.assert_same(f"{name}.{level}", f"{name}.cpp_half")
                self.assert_same(f"{name}.{level}_end", f"{name}.plain_end")

    def test_o3_goes_on_from_the_16_bit_values_that_went_through_python(self):
        names = [name for name in PAIRS if "ada" not in name]  # their eps is 0 in float16
        self.cpp(*(f"train:{name}:O3:{name}.begin:0:{HALF}:{name}.O3" for name in names))
        self.cpp(*(f"train:{name}:O3:{name}.O3:{HALF}:{WHOLE}:{name}.O3_cpp" for name in names))
        for name in names:
            self.python(name, f"{name}.O3", 0, 0, f"{name}.O3_through")
            self.assert_same(f"{name}.O3_through", f"{name}.O3")
        self.cpp(*(f"train:{name}:O3:{name}.O3_through:{HALF}:{WHOLE}:{name}.O3_end" for name in names))
        for name in names:
            self.assert_same(f"{name}.O3_end", f"{name}.O3_cpp")

    def test_a_grad_scaler_goes_on_both_ways(self):
        name = "sgd_nesterov"
        self.cpp(f"begin:{name}:scaler:scaled.begin")
        self.cpp(*(f"train:{name}:scaler:scaled.begin:0:{end}:scaled.cpp{end}" for end in (HALF, WHOLE)))
        for end in HALF, WHOLE:
            self.python(name, "scaled.begin", 0, end, f"scaled.python{end}", "scaler")
        self.python(name, f"scaled.cpp{HALF}", HALF, WHOLE, "scaled.cpp_python", "scaler")
        self.cpp(f"train:{name}:scaler:scaled.python{HALF}:{HALF}:{WHOLE}:scaled.python_cpp")
        end = Content(self.path(f"scaled.cpp{WHOLE}"))
        expected = {"scale": 512.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2, "_growth_tracker": 1}
        self.assertEqual(end.scaler, expected)
        for file in f"scaled.python{WHOLE}", "scaled.cpp_python", "scaled.python_cpp":
            self.assert_same(file, f"scaled.cpp{WHOLE}")
            self.assertEqual(Content(self.path(file)).scaler, expected, file)

    def test_amps_loss_scale_goes_to_a_grad_scaler_and_back(self):
        name = "sgd"
        self.cpp(f"train:{name}:O2:{name}.begin:0:{HALF}:amp.cpp_half")
        first = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3}
        self.assertEqual(Content(self.path("amp.cpp_half")).scaler, first)
        self.python(name, "amp.cpp_half", HALF, HALF + 1, "amp.python", "scaler")
        self.assertEqual(Content(self.path("amp.python")).scaler, {**first, "_growth_tracker": 4})
        self.cpp(f"train:{name}:O2:amp.python:{HALF + 1}:{WHOLE}:amp.cpp")
        self.assertEqual(Content(self.path("amp.cpp")).scaler, {**first, "_growth_tracker": 6})

    def test_what_happens_to_a_loss_scale_that_does_not_go_on_is_noted(self):
        output = self.cpp("train:sgd:O2:sgd.begin:0:0:out")
        self.assertIn("The file has no loss scale; the dynamic loss scale stays as it is.", output)
        self.cpp("begin:sgd:scaler:scaled.only")
        output = self.cpp("train:sgd:plain:scaled.only:0:0:out", "train:sgd:O4:scaled.only:0:0:out")
        self.assertEqual(output.count("The file's loss scale was not loaded"), 2)


if __name__ == "__main__":
    unittest.main()
