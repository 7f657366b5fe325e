"""Steps of Python's torch.optim.Muon: muon.py THREADS

Writes to stdout, for each case of muon_test.cpp in its order, the parameter after the steps and its momentum_buffer, as float32."""
import sys
import types

import torch

# torch.optim marks its methods for torch.compile; the module for that needs packages that the test environment lacks.
torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None, is_compiling=lambda: False
)

STEPS = 5
CASES = [
    ((24, 40), {}),
    ((40, 24), {"lr": 0.02}),
    ((128, 96), {"lr": 0.02, "nesterov": False, "weight_decay": 0.0}),
    (
        (7, 5),
        {"lr": 0.05, "momentum": 0.8, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 100.0},
    ),
]


def values(shape, seed):
    """Multiples of 1/64 that float16 and bfloat16 have."""
    i = torch.arange(shape[0] * shape[1])
    return (((i * i % 61 + i * 37 + seed * 101) % 255 - 127) / 64).view(shape)


def run(shape, options):
    param = torch.nn.Parameter(values(shape, 0))
    optimizer = torch.optim.Muon([param], **options)
    for step in range(STEPS):
        param.grad = values(shape, 1 + step)
        optimizer.step()
    return param.detach(), optimizer.state[param]["momentum_buffer"]


torch.set_num_threads(int(sys.argv[1]))
tensors = [tensor.flatten() for case in CASES for tensor in run(*case)]
sys.stdout.buffer.write(bytes(torch.cat(tensors).view(torch.uint8).tolist()))
