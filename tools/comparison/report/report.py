"""Writes report.html, report.md and tables of CSV for the cells of a comparison."""
import argparse
import csv
import os
import pathlib
import re
import sys

import jinja2
import markupsafe

import figures
from cells import ACCURACY, KINDS, Mistake
from levels import read_groups
from summary import EQUAL_MEMORY, EQUAL_TIMES, Choice
from times import PARTS
from words import (DTYPES, NOTHING, counted, distance, of_bytes, of_clock, of_count, of_factor, of_milliseconds, of_quality, of_ratio,
                   of_share, of_small_share, unbroken)

# Operators that compute nothing: they show or convert what another one made.
SAME_VALUES = {f"aten::{name}" for name in ("t", "to", "detach", "detach_", "view", "reshape", "transpose", "permute", "_to_copy")}
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


def own_description(group):
    """What a user's own program trained: that is known to its author."""
    cell = group.reference.first
    name = pathlib.PurePath(cell.command.split()[0]).name if cell.command else "A program"
    return {"title": f"{name} at every level", "lines": f"{cell.command or 'amp::Comparison'}, {counted(len(cell.steps), 'step')}",
            "device": cell.result.get("device", "")}


def description(group):
    """What was trained, in a heading and a line."""
    if group.is_own_program:
        return own_description(group)
    config = group.reference.first.run_config
    size = value_of(config, "image_size")
    noise = value_of(config, "noise")
    model = f"{value_of(config, 'type')} {value_of(config, 'widths')}".strip()
    data = value_of(config, "set") + (f" at {size}x{size}" if size != "0" else "") + (" with noise" if float(noise or 0) else "")
    optimizer = re.search(r"^optimizer:\n  type: (\w+)", config, re.M).group(1)
    return {"title": f"{model} on {data}",
            "lines": f"{optimizer}, {counted(value_of(config, 'epochs'), 'epoch')}, batches of {value_of(config, 'batch_size')}, "
                     f"{counted(value_of(config, 'threads'), 'thread')}",
            "device": value_of(config, "device")}


def layer_table(group, kind):
    """Rows of a layer, its type and, for each level but O0, how far it is from O0, of the first seed."""
    levels = [level for level in group.levels if level is not group.reference]
    rows = []
    for i, row in enumerate(group.reference.first.layers_of(kind)):
        cells = [level.first.layers_of(kind)[i] for level in levels]
        rows.append({"name": row["name"], "layer": row["layer"], "cells": list(map(distance, cells))})
    return {"levels": levels, "rows": rows}


def own_dtype_table(group):
    """The operators that O0 called in a forward pass, by the modules whose parameters they used, and their types at each level. Of
    operators without parameters those whose types differ between levels."""
    def outputs(level):
        found = {}
        for call in level.first.calls:
            if call["pass"] == "forward" and call["op"].split(".")[0] not in SAME_VALUES:
                found.setdefault((call["module"], call["op"]), DTYPES.get(call["outputs"].split(" ")[0], call["outputs"]))
        return found

    of_level = [outputs(level) for level in group.levels]
    rows = [(key, [found.get(key, NOTHING) for found in of_level]) for key in of_level[0]]
    return [{"name": module or "model", "layer": op.replace("aten::", ""), "cells": [(dtype, None) for dtype in dtypes]}
            for (module, op), dtypes in rows if module or len(set(dtypes)) > 1]


def dtype_table(group):
    if group.is_own_program:
        return own_dtype_table(group)
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
        self.measure = group.reference.measure
        self.timed = [level for level in group.levels if level.is_measured and level.timing.rounds]
        self.weighed = [level for level in group.levels if level.is_measured and level.has_memory]
        self.slowest = max((end for level in self.timed for end in (level.time, level.time_range[1]) if end < 10 * level.time),
                           default=1)
        self.largest = max((level.resident for level in self.weighed), default=1)
        self.parts = MEMORY if not group.is_own_program else ("held",)
        self.accuracy = [] if group.is_own_program else figures.accuracy_curves(group)
        self.losses, self.smoothing = figures.loss_curves(group)
        self.scales = figures.scale_histories(group)
        self.dtypes = dtype_table(group)
        kinds = () if group.is_own_program else KINDS
        self.exponents = [(kind, figures.exponents(group, kind)) for kind in kinds]
        self.layers = [(kind, layer_table(group, kind)) for kind in kinds]
        self.seeds = [cell.seed for cell in group.reference.cells]

    def color(self, name):
        return figures.color(name, self.names)

    def beside_reference(self, level):
        """How fast a level is beside O0: faster, slower, equal or unknown."""
        return self.choice.order(level, self.group.reference)

    def ratio(self, level):
        return self.group.ratio(level, self.group.reference)


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
                ["config", "processes", "level", "runs", "diverged", "measure", "value", "deviation", "skipped_steps", "steps",
                 "rounds", *(f"{part}_ms" for part in PARTS), "step_ms", "step_low_ms", "step_high_ms",
                 *(f"{part}_bytes" for part in MEMORY), "peak_bytes", "training_seconds"],
                [[*key_of(group), level.name, len(level.cells), level.diverged, level.measure.name, level.quality, level.spread,
                  level.skipped, level.steps, level.timing.rounds, *(level.timing.parts.get(part, "") for part in PARTS),
                  level.time, *level.time_range, *(level.memory(part) for part in (*MEMORY, "peak")), level.training_seconds]
                 for group, level in levels])
    write_table(folder / "runs.csv",
                ["config", "processes", "level", "seed", "diverged", "measure", "value", "skipped_steps", "loss_scale",
                 *(f"{part}_bytes" for part in MEMORY), "peak_bytes", "training_seconds", "casts_made", "casts_cached",
                 "operator_calls"],
                [[*key_of(group), level.name, cell.seed, int(cell.diverged), cell.measure.name, cell.quality, cell.skipped,
                  cell.loss_scale, *(cell.memory.get(part, "") for part in (*MEMORY, "peak")), cell.training_seconds,
                  cell.casts["made"], cell.casts["cached"], cell.casts["calls"]] for group, level, cell in cells])
    with_layers = [each for each in cells if each[2].layers]
    if not with_layers:
        return
    fields = list(with_layers[0][2].layers[0])
    write_table(folder / "layers.csv", ["config", "processes", "level", "seed", *fields],
                [[*key_of(group), level.name, cell.seed, *(row[field] for field in fields)]
                 for group, level, cell in with_layers for row in cell.layers])


def shown(value):
    """What a template shows, which is a figure's SVG, a number or text."""
    return unbroken(value) if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value


def environment(finalize=None):
    here = pathlib.Path(__file__).parent
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(here), autoescape=lambda name: name.endswith(".html"),
                              undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize)
    made.filters.update(bytes=of_bytes, share=of_share, small_share=of_small_share, ms=of_milliseconds, ratio=of_ratio,
                        clock=of_clock, count=of_count, counted=counted, factor=of_factor, quality=of_quality)
    made.globals.update(PARTS=PARTS, EQUAL_TIMES=EQUAL_TIMES, EQUAL_MEMORY=EQUAL_MEMORY, ACCURACY=ACCURACY, machine=machine())
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
        for name, finalize in (("report.html", shown), ("report.md", None)):
            template = environment(finalize).get_template(f"template{pathlib.Path(name).suffix}")
            write_whole(folder / name, template.render(pages=pages, missing=missing))
        write_tables(folder / "tables", groups)
    except Mistake as mistake:
        print(f"report: {mistake}", file=sys.stderr)
        return 2
    print(f"report: {folder / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
