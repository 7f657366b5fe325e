"""What one run of a comparison left as files: a cell."""
import csv
import math
import pathlib
import re
import statistics
from dataclasses import dataclass
from functools import cached_property

# Also of what an optimizer keeps in place of masters: remainders, or nothing.
BYTES = {"": 0, "Half": 2, "BFloat16": 2, "Float": 4, "Double": 8, "Short": 2, "Char": 1, "stochastic": 0}
KINDS = ("output", "gradient", "weight gradient")


@dataclass(frozen=True)
class Measure:
    """What a level is judged by."""

    name: str
    more_is_better: bool


ACCURACY, TEST_LOSS, TRAINING_LOSS = Measure("test accuracy", True), Measure("test loss", False), Measure("training loss", False)


class Mistake(Exception):
    """Of whoever called the program."""


def rows_of(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error


def mean(values):
    return statistics.fmean(values) if values else float("nan")


def deviation(values):
    """NaN where a value is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass
class Cell:
    """One run: a level with one seed."""

    folder: pathlib.Path
    name: str
    config: str
    level: str
    seed: int
    processes: int

    def table(self, name):
        return rows_of(self.folder / f"{name}.csv")

    def has(self, name):
        return (self.folder / f"{name}.csv").exists()

    @cached_property
    def epochs(self):
        return self.table("run/metrics")

    @cached_property
    def steps(self):
        return self.table("run/steps")

    @property
    def diverged(self):
        return self.epochs[-1]["status"] == "diverged"

    @property
    def measure(self):
        return ACCURACY

    @property
    def quality(self):
        """By its measure."""
        return float(self.epochs[-1]["test_accuracy"])

    @property
    def losses(self):
        return [float(step["loss"]) for step in self.steps]

    @property
    def loss_scales(self):
        return [float(step["loss_scale"]) for step in self.steps]

    @property
    def skipped_steps(self):
        """Their positions among the steps, from 1."""
        return [position for position, step in enumerate(self.steps, 1) if self.was_skipped(step)]

    def was_skipped(self, step):
        known = {"": False, "0": False, "false": False, "1": True, "true": True}
        value = (step.get("skipped") or "").lower()
        if value not in known:
            raise Mistake(f"{self.folder}: steps.csv has '{value}' in the column skipped. Write 0 or 1")
        return known[value]

    @property
    def skipped(self):
        return sum(int(epoch["skipped_steps"]) for epoch in self.epochs)

    @property
    def training_seconds(self):
        """Of all epochs, without their tests."""
        return sum(float(epoch["seconds"]) for epoch in self.epochs)

    @cached_property
    def run_config(self):
        """What it was trained by, with every key."""
        return (self.folder / "run" / "config.yaml").read_text(encoding="utf-8")

    @property
    def is_at_level(self):
        """Or else by torch.amp, or without any."""
        return re.search(r"^torch_amp:", self.run_config, re.M) is None

    @property
    def scale_is_dynamic(self):
        return re.search(r"^  (#? ?loss_scale: dynamic|grad_scaler: true)", self.run_config, re.M) is not None

    @cached_property
    def parameters(self):
        """The dtype of each."""
        return {row["parameter"]: row["dtype"] for row in self.table("parameters")}

    @cached_property
    def loses_small_updates(self):
        """Whether there are weights in 16 bits without a master: an update below half their spacing leaves them as they are."""
        return any(BYTES[row["dtype"]] == 2 and not row["master_dtype"] for row in self.table("parameters"))

    @cached_property
    def memory(self):
        """Bytes, by what they are for."""
        parameters, passing = self.table("parameters"), self.table("memory")[0]

        def bytes_of(*columns):
            return sum(int(row["numel"]) * BYTES[row[column]] for row in parameters for column in columns)

        return {
            "weights": bytes_of("dtype"),
            "masters": bytes_of("master_dtype"),
            "gradients": bytes_of("grad_dtype", "master_grad_dtype"),
            "state": sum(int(row["bytes"]) for row in self.table("state")) if self.has("state") else 0,
            "activations": int(passing["saved_for_backward"]),
            "peak": int(passing["peak"]),
        }

    @property
    def resident(self):
        """All but the peak, which has the activations in it."""
        return sum(size for part, size in self.memory.items() if part != "peak")

    @cached_property
    def loss_scale(self):
        return float(self.table("pass")[0]["loss_scale"])

    @cached_property
    def layers(self):
        return self.table("layers")

    def layers_of(self, kind):
        return [row for row in self.layers if row["kind"] == kind]

    @cached_property
    def calls(self):
        return self.table("trace")

    @cached_property
    def exponents(self):
        return self.table("exponents")

    @cached_property
    def casts(self):
        """How many casts a forward and a backward pass make, and how many are found in the weight cache; unknown where torch
        casts, within operators."""
        if not self.is_at_level:
            return {"made": None, "cached": None, "calls": len(self.calls)}
        casts = [cast for call in self.calls for cast in call["casts"].split()]
        cached = sum("cached" in cast for cast in casts)
        moves = [call for call in self.calls if call["op"].startswith(("aten::to", "aten::_to_copy"))]
        called = sum(call["inputs"].split()[:1] != call["outputs"].split()[:1] for call in moves)
        return {"made": len(casts) - cached + called, "cached": cached, "calls": len(self.calls)}
