"""Prints the errors of 8-bit Adam of torchao 0.18.0 and bitsandbytes 0.50.2 that eight_bit_peers_test.cpp compares with, in its form.

Run it in an environment with torch 2.11 and these two packages; it needs no GPU and takes two minutes. Each optimizer takes 200 steps with the
gradients of the test, and is compared with torch's AdamW."""
import bitsandbytes as bnb
import torch
import torchao.optim
from bitsandbytes.functional import dequantize_blockwise

STEPS, SIZE, COLUMNS = 200, 4096, 256
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


def mixed(bits):
    """lowbias32, as in kernels/rules/quantized.h."""
    bits = ((bits ^ bits >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ bits >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return bits ^ bits >> 16


def uniform(key):
    """From -1 to 1."""
    return mixed(key).double() / 2.0**31 - 1


def scale(kind, index, step):
    if kind == "Rows":
        return torch.exp2(-3.0 * (index // COLUMNS % 4))
    if kind == "Elements":
        return torch.exp2(-6 + 6 * uniform(index + (1 << 30)))
    return torch.full((SIZE,), 0.01 if kind == "Shrinking" and step >= 50 else 1.0, dtype=torch.double)


def gradient(kind, step):
    index = torch.arange(SIZE)
    noise = sum(uniform(index + ((4 * step + part) << 14)) for part in range(4))
    return (1e-2 * scale(kind, index, step) * (noise + 0.5 * uniform(index + (1 << 31)))).float()


def start():
    return (0.05 * uniform(torch.arange(SIZE) + (3 << 30))).float()


def trained(make, kind, moments_of):
    """The parameter, its mean, and the root of its mean of squares."""
    param = torch.nn.Parameter(start())
    optimizer = make([param], **SETTINGS)
    for step in range(STEPS):
        param.grad = gradient(kind, step)
        optimizer.step()
    mean, square = moments_of(optimizer.state[param])
    return param.detach().double(), mean.double(), square.double().sqrt()


def of_torch(state):
    return state["exp_avg"], state["exp_avg_sq"]


def of_torchao(state):
    return state["exp_avg"].dequantize(), state["exp_avg_sq"].dequantize()


def of_bitsandbytes(state):
    return [dequantize_blockwise(state[f"state{i}"], absmax=state[f"absmax{i}"], code=state[f"qmap{i}"], blocksize=256) for i in (1, 2)]


def error(found, exact):
    return ((found - exact).norm() / exact.norm()).item()


def main():
    peers = {"torchao": (torchao.optim.AdamW8bit, of_torchao), "bitsandbytes": (bnb.optim.AdamW8bit, of_bitsandbytes)}
    for kind in ("Even", "Rows", "Elements", "Shrinking"):
        param, mean, root = trained(torch.optim.AdamW, kind, of_torch)
        for name, (make, moments_of) in peers.items():
            found = trained(make, kind, moments_of)
            errors = (error(found[1], mean), error(found[2], root), error(found[0] - start(), param - start()))
            print(f'    {{"{kind}", "{name}", {{{", ".join(f"{value:.4g}" for value in errors)}}}}},', flush=True)


main()
