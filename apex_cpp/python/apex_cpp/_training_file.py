"""The content of a training state: a JSON text and tensors, read with checks of every value. Private to apex_cpp.training_state."""

import json
import typing

import torch

VERSION = 1
KEY = "training_state"
AGAIN = ". Write the file again, with apex_cpp.training_state or C++'s amp::save_for_python"
_LARGEST = 1.7e308  # above it, also whole numbers have no float
_LARGEST_COUNT = 2**53  # floats have every whole number up to here
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of float32, without subnormal numbers
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class _Class(typing.NamedTuple):
    """What a training state has of a class of torch.optim."""

    options: dict  # the kind of each: number, signed, flag or betas
    tensors: dict  # the option without which the tensor may be missing; "": it is always there; None: it may always be missing
    counts_steps: bool = True
    has_state_from_start: bool = False


_RATES = {"lr": "number", "weight_decay": "number", "maximize": "flag"}
_ADAM = _Class(
    {**_RATES, "betas": "betas", "eps": "number", "amsgrad": "flag"},
    {"exp_avg": "", "exp_avg_sq": "", "max_exp_avg_sq": "amsgrad"},
)
CLASSES = {
    "SGD": _Class(
        {**_RATES, "momentum": "number", "dampening": "signed", "nesterov": "flag"},
        {"momentum_buffer": None},
        counts_steps=False,
    ),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "RMSprop": _Class(
        {**_RATES, "alpha": "number", "eps": "number", "momentum": "number", "centered": "flag"},
        {"square_avg": "", "momentum_buffer": "momentum", "grad_avg": "centered"},
    ),
    "Adagrad": _Class(
        {**_RATES, "lr_decay": "number", "initial_accumulator_value": "number", "eps": "number"},
        {"sum": ""},
        has_state_from_start=True,
    ),
}
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def check(condition, text):
    if not condition:
        raise ValueError(text)


def _expect(condition, path, value, expected):
    check(condition, f"its '{path}' is {_shown(value)}, expected {expected}{AGAIN}")


def _shown(value):
    """A short text for messages. Lists and objects may be deep, and are not written."""
    return {list: "a list", dict: "an object"}.get(type(value)) or str(value)[:40]


def _member(value, path, key):
    _expect(isinstance(value, dict), path, value, "an object")
    check(key in value, f"it has no '{path}/{key}'{AGAIN}")
    return value[key]


def _check_keys(value, path, known):
    _expect(isinstance(value, dict), path, value, "an object")
    for key in value:
        check(key in known, f"its '{path}' has the unknown entry '{key[:80]}'{AGAIN}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _count(value, path, lowest=0):
    fits = _is_number(value) and lowest <= value <= _LARGEST_COUNT and value == int(value)
    _expect(fits, path, value, f"a whole number of at least {lowest}")
    return int(value)


def _option(kind, value, path):
    if kind == "flag":
        _expect(isinstance(value, bool), path, value, "true or false")
    elif kind == "betas":
        fits = isinstance(value, list) and len(value) == 2 and all(_is_number(beta) and 0 <= beta < 1 for beta in value)
        _expect(fits, path, value, "two numbers of at least 0 and below 1")
        return tuple(value)
    else:
        _expect(_is_number(value), path, value, "a finite number")
        _expect(kind == "signed" or value >= 0, path, value, "a number of at least 0")
    return value


def _scaler(value):
    _check_keys(value, "scaler", _SCALER)
    state = {key: _member(value, "scaler", key) for key in _SCALER}
    for key in _SCALER[:3]:
        _expect(_is_number(state[key]), f"scaler/{key}", state[key], "a finite number")
    fits = _SMALLEST_SCALE <= state["scale"] <= _LARGEST_SCALE
    _expect(fits, "scaler/scale", state["scale"], "a number above 0 that float32 holds")
    _expect(state["growth_factor"] > 1, "scaler/growth_factor", state["growth_factor"], "a number above 1")
    _expect(0 < state["backoff_factor"] < 1, "scaler/backoff_factor", state["backoff_factor"], "a number between 0 and 1")
    state["growth_interval"] = _count(state["growth_interval"], "scaler/growth_interval", 1)
    tracker = state["_growth_tracker"] = _count(state["_growth_tracker"], "scaler/_growth_tracker")
    _expect(tracker < 2**31, "scaler/_growth_tracker", tracker, "a whole number below 2147483648")
    return state


def _group(of_class, value, path, params):
    _check_keys(value, path, [*of_class.options, "params"])
    group = {key: _option(kind, _member(value, path, key), f"{path}/{key}") for key, kind in of_class.options.items()}
    positions = _member(value, path, "params")
    _expect(isinstance(positions, list), f"{path}/params", positions, "a list")
    group["params"] = [_count(position, f"{path}/params/{i}") for i, position in enumerate(positions)]
    for position in group["params"]:
        _expect(position < params, f"{path}/params", position, f"numbers below {params}")
    return group


def _position(text, params):
    fits = text.isascii() and text.isdigit() and len(text) < 10 and int(text) < params
    check(fits, f"it has a state of the parameter '{text[:80]}', and only {params} parameters{AGAIN}")
    return int(text)


def _states(name, steps, tensors, params):
    """The state of each parameter, from the steps in the JSON text and the tensors of the file."""
    of_class, states = CLASSES[name], {}
    _expect(isinstance(steps, dict), "optimizer/state", steps, "an object")
    for text, value in steps.items():
        path = f"optimizer/state/{text[:80]}"
        _expect(of_class.counts_steps, path, value, f"nothing: torch.optim.{name} counts no steps")
        _check_keys(value, path, ["step"])
        step = _count(_member(value, path, "step"), f"{path}/step")
        states.setdefault(_position(text, params), {})["step"] = torch.tensor(float(step), dtype=torch.float32)
    for key, tensor in tensors.items():
        position, _, entry = key.partition("/")
        known = ", ".join(of_class.tensors)
        check(entry in of_class.tensors, f"its tensor 'optimizer/state/{key[:200]}' is no state of torch.optim.{name}, which has {known}{AGAIN}")
        states.setdefault(_position(position, params), {})[entry] = tensor
    for position, state in states.items():
        check("step" in state or not of_class.counts_steps, f"it has no 'optimizer/state/{position}/step'{AGAIN}")
    return states


def _not_finite(constant):
    raise ValueError(f"its '{KEY}' has {constant} in place of a finite number{AGAIN}")


def parsed(text, tensors):
    try:
        content = json.loads(text, parse_constant=_not_finite)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"its '{KEY}' is not valid JSON: {error}{AGAIN}") from None
    version = _count(_member(content, KEY, "version"), "version")
    check(version == VERSION, f"it is a training state of version {version}, this apex_cpp reads version {VERSION}: use a newer one")
    _check_keys(content, KEY, ["version", "optimizer", "scaler"])
    optimizer = _member(content, KEY, "optimizer")
    _check_keys(optimizer, "optimizer", ["class", "params", "param_groups", "state"])
    name, params, groups, steps = (_member(optimizer, "optimizer", key) for key in ("class", "params", "param_groups", "state"))
    _expect(isinstance(name, str) and name in CLASSES, "optimizer/class", name, ", ".join(CLASSES))
    _expect(isinstance(params, list) and all(isinstance(one, str) for one in params), "optimizer/params", params, "a list of names")
    _expect(isinstance(groups, list), "optimizer/param_groups", groups, "a list")
    groups = [_group(CLASSES[name], group, f"optimizer/param_groups/{i}", len(params)) for i, group in enumerate(groups)]
    parts = {"model/": {}, "optimizer/state/": {}}
    for key, tensor in tensors.items():
        prefix = next((prefix for prefix in parts if key.startswith(prefix)), None)
        check(prefix is not None, f"its tensor '{key[:200]}' belongs neither to a model nor to an optimizer{AGAIN}")
        parts[prefix][key[len(prefix):]] = tensor
    states = _states(name, steps, parts["optimizer/state/"], len(params))
    scale = _member(content, KEY, "scaler")
    return {
        "model": parts["model/"],
        "optimizer": {"class": name, "state": states, "param_groups": groups},
        "params": params,
        "scaler": None if scale is None else _scaler(scale),
    }
