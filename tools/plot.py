"""Draws CSV files: results of tools/bench and the levels of tools/compare as bars, tables of training runs as curves."""
import argparse
import csv
import math
import pathlib
import re
import sys

BENCH_COLUMNS = ["suite", "group", "benchmark", "threads", "quantity", "value"]
LEVEL_COLUMNS = {"config", "processes", "level", "step_ms"}  # of levels.csv, which tools/compare writes
BASELINE = "O0"  # the level to which tools/compare compares the others
STEPS = ("step", "update", "epoch")  # what curves are drawn over, the finest first
NAMES = ("tensor", "name")  # what tells the rows of one step apart, in a table of statistics
MOST_NAMES = 10  # curves of one table
COLUMNS = 3  # of panels
IMAGES = (".png", ".svg", ".pdf")


class Mistake(Exception):
    """Of whoever called the program."""


def read(path):
    """The names of the columns, and the rows. A row without its last fields was cut off when it was written."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except OSError as error:
        raise Mistake(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"cannot read {path}: it is not a text table ({error})") from error
    whole = [row for row in rows if None not in row.values()]
    if len(whole) < len(rows):
        print(f"plot: {path}: {len(rows) - len(whole)} of {len(rows)} rows cut off and left out", file=sys.stderr)
    if not whole:
        raise Mistake(f"{path} has no rows")
    return reader.fieldnames, whole


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def figure_of(row, column):
    """The number that a row of tools/bench or of tools/compare has there."""
    value = number(row[column])
    if value is None:
        name = f"level '{row['level']}'" if "level" in row else f"benchmark '{row['group']}/{row['benchmark']}'"
        raise Mistake(f"{name}: '{row[column]}' is not a number of {column}; measure it again")
    return value


def panels(count, width, height):
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    import matplotlib  # not above: --help is printed without it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    for spare in axes.flat[count:]:
        spare.set_axis_off()
    return figure, axes.flat


def draw_group(axis, group, rows):
    """Ratios of one group: a cluster of bars for each benchmark. Longer is slower than what is compared with."""
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    values = {(row["benchmark"], row["quantity"]): figure_of(row, "value") for row in rows}
    height = 0.8 / len(quantities)
    for i, quantity in enumerate(quantities):
        places = [place + i * height for place in range(len(names))]
        bars = axis.barh(places, [values.get((name, quantity), 0) for name in names], height, label=quantity)
        axis.bar_label(bars, fmt="%.2f", fontsize=6, padding=2)
    axis.axvline(1, color="black", linewidth=0.8)
    if max(values.values()) > 8:
        axis.set_xscale("log")
    axis.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_title(group, fontsize=10)
    axis.legend(fontsize=7)


def draw_benchmarks(tables, only):
    rows = [row for _, table in tables.values() for row in table if "/" in row["quantity"] and "/s" not in row["quantity"]]
    threads = max(int(figure_of(row, "threads")) for row in rows) if rows else 0
    rows = [row for row in rows if figure_of(row, "threads") == threads]
    groups = {}
    for row in rows:
        if only.search(row["group"] + "/" + row["benchmark"]):
            groups.setdefault(row["group"], []).append(row)
    if not groups:
        raise Mistake("there is no ratio to draw")
    figure, axes = panels(len(groups), 6, 4.5)
    for axis, (group, members) in zip(axes, groups.items()):
        draw_group(axis, group, members)
    figure.suptitle(f"times, as ratios ({threads} threads)")
    return figure


def step_of(row):
    return figure_of(row, "step_ms")


def memory_of(row):
    """Bytes of weights, masters, gradients, optimizer state and activations, which the peak has in it. Of a program that counts
    no parts: the peak."""
    parts = sum(figure_of(row, column) for column in row if column.endswith("_bytes") and column != "peak_bytes")
    return figure_of(row, "peak_bytes") if math.isnan(parts) else parts


def over_baseline(name, rows, figure):
    """The figure of each level, over that of O0."""
    baseline = next((figure(row) for row in rows if row["level"] == BASELINE), None)
    if not baseline:
        raise Mistake(f"'{name}' has no {BASELINE} to compare with")
    return {row["level"]: figure(row) / baseline for row in rows}


def draw_ratios(axis, title, ratios):
    """A cluster of bars for each level, with one bar for each training."""
    levels = list(dict.fromkeys(level for each in ratios.values() for level in each))
    width = 0.8 / len(ratios)
    for i, (training, each) in enumerate(ratios.items()):
        places = [levels.index(level) - 0.4 + (i + 0.5) * width for level in each]
        axis.bar_label(axis.bar(places, each.values(), width, label=training), fmt="%.2f", fontsize=7, padding=2)
    axis.axhline(1, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    axis.set_xticks(range(len(levels)), levels)
    axis.margins(y=0.15)
    axis.set_title(f"{title} ({BASELINE} = 1)", fontsize=10)


def draw_levels(tables, only):
    """Two panels: the time of a step and, where it is known, the memory of each level, over those of O0."""
    trainings = {}
    for table, (_, rows) in tables.items():
        for row in rows:
            name = row["config"] + (f", {row['processes']} processes" if row["processes"] != "1" else "")
            if only.search(name):
                trainings.setdefault(name if len(tables) == 1 else f"{table}: {name}", []).append(row)
    if not trainings:
        raise Mistake("there is no training to draw")
    ratios = {title: {name: over_baseline(name, rows, of) for name, rows in trainings.items()}
              for title, of in (("time of a step", step_of), ("memory", memory_of))}
    known = {title: each for title, each in ratios.items() if any(not math.isnan(ratio) for levels in each.values() for ratio in levels.values())}
    figure, axes = panels(len(known), 5, 3.2)
    for axis, (title, each) in zip(axes, known.items()):
        draw_ratios(axis, title, each)
    if len(trainings) > 1:
        axes[0].legend(fontsize=7)
    return figure


def check_columns(tables, columns):
    for name, (fields, _) in tables.items():
        for column in columns:
            if column not in fields:
                raise Mistake(f"{name} has no column '{column}': draw tables of one kind together")


def largest(named, table):
    """At most MOST_NAMES of the rows by name, those of tensors with the most elements."""
    if len(named) > MOST_NAMES:
        print(f"plot: {table}: the {MOST_NAMES} largest of {len(named)} tensors are drawn", file=sys.stderr)
    size = {name: number(rows[0].get("numel")) or 0 for name, rows in named.items()}
    return {name: named[name] for name in sorted(named, key=size.get, reverse=True)[:MOST_NAMES]}


def curves_of(tables):
    """The rows of each curve by its label: a table's, or those of each tensor in it."""
    curves = {}
    for table, (fields, rows) in tables.items():
        named = {}
        for row in rows:
            named.setdefault(" ".join(row[column] for column in NAMES if column in fields), []).append(row)
        for name, members in largest(named, table).items():
            curves[f"{table} {name}".strip() if len(tables) > 1 or not name else name] = members
    return curves


def draw_column(axis, curves, over, column):
    for label, rows in curves.items():
        points = [(number(row[over]), number(row[column])) for row in rows]
        points = [point for point in points if None not in point]
        axis.plot([x for x, _ in points], [y for _, y in points], label=label, linewidth=1, marker="." if len(points) == 1 else "")
    if column in ("loss_scale", "scale_before", "scale_after"):
        axis.set_yscale("log", base=2)
    axis.set_title(column.replace("_", " "), fontsize=10)
    axis.set_xlabel(over, fontsize=8)
    axis.grid(alpha=0.3)


def draw_curves(tables, only):
    """One panel for each column of numbers, one curve for each file, or each tensor of it, over the step or the epoch."""
    fields, rows = next(iter(tables.values()))
    over = next((name for name in STEPS if name in fields), None)
    if over is None:
        raise Mistake(f"there is no column {', '.join(STEPS[:-1])} or {STEPS[-1]} for the horizontal axis, and these are not results of tools/bench")
    drawn = [name for name in fields if name not in STEPS and number(rows[0][name]) is not None and only.search(name)]
    if not drawn:
        raise Mistake("there is no column of numbers to draw")
    check_columns(tables, [over, *drawn])
    curves = curves_of(tables)
    figure, axes = panels(len(drawn), 5, 3.2)
    for axis, column in zip(axes, drawn):
        draw_column(axis, curves, over, column)
    if len(curves) > 1:
        axes[0].legend(fontsize=7 if len(curves) < 5 else 5)
    return figure


def names_of(paths):
    """What tables are called: by their folders, if these differ."""
    folders = [path.resolve().parent.name for path in paths]
    return folders if len(set(folders)) == len(paths) else [str(path) for path in paths]


def kind_of(fields):
    """The function that draws a table with these columns."""
    if fields == BENCH_COLUMNS:
        return draw_benchmarks
    return draw_levels if LEVEL_COLUMNS <= set(fields) else draw_curves


def draw(paths, only):
    tables = dict(zip(names_of(paths), map(read, paths)))
    kinds = {kind_of(fields) for fields, _ in tables.values()}
    if len(kinds) > 1:
        raise Mistake("results of tools/bench, levels of tools/compare and tables of runs cannot be drawn in one image")
    return kinds.pop()(tables, only)


def regex(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular expression: {error}") from error


def image(text):
    path = pathlib.Path(text)
    if path.suffix.lower() not in IMAGES:
        raise argparse.ArgumentTypeError(f"'{text}' is not the name of an image, which ends in {', '.join(IMAGES)}")
    return path


def parsed(arguments):
    parser = argparse.ArgumentParser(prog="tools/plot", description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.csv",
                        help="of one kind; several are drawn together, statistics by tensor")
    parser.add_argument("--out", type=image, metavar="FILE", help="image to write: .png, .svg or .pdf (default: beside the first file)")
    parser.add_argument("--only", type=regex, metavar="REGEX", default=regex(""),
                        help="regular expression for group/benchmark, for the configs of tools/compare, or for columns")
    parser.add_argument("--title", metavar="TEXT", help="the title of the image")
    return parser.parse_args(arguments)


def main():
    arguments = parsed(sys.argv[1:])
    out = arguments.out or arguments.files[0].with_suffix(".png")
    try:
        figure = draw(arguments.files, arguments.only)
        if arguments.title:
            figure.suptitle(arguments.title, parse_math=False)  # dollars make no formula
        figure.tight_layout()
        figure.savefig(out, dpi=120)
    except (Mistake, OSError, ValueError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
