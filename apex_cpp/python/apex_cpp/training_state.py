"""Training states that C++ programs with apex_cpp continue, and the other way round: a model's weights, the state of its optimizer
and the loss scale, in one safetensors file.

    from apex_cpp import training_state
    training_state.save("state.safetensors", model, optimizer, scaler)   # C++: apex::amp::load_from_python
    training_state.load("state.safetensors", model, optimizer, scaler)   # C++: apex::amp::save_for_python

The optimizer is a torch.optim.SGD, Adam, AdamW, RMSprop or Adagrad whose parameters are the model's. It needs the package safetensors.
"""

import json
import os
import tempfile

import safetensors
import safetensors.torch
import torch

from apex_cpp._training_file import AGAIN, CLASSES, KEY, SIXTEEN_BITS, VERSION, check, parsed

__all__ = ["load", "read", "save"]


def load(path, model, optimizer, scaler=None):
    """Reads a training state into a model, its optimizer and, if one is given, a torch.amp.GradScaler.

    Options, also learning rates, become those of the file; options that the file lacks (foreach, those of schedulers) stay. Errors,
    before anything is changed: ValueError with the file, the wrong tensor or value, and the remedy.
    """
    state = read(path)
    try:
        _check_model(model, state["model"])
        merged = _merged(model, optimizer, state)
        has_scale = state["scaler"] is not None
        check(has_scale or scaler is None or not scaler.is_enabled(), "it has no loss scale: pass one to the call that saves it, or none here")
    except ValueError as error:
        raise ValueError(f"'{path}' was not loaded, and nothing was changed: {error}") from None
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(merged)
    if scaler is not None and has_scale:
        scaler.load_state_dict(state["scaler"])


def save(path, model, optimizer, scaler=None):
    """Writes a training state: 16-bit tensors are widened to float32. The file is replaced as a whole or not at all.

    Call it after optimizer.step() and scaler.update(). Errors, after which the old file is unchanged: ValueError for an optimizer of
    another class, and for a value that a training state cannot hold.
    """
    name, groups, states = _described(model, optimizer)
    tensors = {f"model/{key}": value for key, value in model.state_dict().items()}
    steps = {}
    for position, of_param in states.items():
        for key, value in of_param.items():
            if key == "step":
                steps[str(position)] = {"step": float(value)}
            elif value is not None:
                tensors[f"optimizer/state/{position}/{key}"] = value
    of_optimizer = {"class": name, "params": _param_names(model, optimizer), "param_groups": groups, "state": steps}
    scale = (scaler.state_dict() if scaler is not None else None) or None
    try:
        text = json.dumps({"version": VERSION, "optimizer": of_optimizer, "scaler": scale})
        written = {key: _widened(key, value) for key, value in tensors.items()}
        parsed(text, written)
    except ValueError as error:
        raise ValueError(f"'{path}' was not written: {error}") from None
    _write(path, written, {"format": "pt", KEY: text})


def read(path):
    """The content of a training state as state_dicts: {"model": …, "optimizer": …, "scaler": …, "params": names in the model}.

    The groups of "optimizer" have the options of the file, and "class" is the name of its class. "scaler" is None if there is none.
    Errors: ValueError with the file, the wrong tensor or value, and the remedy.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            check(KEY in metadata, "it is no training state of apex_cpp. Read weights with safetensors.torch.load_file")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        return parsed(metadata[KEY], tensors)
    except safetensors.SafetensorError as error:
        raise ValueError(f"cannot read '{path}': {error}. It was cut short, or it is not a safetensors file") from None
    except ValueError as error:
        raise ValueError(f"'{path}' was not loaded, and nothing was changed: {error}") from None


# ---- the model and the optimizer here ----


def _class_name(optimizer):
    """Of the class, or of the class of torch.optim that it derives from."""
    for one in type(optimizer).__mro__:
        if one.__module__.startswith("torch.optim") and one.__name__ in CLASSES:
            decoupled = {group.get("decoupled_weight_decay", False) for group in optimizer.param_groups}
            check(one.__name__ != "Adam" or len(decoupled) < 2, "its groups differ in decoupled_weight_decay: give all groups the same")
            return "AdamW" if True in decoupled else one.__name__
    raise ValueError(f"a training state holds the optimizers {', '.join(CLASSES)} of torch.optim, this is a {type(optimizer).__name__}")


def _param_names(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    params = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for i, parameter in enumerate(params):
        check(id(parameter) in names, f"parameter {i} of the optimizer is not in the model: register it in the model")
    return [names[id(parameter)] for parameter in params]


def _described(model, optimizer):
    """The class, the groups as JSON has them, and the states of an optimizer."""
    name = _class_name(optimizer)
    state = optimizer.state_dict()
    groups = []
    for group in state["param_groups"]:
        options = {key: group.get(key, False) if kind == "flag" else group[key] for key, kind in CLASSES[name].options.items()}
        groups.append({**{key: _plain(value) for key, value in options.items()}, "params": group["params"]})
    return name, groups, state["state"]


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [float(one) for one in value]
    return value if isinstance(value, bool) else float(value)


def _widened(name, tensor):
    check(isinstance(tensor, torch.Tensor), f"'{name}' is no tensor, and a training state cannot hold it")
    dtype = torch.float32 if tensor.dtype in SIXTEEN_BITS else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True).contiguous()


def _check_tensor(name, tensor, shape, dtype):
    dtypes = (torch.float32,) if dtype in SIXTEEN_BITS else (dtype, torch.float32) if dtype == torch.float64 else (dtype,)
    fits = tensor.shape == shape and tensor.dtype in dtypes
    text = f"{name} is {tensor.dtype} of shape {list(tensor.shape)} in the file, expected {dtypes[0]} of shape {list(shape)}{AGAIN}"
    check(fits, text)


def _check_model(model, weights):
    here = model.state_dict()
    for name, tensor in here.items():
        check(name in weights, f"the model's '{name}' is missing. Load it into a model that is built like the saved one")
        _check_tensor(f"'{name}'", weights[name], tensor.shape, tensor.dtype)
    for name in weights:
        check(name in here, f"its '{name[:200]}' is not in this model. Load it into a model that is built like the saved one")


def _merged(model, optimizer, state):
    """The file's state for optimizer.load_state_dict(); options that the file does not hold stay."""
    saved, name = state["optimizer"], _class_name(optimizer)
    text = f"it holds the state of a torch.optim.{saved['class']}, this optimizer is a torch.optim.{name}: load it into one of the same class"
    check(saved["class"] == name, text)
    names, params = _param_names(model, optimizer), [one for group in optimizer.param_groups for one in group["params"]]
    same = "give the optimizer the same parameters in the same groups and order"
    check(state["params"] == names, f"its optimizer has the parameters {str(state['params'])[:400]}, this one has {str(names)[:400]}: {same}")
    here = optimizer.state_dict()["param_groups"]
    positions, saved_positions = ([group["params"] for group in groups] for groups in (here, saved["param_groups"]))
    check(positions == saved_positions, f"its parameter groups are {str(saved_positions)[:400]}, this optimizer's {str(positions)[:400]}: {same}")
    of_group = {position: group for group in saved["param_groups"] for position in group["params"]}
    for position, param in enumerate(params):
        _check_state(name, saved["state"].get(position), of_group[position], f"{position}, '{names[position]}',", param)
    groups = [{**group, **options} for group, options in zip(here, saved["param_groups"], strict=True)]
    return {"state": saved["state"], "param_groups": groups}


def _check_state(name, state, group, param_name, param):
    of_class = CLASSES[name]
    if state is None:
        check(not of_class.has_state_from_start, f"the state of parameter {param_name} is missing{AGAIN}")
        return
    for key, option in of_class.tensors.items():
        needed = option is not None and (option == "" or group[option])
        check(key in state or not needed, f"the state of parameter {param_name} has no '{key}'{AGAIN}")
        if key in state:
            _check_tensor(f"'{key}' of parameter {param_name}", state[key], param.shape, param.dtype)


def _write(path, tensors, metadata):
    """Replaces the file as a whole, so that no reader sees a part of it."""
    target = os.path.realpath(path)  # a link stays one
    with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=os.path.dirname(target)) as folder:
        whole = os.path.join(folder, "state")
        safetensors.torch.save_file(tensors, whole, metadata=metadata)
        os.replace(whole, target)
