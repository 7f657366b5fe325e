"""Writes report.html, report.md and tables of CSV for the cells of a comparison."""
import argparse
import csv
import os
import pathlib
import re
import sys

import jinja2

import figures
from cells import KINDS, Mistake, read_groups
from summary import EQUAL_TIMES, Choice
from words import DTYPES, counted, distance, of_bytes, of_clock, of_count, of_milliseconds, of_ratio, of_share, of_small_share

PARTS = ("forward", "backward", "optimizer")
MEMORY = ("weights", "masters", "gradients", "state", "activations")


def machine():
    """What computes: for the reader of times."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return f"{name.group(1).strip() if name else 'unknown processor'}, {os.cpu_count()} cores"


def value_of(config, key):
    found = re.search(rf"^ *{key}: (.+)$", config, re.M)
    return found.group(1) if found else ""


def description(group):
    """What was trained, in a line."""
    config = group.reference.first.run_config
    size = value_of(config, "image_size")
    return {
        "model": f"{value_of(config, 'type')} {value_of(config, 'widths')}".strip(),
        "data": value_of(config, "set") + (f" at {size}x{size}" if size != "0" else ""),
        "optimizer": re.search(r"^optimizer:\n  type: (\w+)", config, re.M).group(1),
        "epochs": value_of(config, "epochs"),
        "batch": value_of(config, "batch_size"),
        "device": value_of(config, "device"),
        "threads": value_of(config, "threads"),
    }


def layer_table(group, kind):
    """Rows of a layer, its type and, for each level but O0, how far it is from O0, of the first seed."""
    levels = [level for level in group.levels if level is not group.reference]
    rows = []
    for i, row in enumerate(group.reference.first.layers_of(kind)):
        cells = [level.first.layers_of(kind)[i] for level in levels]
        rows.append({"name": row["name"], "layer": row["layer"], "cells": list(map(distance, cells))})
    return {"levels": levels, "rows": rows}


def dtype_table(group):
    rows = []
    for i, row in enumerate(group.reference.first.layers_of("output")):
        outputs = [level.first.layers_of("output")[i]["dtype"] for level in group.levels]
        weights = [level.first.parameters.get(f"{row['name']}.weight") for level in group.levels]
        rows.append({"name": row["name"], "layer": row["layer"],
                     "cells": [(DTYPES[output], weight and DTYPES[weight]) for output, weight in zip(outputs, weights)]})
    losses = [next((call["outputs"] for call in level.first.calls if "cross_entropy" in call["op"]), "")
              for level in group.levels]
    rows.append({"name": "loss", "layer": "cross entropy", "cells": [(DTYPES.get(loss, loss), None) for loss in losses]})
    return rows


class Page:
    """What the templates show of one group."""

    def __init__(self, group, number):
        self.group, self.number = group, number
        self.names = [level.name for level in group.levels]
        self.choice = Choice(group)
        self.verdicts = [self.choice.verdict(level) for level in group.levels]
        self.duels = [(pair, duel) for pair in (("O1", "O2"), ("O4", "O5")) if (duel := self.choice.duel(*pair))]
        self.about = description(group)
        self.has_torch_amp = not all(level.first.is_at_level for level in group.levels)
        measured = [level for level in group.levels if level.is_measured] or group.levels
        self.slowest = max(level.time_range()[1] for level in measured)
        self.largest = max(level.resident for level in measured)
        self.accuracy = figures.accuracy_curves(group)
        self.losses, self.smoothing = figures.loss_curves(group)
        self.scales = figures.scale_histories(group)
        self.exponents = [(kind, figures.exponents(group, kind)) for kind in KINDS]
        self.dtypes = dtype_table(group)
        self.layers = [(kind, layer_table(group, kind)) for kind in KINDS]
        self.seeds = [cell.seed for cell in group.reference.cells]

    def color(self, name):
        return figures.color(name, self.names)


def write_table(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def key_of(group):
    return [group.config, group.processes]


def write_tables(folder, groups):
    folder.mkdir(exist_ok=True)
    levels = [(group, level) for group in groups for level in group.levels]
    cells = [(group, level, cell) for group, level in levels for cell in level.cells]
    write_table(folder / "levels.csv",
                ["config", "processes", "level", "runs", "diverged", "accuracy", "accuracy_deviation", "skipped_steps", "steps",
                 *(f"{part}_ms" for part in PARTS), "step_ms", *(f"{part}_bytes" for part in MEMORY), "peak_bytes",
                 "training_seconds"],
                [[*key_of(group), level.name, len(level.cells), level.diverged, level.accuracy, level.spread, level.skipped,
                  level.steps, *map(level.time, PARTS), level.time(), *map(level.memory, MEMORY), level.memory("peak"),
                  level.training_seconds] for group, level in levels])
    write_table(folder / "runs.csv",
                ["config", "processes", "level", "seed", "diverged", "accuracy", "skipped_steps", "loss_scale",
                 *(f"{part}_ms" for part in PARTS), "step_ms", *(f"{part}_bytes" for part in MEMORY), "peak_bytes",
                 "training_seconds", "casts_made", "casts_cached", "operator_calls"],
                [[*key_of(group), level.name, cell.seed, int(cell.diverged), cell.accuracy, cell.skipped, cell.loss_scale,
                  *(cell.times[part] for part in (*PARTS, "step")), *(cell.memory[part] for part in (*MEMORY, "peak")),
                  cell.training_seconds, cell.casts["made"], cell.casts["cached"], cell.casts["calls"]] for group, level, cell in cells])
    fields = list(groups[0].reference.first.layers[0])
    write_table(folder / "layers.csv", ["config", "processes", "level", "seed", *fields],
                [[*key_of(group), level.name, cell.seed, *(row[field] for field in fields)]
                 for group, level, cell in cells for row in cell.layers])


def environment():
    here = pathlib.Path(__file__).parent
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(here), autoescape=lambda name: name.endswith(".html"),
                              undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(bytes=of_bytes, share=of_share, small_share=of_small_share, ms=of_milliseconds, ratio=of_ratio,
                        clock=of_clock, count=of_count, counted=counted)
    made.globals.update(PARTS=PARTS, MEMORY=MEMORY, EQUAL_TIMES=EQUAL_TIMES, machine=machine())
    return made


def write_whole(path, text):
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="what tools/compare wrote")
    folder = parser.parse_args().folder.resolve()
    try:
        groups, missing = read_groups(folder)
        pages = [Page(group, number) for number, group in enumerate(groups)]
        templates = environment()
        for name in ("report.html", "report.md"):
            template = templates.get_template(f"template{pathlib.Path(name).suffix}")
            write_whole(folder / name, template.render(pages=pages, missing=missing))
        write_tables(folder / "tables", groups)
    except Mistake as mistake:
        print(f"report: {mistake}", file=sys.stderr)
        return 2
    print(f"report: {folder / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
