"""What the cells of a comparison left as files, and the figures of each level over its seeds."""
import csv
import pathlib
import re
import statistics
from dataclasses import dataclass, field
from functools import cached_property

BYTES = {"": 0, "Half": 2, "BFloat16": 2, "Float": 4, "Double": 8}
SETTLING = 10  # steps at the start of a run whose times do not count: buffers are made, kernels chosen
KINDS = ("output", "gradient", "weight gradient")


class Mistake(Exception):
    """Of whoever called the program."""


def rows_of(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error


def undisturbed(values):
    """What the fastest tenth of them stays below: other work on the machine makes steps slower, never faster."""
    return sorted(values)[len(values) // 10]


def mean(values):
    return statistics.fmean(values) if values else float("nan")


def deviation(values):
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
    def accuracy(self):
        return float(self.epochs[-1]["test_accuracy"])

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
    def times(self):
        """Milliseconds of the parts of a step, each undisturbed, and of all of them."""
        rows = [row for row in self.table("times") if int(row["step"]) > SETTLING] or self.table("times")
        parts = {part: [float(row[f"{part}_ms"]) for row in rows] for part in ("forward", "backward", "optimizer")}
        quiet = {part: undisturbed(values) for part, values in parts.items()}
        return {**quiet, "step": sum(quiet.values())}

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


@dataclass
class Level:
    """A level over all its seeds."""

    name: str
    cells: list = field(default_factory=list)

    @property
    def first(self):
        return self.cells[0]

    @property
    def diverged(self):
        return sum(cell.diverged for cell in self.cells)

    @property
    def loses_small_updates(self):
        return self.first.loses_small_updates

    @property
    def is_measured(self):
        return self.diverged < len(self.cells)

    @property
    def measured(self):
        """The runs that did not diverge: those that do end before the optimizer's state is counted, and their times say little.
        All, where none is left."""
        return [cell for cell in self.cells if not cell.diverged] or self.cells

    @property
    def accuracies(self):
        return [cell.accuracy for cell in self.cells]

    @property
    def accuracy(self):
        return mean(self.accuracies)

    @property
    def spread(self):
        return deviation(self.accuracies)

    @property
    def skipped(self):
        return sum(cell.skipped for cell in self.cells)

    @property
    def steps(self):
        return sum(len(cell.steps) for cell in self.cells)

    @property
    def resident(self):
        return mean([cell.resident for cell in self.measured])

    def time(self, part="step"):
        """Of the run that was disturbed the least."""
        return min(self.measured, key=lambda cell: cell.times["step"]).times[part]

    @property
    def training_seconds(self):
        """Of the run that was disturbed the least."""
        return min(cell.training_seconds for cell in self.measured)

    def time_range(self):
        values = [cell.times["step"] for cell in self.measured]
        return min(values), max(values)

    def memory(self, part):
        return mean([cell.memory[part] for cell in self.measured])

    def share_lost(self, kind):
        """Of O0's values that are not 0: what the level's dtype makes 0, and what it makes subnormal."""
        rows = [row for cell in self.cells for row in cell.layers if row["kind"] == kind]
        nonzero = sum(int(row["nonzero"]) for row in rows) or 1
        return {loss: sum(int(row[f"underflow_{loss}"]) for row in rows) / nonzero for loss in ("zero", "subnormal")}


@dataclass
class Group:
    """The levels of one config on one number of processes."""

    config: str
    processes: int
    levels: list

    @property
    def reference(self):
        return self.levels[0]

    def level(self, name):
        return next((level for level in self.levels if level.name == name), None)

    @property
    def tested(self):
        """Test images."""
        log = (self.reference.first.folder / "log.txt").read_text(encoding="utf-8")
        found = re.search(r"\d+ training and (\d+) test images,", log)
        return int(found.group(1)) if found else 0


def read_groups(folder):
    """The groups of a comparison, and the names of its cells that are not there."""
    groups, missing = {}, []
    for row in rows_of(folder / "cells.csv"):
        cell = Cell(folder / "cells" / row["cell"], row["cell"], row["config"], row["level"], int(row["seed"]),
                    int(row["processes"]))
        if row["finished"] != "1":
            missing.append(cell.name)
            continue
        levels = groups.setdefault((cell.config, cell.processes), {})
        levels.setdefault(cell.level, Level(cell.level)).cells.append(cell)
    complete = [Group(*key, list(levels.values())) for key, levels in groups.items() if "O0" in levels]
    if not complete:
        raise Mistake(f"{folder} has no finished cell at O0, with which the others would be compared")
    for group in complete:
        group.levels.sort(key=lambda level: level.name != "O0")
    return complete, missing
