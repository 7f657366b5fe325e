"""Records the rates of Python's torch.optim.lr_scheduler: record.py [--check] FILE

Writes FILE, or with --check compares a fresh recording with it. Each case has a scheduler on an optimizer with three parameter groups, 3000
steps, the rates (and momentum, where it is cycled) at some steps as hexadecimal floats, and a checksum over those of every step.
rates_test.cpp makes the same schedulers, by the names of the cases."""
import argparse
import json
import pathlib
import struct
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lrs

STEPS = 3000
RATES = (0.1, 0.03, 1e-4)
SHOWN = {*range(12), *range(95, 105), *range(250, STEPS, 250), STEPS}


def sequence(opt, parts, milestones):
    return lrs.SequentialLR(opt, [part(opt) for part in parts], milestones)


def linear(*arguments):
    return lambda opt: lrs.LinearLR(opt, *arguments)


def cosine(*arguments):
    return lambda opt: lrs.CosineAnnealingLR(opt, *arguments)


def one_cycle(*arguments, **options):
    return lambda opt: lrs.OneCycleLR(opt, *arguments, **options)


def lambda_each(opt):
    return lrs.LambdaLR(opt, [lambda epoch: 0.999**epoch, lambda epoch: 1 / (1 + epoch), lambda epoch: 1.0])


def three_parts(opt):
    parts = [
        lambda opt: lrs.ConstantLR(opt, 0.1, 20),
        lambda opt: lrs.ExponentialLR(opt, 0.999),
        lambda opt: lrs.PolynomialLR(opt, 1000, 2.0),
    ]
    return sequence(opt, parts, [20, 1500])


def restarts(opt):
    parts = [
        lambda opt: lrs.StepLR(opt, 3, 0.5),
        lambda opt: lrs.MultiStepLR(opt, [2, 4], 0.5),
        lambda opt: lrs.ConstantLR(opt, 0.2, 5),
        lambda opt: lrs.LambdaLR(opt, lambda epoch: 0.9**epoch),
    ]
    return sequence(opt, parts, [10, 98, 101])


def chained(opt):
    return lrs.ChainedScheduler([lrs.ConstantLR(opt, 0.1, 20), lrs.ExponentialLR(opt, 0.999)])


def chained_sequence(opt):
    return lrs.ChainedScheduler([sequence(opt, [linear(0.01, 1.0, 100), cosine(2900)], [100]), lrs.StepLR(opt, 700, 0.3)])


CASES = {
    "lambda": lambda opt: lrs.LambdaLR(opt, lambda epoch: 0.95**epoch),
    "lambda_each": lambda_each,
    "step": lambda opt: lrs.StepLR(opt, 30, 0.97),
    "multi_step": lambda opt: lrs.MultiStepLR(opt, [5, 20, 20, 1500], 0.3),
    "constant": lambda opt: lrs.ConstantLR(opt, 0.3, 40),
    "exponential": lambda opt: lrs.ExponentialLR(opt, 0.9995),
    "linear_default": linear(),
    "linear_up": linear(1e-3, 1.0, 1000),
    "linear_down": linear(1.0, 0.0, 2500),
    "polynomial": lambda opt: lrs.PolynomialLR(opt, 2500, 0.9),
    "polynomial_square": lambda opt: lrs.PolynomialLR(opt, 1000, 2.0),
    "cosine": cosine(3000, 1e-5),
    "cosine_waves": cosine(7, 1e-5),
    "warmup_cosine": lambda opt: sequence(opt, [linear(0.01, 1.0, 100), cosine(2900)], [100]),
    "warmup_one_cycle": lambda opt: sequence(opt, [linear(0.5, 1.0, 100), one_cycle(0.2, 2900)], [100]),
    "three_parts": three_parts,
    "restarts": restarts,
    "chained": chained,
    "chained_sequence": chained_sequence,
    "by_hand_cosine": cosine(2000, 1e-5),
    "by_hand_linear": linear(0.1, 1.0, 700),
    "one_cycle": one_cycle(0.4, 3000),
    "one_cycle_epochs": one_cycle([0.4, 0.2, 0.1], epochs=10, steps_per_epoch=300, base_momentum=[0.8, 0.7, 0.6], final_div_factor=100.0),
    "one_cycle_adam": one_cycle(0.4, 3000, pct_start=0.4, anneal_strategy="linear", three_phase=True, div_factor=10.0),
    "one_cycle_rates_only": one_cycle(0.4, 3000, cycle_momentum=False),
}


class Groups(torch.optim.Optimizer):
    """All that a scheduler needs of an optimizer. The constructor of the real ones needs packages that tools/setup does not install."""

    def __init__(self, options):  # without the base class's
        self.defaults = options
        self.param_groups = [{"lr": rate, **options} for rate in RATES]

    def step(self):
        pass


def optimizer_of(name):
    return Groups({"betas": (0.9, 0.999)} if name.endswith("adam") else {"momentum": 0.9})


def values_of(name, opt):
    rates = [group["lr"] for group in opt.param_groups]
    if "one_cycle" not in name:
        return rates
    return rates + [group["betas"][0] if "betas" in group else group["momentum"] for group in opt.param_groups]


def edit_by_hand(step, opt):
    """What a program may do between two steps of a scheduler."""
    if step == 97:
        for group in opt.param_groups:
            group["lr"] *= 0.5
    if step == 500:
        opt.param_groups[1]["lr"] = 0.02


def checksum_of(values, before):
    for (bits,) in struct.iter_unpack("<Q", struct.pack(f"<{len(values)}d", *values)):
        before = (before ^ bits) * 1099511628211 % 2**64
    return before


def record(name):
    opt = optimizer_of(name)
    scheduler = CASES[name](opt)
    shown, checksum = {}, 14695981039346656037
    for step in range(STEPS + 1):
        if step > 0:
            if name.startswith("by_hand"):
                edit_by_hand(step, opt)
            opt.step()
            scheduler.step()
        values = values_of(name, opt)
        checksum = checksum_of(values, checksum)
        if step in SHOWN:
            shown[str(step)] = " ".join(float(value).hex() for value in values)
    return {"checksum": str(checksum), "values": shown}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    fresh = {name: record(name) for name in CASES}
    if not arguments.check:
        arguments.file.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "steps": STEPS, "cases": fresh}, indent=0) + "\n")
        return
    recorded = json.loads(arguments.file.read_text())["cases"]
    different = [name for name in {**fresh, **recorded} if fresh.get(name) != recorded.get(name)]
    print(f"{len(fresh)} cases with torch {torch.__version__}, different: {different or 'none'}")
    sys.exit(bool(different) or not fresh)


main()
