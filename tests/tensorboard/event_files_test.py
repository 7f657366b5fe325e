"""Our event files as the tensorboard package reads them: every value that was written, and of a run that went back none that it
left behind.

usage: event_files_test.py FOLDER EVENT_FILES [TRAIN]    (EVENT_FILES, TRAIN: programs)
"""

import csv
import math
import pathlib
import random
import socket
import subprocess
import sys

import numpy
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

FOLDER, EVENT_FILES, TRAIN = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
CONFIG = """
model: {type: mlp, widths: [16]}
data: {set: digits, dir: %s}
optimizer: {type: SGD, lr: 0.05, momentum: 0.9}
epochs: 3
batch_size: 20
device: cpu
threads: 1
tensorboard: true
statistics_every: 5
"""


def expect(what, actual, expected):
    if actual != expected:
        sys.exit("%s: got %r, expected %r" % (what, actual, expected))


def read(folder):
    """Everything, without TensorBoard's sampling."""
    everything = {kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE}
    return event_accumulator.EventAccumulator(str(folder), size_guidance=everything).Reload()


def scalars(board, tag):
    return [(event.step, event.value) for event in board.Scalars(tag)]


def text(board, tag):
    expect("the plugin of '%s'" % tag, board.SummaryMetadata(tag).plugin_data.plugin_name, "text")
    return board.Tensors(tag)[-1].tensor_proto.string_val[0].decode()


def host_in(path):
    """As PyTorch names files: events.out.tfevents.SECONDS.HOST.PROCESS.COUNT, where only the host may have dots."""
    return ".".join(path.name.split(".")[4:-2])


def float32(value):
    return float(numpy.float32(value))


def known_values_come_back():
    folder, again, nameless = FOLDER / "known", FOLDER / "again", FOLDER / "nameless"
    for each in folder, again, nameless:
        each.mkdir()
    subprocess.run([EVENT_FILES, folder, again, nameless], check=True)
    expect("a curve that begins again", scalars(read(again), "curve"), [(0, 2.0)])
    board = read(folder)
    expect("tags", sorted(board.Tags()["scalars"]), ["curve", "late", "not finite"])
    first = [(step, float32(1 / (step + 1))) for step in range(7)]
    expect("a curve of two sessions", scalars(board, "curve"), first + [(7, 70.0)])
    histogram, = board.Histograms("spread")
    value = histogram.histogram_value
    expect("histogram", (histogram.step, value.min, value.max, value.num, value.sum, value.sum_squares, value.bucket_limit, value.bucket),
           (4, -3, 2.5, 10, 3, 9.25, [-1, 0, 2.5], [1, 2, 7]))
    expect("text", text(board, "\u20ac/text"), "**two**\nlines")
    expect("a long text", text(board, "long"), "x" * 100000)
    first, *others = sorted(folder.iterdir())
    for path in [first, *others]:
        expect("the host in %s" % path.name, host_in(path), socket.gethostname())
    expect("files of a host without a name", len(list(nameless.iterdir())), 1)
    for path in nameless.iterdir():
        expect("the host without a name in %s" % path.name, host_in(path), "localhost")
    return first


def first_session_is_whole(path):
    """What the second session hides, and how a damaged record shows."""
    events = list(event_file_loader.EventFileLoader(str(path)).Load())
    expect("file version", events[0].file_version, "brain.Event:2")
    by_tag = {}
    for event in events:
        for value in event.summary.value:
            by_tag.setdefault(value.tag, []).append((event.step, value.tensor))
    expect("late step", by_tag["late"][0][0], 2 ** 40)
    infinite, nan = (tensor.float_val[0] for step, tensor in by_tag["not finite"])
    if not (math.isinf(infinite) and math.isnan(nan)):
        sys.exit("Inf and NaN came back as %r and %r" % (infinite, nan))
    data = path.read_bytes()
    at = data.index(b"**two**")
    path.write_bytes(data[:at] + b"X" + data[at + 1:])
    if len(list(event_file_loader.EventFileLoader(str(path)).Load())) >= len(events):
        sys.exit("the package reads a damaged record: it no longer looks at checksums")
    return len(events)


def write_digits(folder):
    """Ten well separated kinds of 8x8 image with noise."""
    generator = random.Random(1)
    kinds = [[generator.randrange(2) * 10 + 2 for _ in range(64)] for _ in range(10)]
    rows = [[pixel + generator.randrange(5) for pixel in kinds[row % 10]] + [row % 10] for row in range(300)]
    folder.mkdir()
    (folder / "digits.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))


def train(*arguments):
    subprocess.run([*TRAIN, *map(str, arguments)], check=True, capture_output=True)


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def shows_the_run(run, level):
    """What the run folder's tables have."""
    board, steps, epochs = read(run), table(run / "steps.csv"), table(run / "metrics.csv")
    for tag in "loss", "loss_scale", "skipped", "lr":
        expect("%s of every step" % tag, scalars(board, "step/" + tag), [(int(row["step"]), float32(row[tag])) for row in steps])
    last_steps = [max(int(row["step"]) for row in steps if row["epoch"] == epoch["epoch"]) for epoch in epochs]
    expect("accuracies", scalars(board, "epoch/test_accuracy"),
           [(step, float32(row["test_accuracy"])) for step, row in zip(last_steps, epochs, strict=True)])
    statistics = table(run / "statistics.csv")
    if not statistics:
        sys.exit("%s has no statistics" % run)
    for row in statistics:
        tag = ("weight_exponents/" if row["tensor"] == "weight" else "scaled_gradient_exponents/") + row["name"]
        value, = (event.histogram_value for event in board.Histograms(tag) if event.step == int(row["step"]))
        expect("values of %s" % tag, value.num + int(row["zeros"]) + int(row["inf"]) + int(row["nan"]), int(row["numel"]))
        expect("exponents of %s" % tag, (value.min, value.max), (int(row["lowest_exponent"]), int(row["highest_exponent"]) + 1))
    if "opt_level: %s" % level not in text(board, "config"):
        sys.exit("the config is not shown:\n%s" % text(board, "config"))
    return len(steps), len(statistics)


def runs_are_shown():
    write_digits(FOLDER / "data")
    config = FOLDER / "config.yaml"
    config.write_text(CONFIG % (FOLDER / "data") + "amp: {opt_level: O1}\n")
    train(config, "--run-dir", FOLDER / "whole", "--stop-after", 2)
    train("--resume", FOLDER / "whole")
    climbing = FOLDER / "climbing.yaml"
    climbing.write_text(CONFIG % (FOLDER / "data") + "on_divergence: climb\namp: {opt_level: O2, loss_scale: 3e38}\n")
    train(climbing, "--run-dir", FOLDER / "climbed")
    return [shows_the_run(FOLDER / "whole", "O1"), shows_the_run(FOLDER / "climbed", "O1")]


def main():
    path = known_values_come_back()
    print("%d events of known values" % first_session_is_whole(path))
    for steps, records in runs_are_shown() if TRAIN else []:
        print("a run of %d steps with %d histograms" % (steps, records))


main()
