"""Which combinations convergence.py trains, and what must hold among their results."""
from typing import NamedTuple

# type: the other keys of a config's `optimizer`
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "FusedSGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.003},
    "FusedAdam": {"lr": 0.003},
    "FusedLAMB": {"lr": 0.02},
    "DistributedFusedAdam": {"lr": 0.003},  # two processes
}
# As FusedAdam, with steps that BF16 weights without masters lose: at O0, and at O5 with the storages below.
SMALL_STEPS = "FusedAdam, small steps"
SMALL_STEPS_KEYS = {"type": "FusedAdam", "lr": 0.0003}
SMALL_STEPS_EPOCHS = 16
WITHOUT_MASTERS = "FusedAdam, small steps, without masters"
# Storages of masters and moments, at O5 alone: the optimizer beside whose O0 they must end, and the keys of a config's `optimizer`.
STORED = {
    "FusedSGD remainder16": ("FusedSGD", {"master_storage": "remainder16"}),
    "FusedSGD remainder8": ("FusedSGD", {"master_storage": "remainder8"}),
    "FusedAdam remainder16": ("FusedAdam", {"master_storage": "remainder16"}),
    "FusedAdam remainder8": ("FusedAdam", {"master_storage": "remainder8"}),
    "FusedAdam bfloat16": ("FusedAdam", {"moment_storage": "bfloat16"}),
    "FusedAdam int8": ("FusedAdam", {"moment_storage": "int8"}),
    "FusedAdam remainder8 int8": ("FusedAdam", {"master_storage": "remainder8", "moment_storage": "int8"}),
    "FusedAdam, small steps, float32": (SMALL_STEPS, {}),
    "FusedAdam, small steps, remainder16": (SMALL_STEPS, {"master_storage": "remainder16"}),
    "FusedAdam, small steps, remainder8 int8": (SMALL_STEPS, {"master_storage": "remainder8", "moment_storage": "int8"}),
    "FusedAdam, small steps, stochastic": (SMALL_STEPS, {"master_storage": "stochastic"}),
    "FusedAdam, small steps, stochastic int8": (SMALL_STEPS, {"master_storage": "stochastic", "moment_storage": "int8"}),
    WITHOUT_MASTERS: (SMALL_STEPS, {}),
}
# level: what keep_batchnorm_fp32 can be. Apex refuses it at O1 (and so O4); at O0 the network has no other dtype.
LEVELS = {"O0": ["none"], "O1": ["none"], "O2": ["none", "true", "false"], "O3": ["none", "true", "false"], "O4": ["none"],
          "O5": ["none", "true", "false"]}
DEFAULT_OF_KEEP = {"O2": "true", "O3": "false", "O5": "true"}
LOSS_SCALES = ["none", "1", "128", "dynamic"]  # none: the level's own
DEFAULT_OF_SCALE = {"O0": "1", "O1": "dynamic", "O2": "dynamic", "O3": "1", "O4": "1", "O5": "1"}
WIDE_EXPONENT = {"O0", "O4", "O5"}

# (optimizer, level): why its combinations may end elsewhere than O0
EXPLAINED = {
    ("Adam", "O3"): "diverges: without master weights its state is FP16, in which the default eps of 1e-8 is 0",
    (WITHOUT_MASTERS, "O5"): "BF16 weights lose small steps, if they are rounded to nearest",
    ("FusedLAMB", "O3"): "diverges with some seeds: without master weights its state is FP16, in which small second moments are 0",
}


class Run(NamedTuple):
    optimizer: str
    level: str
    loss_scale: str
    keep_batchnorm_fp32: str
    seed: str

    def name(self):
        return "-".join(self)


class Result(NamedTuple):
    optimizer: str
    level: str
    loss_scale: str
    keep_batchnorm_fp32: str
    seed: str
    test_accuracy: str  # in percent
    skipped_steps: str
    end: str
    losses: str  # digest of the losses of all steps

    def run(self):
        return Run(*self[:5])


def cells():
    levels = [(optimizer, level, loss_scale, keep) for optimizer in OPTIMIZERS for level, keeps in LEVELS.items()
              for loss_scale in LOSS_SCALES for keep in keeps]
    return levels + [(SMALL_STEPS, "O0", "none", "none")] + [(stored, "O5", "none", "none") for stored in STORED]


def optimizer_keys(optimizer):
    """The `optimizer` section of a config."""
    kind, storage = STORED.get(optimizer, (optimizer, {}))
    return {**(SMALL_STEPS_KEYS if kind == SMALL_STEPS else {"type": kind, **OPTIMIZERS[kind]}), **storage}


def epochs_of(optimizer):
    kind, _ = STORED.get(optimizer, (optimizer, {}))
    return SMALL_STEPS_EPOCHS if kind == SMALL_STEPS else 8


def accuracies(results, cell, seeds):
    return [float(results[Run(*cell, str(seed))].test_accuracy) for seed in range(seeds)]


def twin(cell):
    """The combination whose losses must be the same, or None."""
    optimizer, level, loss_scale, keep = cell
    if keep != "none" and keep == DEFAULT_OF_KEEP.get(level):
        return optimizer, level, loss_scale, "none"
    if loss_scale == DEFAULT_OF_SCALE[level] or level in WIDE_EXPONENT and loss_scale != "none":
        return optimizer, level, "none", keep
    return None


def ends_elsewhere(results, cell, seeds):
    kind, _ = STORED.get(cell[0], (cell[0], None))
    at_o0 = accuracies(results, (kind, "O0", "none", "none"), seeds)
    mean = sum(accuracies(results, cell, seeds)) / seeds
    if min(at_o0) <= mean <= max(at_o0):
        return None
    return f"{' '.join(cell)}: {mean:.2f} %, O0's seeds {min(at_o0):.2f} to {max(at_o0):.2f} %"


def faults(results, seeds):
    """What does not hold, one line each."""
    found, unused = [], set(EXPLAINED)
    for cell in cells():
        elsewhere = ends_elsewhere(results, cell, seeds)
        if elsewhere and cell[:2] not in EXPLAINED:
            found.append(elsewhere)
        if elsewhere:
            unused.discard(cell[:2])
        other = twin(cell)
        differing = [seed for seed in range(seeds) if other and
                     results[Run(*cell, str(seed))].losses != results[Run(*other, str(seed))].losses]
        if differing:
            found.append(f"{' '.join(cell)}: not the losses of {' '.join(other)}, with seed {differing[0]}")
    return found + [f"{' '.join(pair)}: ends as O0, not as explained" for pair in sorted(unused)]


def table(results, seeds):
    """For each optimizer and level, the lowest and the highest mean of its combinations; for O0, of its seeds."""
    lines = ["| test accuracy, % | O0, " + f"{seeds} seeds | " + " | ".join(level for level in LEVELS if level != "O0") + " |",
             "|---|" + "---|" * len(LEVELS)]
    for optimizer in [*OPTIMIZERS, SMALL_STEPS]:
        at_o0 = accuracies(results, (optimizer, "O0", "none", "none"), seeds)
        words = [f"{min(at_o0):.2f} to {max(at_o0):.2f}"]
        for level in LEVELS:
            means = [sum(accuracies(results, cell, seeds)) / seeds for cell in cells() if cell[:2] == (optimizer, level)]
            if level != "O0":
                words.append(f"{min(means):.2f} to {max(means):.2f}" if means else "")
        lines.append(f"| {optimizer} | " + " | ".join(words) + " |")
    lines += ["", "| stored at O5 | test accuracy, % |", "|---|---|"]
    for stored in STORED:
        lines.append(f"| {stored} | {sum(accuracies(results, (stored, 'O5', 'none', 'none'), seeds)) / seeds:.2f} |")
    return "\n".join(lines)
