"""Apex's Python code where there is no GPU: some of it makes its flags with device="cuda" or torch.cuda.IntTensor."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode


def _asks_for_cuda(device):
    return device is not None and str(device).partition(":")[0] == "cuda"


class _CpuForCuda(TorchFunctionMode):
    """Calls of torch with device="cuda" run with device="cpu"."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _asks_for_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


@contextlib.contextmanager
def without_gpu():
    """A context in which `device="cuda"` and torch.cuda.IntTensor and FloatTensor mean the CPU, on this thread. Where there is a GPU
    it changes nothing.

        with apex_cpp.without_gpu():
            optimizer = apex.optimizers.FusedAdam(model.parameters())
    """
    if torch.cuda.is_available():
        yield
        return
    replaced = {name: getattr(torch.cuda, name) for name in ("IntTensor", "FloatTensor")}
    try:
        for name in replaced:
            setattr(torch.cuda, name, getattr(torch, name))
        with _CpuForCuda():
            yield
    finally:
        for name, tensor_type in replaced.items():
            setattr(torch.cuda, name, tensor_type)
