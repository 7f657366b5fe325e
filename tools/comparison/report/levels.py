"""The figures of each level over its runs: what the seeds' runs and the rounds of timing came to."""
import re
import statistics
from dataclasses import dataclass, field

from cells import Cell, Mistake, deviation, mean, rows_of
from own_cells import OwnCell
from times import Ratio, Timing, take_times


@dataclass
class Level:
    """A level over all its seeds."""

    name: str
    cells: list = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)

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
        """The runs that did not diverge: a run that does ends before the optimizer's state is counted. All, where none is left."""
        return [cell for cell in self.cells if not cell.diverged] or self.cells

    @property
    def measure(self):
        return self.first.measure

    @property
    def qualities(self):
        return [cell.quality for cell in self.cells]

    @property
    def quality(self):
        return mean(self.qualities)

    @property
    def spread(self):
        return deviation(self.qualities)

    @property
    def skipped(self):
        return sum(cell.skipped for cell in self.cells)

    @property
    def steps(self):
        return sum(len(cell.steps) for cell in self.cells)

    @property
    def resident(self):
        return mean([cell.resident for cell in self.measured])

    @property
    def has_memory(self):
        return all(cell.memory for cell in self.measured)

    @property
    def training_seconds(self):
        return statistics.median(cell.training_seconds for cell in self.measured)

    @property
    def time(self):
        """Milliseconds of a step."""
        return self.timing.median

    @property
    def time_range(self):
        return self.timing.low, self.timing.high

    def memory(self, part):
        return mean([cell.memory[part] for cell in self.measured if part in cell.memory])

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
    ratios: dict = field(default_factory=dict)

    @property
    def reference(self):
        return self.levels[0]

    @property
    def is_own_program(self):
        return isinstance(self.reference.first, OwnCell)

    def ratio(self, level, other):
        """Of the time of a level by that of another."""
        return self.ratios.get((level.name, other.name), Ratio())

    def level(self, name):
        return next((level for level in self.levels if level.name == name), None)

    @property
    def tested(self):
        """Test images; 0: how many there are is not known."""
        if self.is_own_program:
            return 0
        log = (self.reference.first.folder / "log.txt").read_text(encoding="utf-8")
        found = re.search(r"\d+ training and (\d+) test images,", log)
        return int(found.group(1)) if found else 0


def read_groups(folder):
    """The groups of a comparison, and the names of its cells that are not there."""
    groups, missing = {}, []
    for row in rows_of(folder / "cells.csv"):
        path = folder / "cells" / row["cell"]
        # A program may have a folder `run` of its own; a training config has its steps there.
        kind = Cell if (path / "run").exists() and not (path / "steps.csv").exists() else OwnCell
        cell = kind(path, row["cell"], row["config"], row["level"], int(row["seed"]), int(row["processes"]))
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
        take_times(folder, group)
    return complete, missing
