"""The figures of a report, as SVG to stand in a page: their text is the page's."""
import html
import io
import math
import re

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402  (after the choice of what draws)

from cells import mean  # noqa: E402

COLORS = {"O0": "#7a8089", "O1": "#3f7fc1", "O2": "#1f4e8c", "O3": "#8a6fc0", "O4": "#2f9e77", "O5": "#12694c",
          "O6": "#8cb82b"}
OTHERS = ["#c27c2c", "#b0486a", "#5b7a1f", "#7c5a43", "#2b8a99"]
INK, SOFT, FAINT, WARNING = "#2b3036", "#6b727b", "#e3e6ea", "#c8503c"
# Where values become subnormal, and where they become 0, by powers of two.
LIMITS = {"Half": ("FP16", -14, -25), "BFloat16": ("BF16", -126, -134)}

pyplot.rcParams.update({
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": INK, "axes.edgecolor": FAINT,
    "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.7, "axes.axisbelow": True, "xtick.major.size": 0,
    "ytick.major.size": 0, "figure.facecolor": "none", "axes.facecolor": "none",
})


def color(name, names):
    others = [each for each in names if each not in COLORS]
    return COLORS.get(name) or OTHERS[others.index(name) % len(OTHERS)]


def svg(figure, title, name):
    """The picture without what a file of its own needs. `name` keeps its ids apart from those of others on the page."""
    with pyplot.rc_context({"svg.hashsalt": name}):
        file = io.StringIO()
        figure.savefig(file, format="svg")
    pyplot.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue()[file.getvalue().index("<svg"):], flags=re.S)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    ids = re.findall(r'\bid="([^"]+)"', text)
    for each in sorted(set(ids), key=len, reverse=True):
        text = re.sub(rf'(id="|#){re.escape(each)}(?=["\)])', rf"\g<1>{name}-{each}", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)


def id_of(name, group, level):
    """Of a picture, unlike any other on the page."""
    return re.sub(r"[^\w-]", "_", f"{name}-{group.config}-{group.processes}-{group.levels.index(level)}")


def panel():
    figure, axis = pyplot.subplots(figsize=(3.2, 2))
    figure.subplots_adjust(left=0.14, right=0.98, bottom=0.2, top=0.96)
    return figure, axis


def bands(levels, values):
    """For each level its rows over the seeds, cut to what the shortest has."""
    rows = [values(cell) for cell in levels.cells]
    length = min(map(len, rows))
    return [row[:length] for row in rows]


def smoothed(values, width):
    return [mean(values[max(0, i - width + 1):i + 1]) for i in range(len(values))]


def draw_band(axis, rows, shade, **line):
    columns = list(zip(*rows))
    over = range(1, len(columns) + 1)
    axis.plot(over, [mean(column) for column in columns], color=shade, **line)
    if len(rows) > 1:
        axis.fill_between(over, list(map(min, columns)), list(map(max, columns)), color=shade, alpha=0.16, linewidth=0)


def limits(curves_of_levels):
    flat = [value for rows in curves_of_levels for row in rows for value in row if math.isfinite(value)] or [0.0]
    margin = 0.04 * (max(flat) - min(flat) or 1)
    return min(flat) - margin, max(flat) + margin


def curve(rows, shade, label, ends):
    """A panel of one level: the mean over the seeds, and from the lowest to the highest."""
    figure, axis = panel()
    draw_band(axis, rows, shade, linewidth=1.6)
    axis.set_ylim(*ends)
    axis.set_xlabel(label, fontsize=8)
    axis.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    return figure, axis


def accuracy_curves(group):
    """A panel for each level, O0 behind it."""
    names = [level.name for level in group.levels]
    rows = {level.name: bands(level, lambda cell: [float(row["test_accuracy"]) for row in cell.epochs]) for level in group.levels}
    ends, pictures = limits(rows.values()), []
    for level in group.levels:
        figure, axis = curve(rows[level.name], color(level.name, names), "epoch", ends)
        if level is not group.reference:
            draw_band(axis, rows[group.reference.name], COLORS["O0"], linewidth=1, alpha=0.8)
        axis.yaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
        axis.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0 if ends[1] - ends[0] > 0.05 else 1))
        pictures.append((level.name, svg(figure, f"accuracy at {level.name}", id_of("accuracy", group, level))))
    return pictures


def differences(level, reference, width):
    """For each seed that both have: the level's loss minus O0's, step by step."""
    at_reference = {cell.seed: cell.losses for cell in reference.cells}
    rows = [[loss - other for loss, other in zip(cell.losses, at_reference[cell.seed])]
            for cell in level.cells if cell.seed in at_reference]
    length = min(map(len, rows), default=0)
    return [smoothed(row[:length], width) for row in rows]


def loss_curves(group):
    """O0's loss, and for each other level how far its loss is from O0's of the same seed: losses themselves look alike."""
    names = [level.name for level in group.levels]
    width = max(1, min(len(cell.losses) for cell in group.reference.cells) // 40)
    reference = [smoothed(row, width) for row in bands(group.reference, lambda cell: cell.losses)]
    apart = {level.name: differences(level, group.reference, width) for level in group.levels[1:]}
    low, high = limits(apart.values())
    reach = max(-low, high)
    pictures = []
    for level in group.levels:
        is_reference = level is group.reference
        rows, ends = (reference, limits([reference])) if is_reference else (apart[level.name], (-reach, reach))
        if not rows or not rows[0]:
            continue
        figure, axis = curve(rows, color(level.name, names), "step", ends)
        if not is_reference:
            axis.axhline(0, color=COLORS["O0"], linewidth=1)
        words = ("loss" if is_reference else "loss minus that of O0") + (", diverged" if level.diverged else "")
        pictures.append((level.name, words, svg(figure, f"{words} at {level.name}", id_of("loss", group, level))))
    return pictures, width


def scale_histories(group):
    names = [level.name for level in group.levels]
    pictures = []
    for level in (level for level in group.levels if level.first.scale_is_dynamic):
        figure, axis = panel()
        shade = color(level.name, names)
        for cell in level.cells:
            scales = cell.loss_scales
            axis.step(range(1, len(scales) + 1), scales, color=shade, linewidth=1.2, alpha=0.7, where="post")
            skipped = cell.skipped_steps
            axis.plot(skipped, [scales[step - 1] for step in skipped], "x", color=WARNING, markersize=4)
        axis.set_yscale("log", base=2)
        low, high = axis.get_ylim()
        axis.set_ylim(low / 2, high * 2)
        axis.set_xlabel("step", fontsize=8)
        pictures.append((level.name, svg(figure, f"loss scale at {level.name}", id_of("scale", group, level))))
    return pictures


def scale_exponent(cell, kind):
    """The power of two that the level multiplies such values by: gradients have the loss scale."""
    return round(math.log2(cell.loss_scale)) if kind != "output" else 0


def counts(level, kind, of):
    """How many values have which exponent, over the seeds: those of O0 as the level would have them."""
    total = {}
    for cell in level.cells:
        shift = scale_exponent(cell, kind) if of == "O0" else 0
        for row in cell.exponents:
            if (row["kind"], row["of"]) == (kind, of):
                exponent = int(row["exponent"]) + shift
                total[exponent] = total.get(exponent, 0) + int(row["count"])
    return total


def common(exponents):
    """All but the rarest at the ends: one in 10000."""
    total, before, kept = sum(exponents.values()), 0, []
    for exponent in sorted(exponents):
        before += exponents[exponent]
        if min(before, total - before + exponents[exponent]) > total / 10000:
            kept.append(exponent)
    return kept or sorted(exponents) or [0]


def dtype_of(level, kind):
    """The 16-bit type that a level has among its tensors of that kind; None where it has none."""
    found = {row["dtype"] for row in level.first.layers if row["kind"] == kind}
    return next((dtype for dtype in LIMITS if dtype in found), None)


def shares(exponents):
    """Of all values, in per cent."""
    total = sum(exponents.values()) or 1
    return {place: 100 * count / total for place, count in exponents.items()}


def places_shown(group, kind, levels):
    """The exponents from the least to the largest that any of the levels has more than rarely, and where FP16 loses digits: the same for
    all panels, so that they can be compared."""
    places = [place for level, _ in levels for of in ("O0", "level") for place in common(counts(level, kind, of))]
    halves = any(dtype == "Half" for _, dtype in levels)
    return min(places + [LIMITS["Half"][1] - 12] * halves), max(places)


def exponents(group, kind):
    """For each level with 16-bit tensors: which exponents O0's values have, at its loss scale, and what it kept of them."""
    names = [level.name for level in group.levels]
    levels = [(level, dtype) for level in group.levels if (dtype := dtype_of(level, kind))]
    if not levels:
        return []
    low, high = places_shown(group, kind, levels)
    top = max(max(shares(counts(level, kind, of)).values(), default=0) for level, _ in levels for of in ("O0", "level"))
    pictures = []
    for level, dtype in levels:
        figure, axis = panel()
        shift = scale_exponent(level.first, kind)
        wanted, kept = shares(counts(level, kind, "O0")), shares(counts(level, kind, "level"))
        short, subnormal, zero = LIMITS[dtype]
        axis.bar(list(wanted), list(wanted.values()), width=1, color="#c5cad1")
        over = range(low, high + 2)
        axis.step([place - 0.5 for place in over], [kept.get(place, 0) for place in over], where="post",
                  color=color(level.name, names), linewidth=1.3)
        if low < subnormal:
            axis.axvspan(max(low - 1, zero) - 0.5, subnormal - 0.5, color="#e2a13c", alpha=0.14, linewidth=0)
            axis.axvspan(low - 1, zero - 0.5, color=WARNING, alpha=0.14, linewidth=0)
        axis.set_xlim(low - 1, high + 1)
        axis.set_ylim(0, 1.05 * top)
        axis.yaxis.set_major_locator(ticker.MaxNLocator(4))
        axis.yaxis.set_major_formatter(ticker.PercentFormatter(100, decimals=0))
        axis.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        axis.set_xlabel(f"power of two (loss scale 2^{shift})" if shift else "power of two", fontsize=8)
        name = id_of(f"exponents-{kind.replace(' ', '-')}", group, level)
        pictures.append((level.name, short, svg(figure, f"exponents of {kind}s at {level.name}", name)))
    return pictures
