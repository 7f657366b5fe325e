"""The times of steps, from rounds in which levels took turns, and how those of two levels compare."""
import math
import statistics
from dataclasses import dataclass, field

from cells import rows_of

PARTS = ("forward", "backward", "optimizer")


@dataclass
class Median:
    """Over rounds of timing, and the interval that holds it."""

    rounds: int = 0
    median: float = math.nan
    low: float = 0.0
    high: float = math.inf


@dataclass
class Timing(Median):
    """Milliseconds of a level's step."""

    parts: dict = field(default_factory=dict)  # empty where they are not known


@dataclass
class Ratio(Median):
    """The time of one level divided by that of another."""

    order: str = "unknown"  # faster | slower | equal | unknown


def is_of(row, group):
    return (row["config"], int(row["processes"])) == (group.config, group.processes)


def parts_of(rows):
    """The median of each part over rounds; none of a program, whose steps are timed as a whole."""
    parts = {part: statistics.median(float(row[f"{part}_ms"]) for row in rows) for part in PARTS} if rows else {}
    return parts if any(parts.values()) else {}


def take_times(folder, group):
    """Gives a group the times and ratios of its levels."""
    def rows(name):
        path = folder / f"{name}.csv"
        return [row for row in rows_of(path) if is_of(row, group)] if path.exists() else []

    rounds, times = rows("rounds"), {row["level"]: row for row in rows("times")}
    for level in group.levels:
        if level.name in times:
            row = times[level.name]
            level.timing = Timing(int(row["rounds"]), float(row["step_ms"]), float(row["low_ms"]), float(row["high_ms"]),
                                  parts_of([each for each in rounds if each["level"] == level.name]))
    for row in rows("ratios"):
        group.ratios[row["level"], row["other"]] = Ratio(int(row["rounds"]), float(row["ratio"]), float(row["low"]),
                                                         float(row["high"]), row["order"])
