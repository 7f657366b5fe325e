"""training_state.load refuses what does not fit, and what it would not write, before it changes anything."""

import contextlib
import copy
import io
import json
import os
import pathlib
import re
import tempfile
import unittest

import safetensors
import safetensors.torch
import torch

from module import training_state
from pairs import PAIRS, Training

NOTHING_CHANGED = "was not loaded, and nothing was changed: "


def gradients_of(training):
    return {f"{step}/{name}": torch.ones_like(p) for step in range(3) for name, p in training.model.named_parameters()}


def bytes_of(training):
    """Everything that a load may change."""
    parts = training.model.state_dict(), training.optimizer.state_dict(), training.scaler.state_dict() if training.scaler else None
    text = io.BytesIO()
    torch.save(parts, text)
    return text.getvalue()


def content_of(path):
    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name).tolist() for name in file.keys()}


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "state")
        self.damaged = pathlib.Path(folder.name, "damaged")
        torch.manual_seed(4)
        training = self.trained("adam", "scaler", 2)
        training_state.save(self.path, training.model, training.optimizer, training.scaler)

    @staticmethod
    def trained(pair, mode, steps=1):
        training = Training(pair, mode)
        training.run(gradients_of(training), 0, steps)
        return training

    def test_saving_touches_no_other_file_and_follows_links(self):
        training = self.trained("adam", "scaler")
        other, link = self.path.with_name(f"state.{os.getpid()}"), self.path.with_name("link")
        other.write_text("another file")
        link.symlink_to(self.path.name)
        before = content_of(self.path)
        training_state.save(link, training.model, training.optimizer, training.scaler)
        self.assertTrue(link.is_symlink())
        self.assertNotEqual(content_of(self.path), before)
        self.assertEqual(other.read_text(), "another file")
        self.assertEqual(sorted(os.listdir(self.path.parent)), sorted(["link", "state", other.name]))

    def rewrite(self, damage):
        with safetensors.safe_open(self.path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            state = json.loads(file.metadata()["training_state"])
        damage(tensors, state)
        text = state if isinstance(state, str) else json.dumps(state)
        safetensors.torch.save_file(tensors, self.damaged, metadata={"training_state": text})

    def refused(self, *texts, pair="adam", mode="scaler"):
        training = self.trained(pair, mode)
        before = bytes_of(training)
        with self.assertRaises(ValueError) as caught:
            training_state.load(self.damaged, training.model, training.optimizer, training.scaler)
        for text in texts:
            self.assertIn(text, str(caught.exception))
        self.assertEqual(before, bytes_of(training), texts)

    def refused_after(self, damage, *texts, **run):
        self.rewrite(damage)
        self.refused(NOTHING_CHANGED, *texts, **run)

    def refused_with(self, path, value, *texts, **run):
        """With a value of the JSON text, by its path."""

        def damage(_, state):
            *parents, key = path.split("/")
            for parent in parents:
                state = state[int(parent) if parent.isdigit() and isinstance(state, list) else parent]
            state[int(key) if isinstance(state, list) else key] = value

        self.refused_after(damage, *texts, **run)

    def refused_without(self, path, *texts):
        def damage(_, state):
            *parents, key = path.split("/")
            for parent in parents:
                state = state[int(parent) if isinstance(state, list) else parent]
            del state[key]

        self.refused_after(damage, *texts)

    def test_truncated_files_and_huge_headers(self):
        whole = self.path.read_bytes()
        huge = [(1 << 40).to_bytes(8, "little") + whole[8:], b"\xff" * 8 + whole[8:]]
        for content in [b"", whole[:7], whole[:100], whole[: len(whole) // 2], whole[:-1], *huge]:
            self.damaged.write_bytes(content)
            self.refused(f"cannot read '{self.damaged}'", "It was cut short, or it is not a safetensors file")

    def test_other_files(self):
        safetensors.torch.save_file({"a": torch.zeros(1)}, self.damaged)
        self.refused(NOTHING_CHANGED, "it is no training state of apex_cpp")
        for text in "", "{", "[1]", "null", "3", "[" * 100000, '{"version": NaN}':
            safetensors.torch.save_file({"a": torch.zeros(1)}, self.damaged, metadata={"training_state": text})
            self.refused(NOTHING_CHANGED, "Write the file again")

    def test_other_shapes_and_dtypes(self):
        def change(name, tensor):
            return lambda tensors, _: tensors.update({name: tensor})

        self.refused_after(change("model/first.weight", torch.zeros(5, 9)), "'first.weight' is torch.float32 of shape [5, 9]", "[9, 5]")
        self.refused_after(change("optimizer/state/1/exp_avg", torch.zeros(1)), "'exp_avg' of parameter 1, 'first.bias'", "shape [9]")
        for dtype in torch.int64, torch.float16, torch.float64:
            expected = "expected torch.float32 of shape [2]"
            self.refused_after(change("model/second.bias", torch.zeros(2, dtype=dtype)), f"'second.bias' is {dtype}", expected)
            self.refused_after(change("optimizer/state/3/exp_avg_sq", torch.zeros(2, dtype=dtype)), f"'second.bias', is {dtype}", expected)

    def test_missing_and_unknown_tensors(self):
        def drop(name):
            return lambda tensors, _: tensors.pop(name)

        def add(name):
            return lambda tensors, _: tensors.update({name: torch.zeros(2)})

        self.refused_after(drop("model/first.bias"), "the model's 'first.bias' is missing")
        self.refused_after(drop("optimizer/state/2/exp_avg_sq"), "'second.weight', has no 'exp_avg_sq'")
        self.refused_after(drop("optimizer/state/2/max_exp_avg_sq"), "has no 'max_exp_avg_sq'")
        self.refused_after(add("model/third.bias"), "its 'third.bias' is not in this model")
        self.refused_after(add("optimizer/state/0/momentum_buffer"), "is no state of torch.optim.Adam, which has exp_avg, exp_avg_sq")
        self.refused_after(add("optimizer/state/4/exp_avg"), "it has a state of the parameter '4', and only 4 parameters")
        for position in "-1", "x", "", "9" * 20, "1 ", "\u0661":
            self.refused_after(add(f"optimizer/state/{position}/exp_avg"), "it has a state of the parameter")
        self.refused_after(add("gradients/0"), "'gradients/0' belongs neither to a model nor to an optimizer")

    def test_missing_and_unknown_entries(self):
        for path in "version", "optimizer", "scaler", "optimizer/class", "optimizer/params", "optimizer/param_groups", "optimizer/state":
            self.refused_without(path, f"{path}'", "Write the file again")
        for key in "lr", "betas", "maximize", "params":
            self.refused_without(f"optimizer/param_groups/0/{key}", f"it has no 'optimizer/param_groups/0/{key}'")
        self.refused_without("optimizer/state/1", "it has no 'optimizer/state/1/step'")
        self.refused_without("scaler/scale", "it has no 'scaler/scale'")
        for path in "other", "optimizer/other", "optimizer/param_groups/0/momentum", "optimizer/state/0/other", "scaler/other":
            self.refused_with(path, 1, f"has the unknown entry '{path.split('/')[-1]}'")
        self.refused_with("version", 2, "it is a training state of version 2, this apex_cpp reads version 1")

    def test_steps(self):
        for step in -1, 1.5, "1", None, True, 1e300, [1]:
            self.refused_with("optimizer/state/2/step", step, "its 'optimizer/state/2/step' is ", "expected a whole number of at least 0")
        self.refused_with("optimizer/state/4", {"step": 1}, "it has a state of the parameter '4'")

    def test_options(self):
        for lr in -0.1, "nan", None, [1], True, 10**400:
            self.refused_with("optimizer/param_groups/0/lr", lr, "its 'optimizer/param_groups/0/lr' is ", "expected a ")
        for lr in float("nan"), float("inf"):
            self.refused_with("optimizer/param_groups/0/lr", lr, "in place of a finite number")
        for betas in 0.9, [0.9], [0.9, 1.0], [-0.1, 0.9]:
            self.refused_with("optimizer/param_groups/0/betas", betas, "its 'optimizer/param_groups/0/betas' is ")
        self.refused_with("optimizer/param_groups/0/amsgrad", 1, "expected true or false")

    def test_scales(self):
        for scale in 0, -1, 1e39, 1e-50, "nan", None, True:
            self.refused_with("scaler/scale", scale, "its 'scaler/scale' is ", "expected a ")
        self.refused_with("scaler/scale", float("nan"), "it", "NaN in place of a finite number")
        self.refused_with("scaler/growth_factor", 1, "its 'scaler/growth_factor' is 1, expected a number above 1")
        self.refused_with("scaler/backoff_factor", 1.5, "expected a number between 0 and 1")
        self.refused_with("scaler/growth_interval", 0, "its 'scaler/growth_interval' is 0, expected a whole number of at least 1")
        self.refused_with("scaler/_growth_tracker", -3, "its 'scaler/_growth_tracker' is -3")
        self.refused_with("scaler/_growth_tracker", 3000000000, "expected a whole number below 2147483648")
        self.refused_with("scaler", None, "it has no loss scale")

    def test_other_parameters_and_classes(self):
        names = ["first.bias", "first.weight", "second.weight", "second.bias"]
        self.refused_with("optimizer/params", names, "its optimizer has the parameters ['first.bias'", "in the same groups and order")
        self.refused_with("optimizer/params", ["first.weight"], "expected numbers below 1")
        self.refused_with("optimizer/params/0", None, "its 'optimizer/params' is ")
        self.refused_with("optimizer/param_groups/0/params", [0, 1, 3, 2], "its parameter groups are [[0, 1, 3, 2]], this optimizer's [[0, 1, 2, 3]]")
        self.refused_with("optimizer/class", "Lion", "its 'optimizer/class' is Lion, expected SGD, Adam")
        self.refused_after(lambda *_: None, "it holds the state of a torch.optim.Adam, this optimizer is a torch.optim.SGD", pair="sgd_nesterov")


class Saving(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "state")

    def refused(self, text, model, optimizer):
        with self.assertRaises(ValueError) as caught:
            training_state.save(self.path, model, optimizer)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(os.listdir(self.path.parent), [])

    def test_what_a_state_cannot_hold_is_not_written(self):
        training = Training("sgd")
        self.refused("a training state holds the optimizers SGD", training.model, torch.optim.Adadelta(training.model.parameters()))
        self.refused("parameter 0 of the optimizer is not in the model", Training("adam").model, training.optimizer)
        training.optimizer.param_groups[0]["lr"] = float("nan")
        self.refused("in place of a finite number", training.model, training.optimizer)

    def test_options_that_only_python_has_stay(self):
        training = Training("adamw")
        training_state.save(self.path, training.model, training.optimizer)
        other = Training("adamw")
        for group in other.optimizer.param_groups:
            group.update(foreach=True, initial_lr=3.0, lr=7.0)
        training_state.load(self.path, other.model, other.optimizer)
        self.assertEqual([group["lr"] for group in other.optimizer.param_groups], [0.01, 0.005])
        self.assertEqual([(group["foreach"], group["initial_lr"]) for group in other.optimizer.param_groups], [(True, 3.0)] * 2)

    def test_16_bit_models_go_on_from_float32(self):
        training = Training("sgd_nesterov")
        training.run(gradients_of(training), 0, 2)
        training_state.save(self.path, training.model, training.optimizer)
        other = Training("sgd_nesterov")
        other.model.bfloat16()
        training_state.load(self.path, other.model, other.optimizer)
        expected = {name: tensor.bfloat16() for name, tensor in training.model.state_dict().items()}
        for name, tensor in other.model.state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        training_state.save(self.path, other.model, other.optimizer)
        self.assertEqual({tensor.dtype for tensor in training_state.read(self.path)["model"].values()}, {torch.float32})

    def test_the_block_of_the_page_runs(self):
        page = (pathlib.Path(__file__).parents[2] / "apex_cpp/porting.md").read_text()
        (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
        training = Hostile.trained("adam", "scaler")
        with contextlib.chdir(self.path.parent):
            exec(block, {"model": training.model, "optimizer": training.optimizer, "scaler": training.scaler})
            self.assertEqual(os.listdir(), ["state.safetensors"])

    def test_read_returns_state_dicts_that_torch_takes(self):
        for name in PAIRS:
            training = Training(name)
            training.run(gradients_of(training), 0, 2)
            training_state.save(self.path, training.model, training.optimizer)
            state, other = training_state.read(self.path), Training(name)
            other.model.load_state_dict(state["model"])
            here = copy.deepcopy(other.optimizer.state_dict())
            for group, options in zip(here["param_groups"], state["optimizer"]["param_groups"], strict=True):
                group.update(options)
            other.optimizer.load_state_dict({**here, "state": state["optimizer"]["state"]})
            again = self.path.with_name("again")
            training_state.save(again, other.model, other.optimizer)
            self.assertEqual(content_of(again), content_of(self.path), name)


if __name__ == "__main__":
    unittest.main()
