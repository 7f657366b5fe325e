"""The models and optimizers of pairs.cpp, in Python."""

import sys
import types

import torch
from torch import nn

# torch.optim marks its methods for torch.compile; the module for that needs packages that the test environment lacks.
torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None, is_compiling=lambda: False
)


class Net(nn.Module):
    """The model of a kind, with the parameters of the C++ model; it is never called."""

    def __init__(self, kind):
        super().__init__()
        if kind == "linear":
            self.fc = nn.Linear(7, 3)
        elif kind == "mlp":
            self.first = nn.Linear(5, 9)
            self.second = nn.Linear(9, 2)
        elif kind == "conv":
            self.conv = nn.Conv2d(2, 3, 3)
            self.bn = nn.BatchNorm2d(3)
            self.head = nn.Linear(3, 4)
        elif kind == "tied":
            self.embedding = nn.Embedding(6, 4)
            self.head = nn.Linear(4, 6)
            self.head.weight = self.embedding.weight
        elif kind == "lstm":
            self.lstm = nn.LSTM(3, 5)
        else:
            raise ValueError(kind)


def one_group(optimizer, **options):
    return lambda model: optimizer(model.parameters(), foreach=False, **options)


def two_groups(optimizer, second_lr, **options):
    """Weights of matrices in one group, all others in a second one with a learning rate of its own."""

    def make(model):
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": [p for p in model.parameters() if p.dim() <= 1]}]
        groups[1]["lr"] = second_lr
        return optimizer(groups, foreach=False, **options)

    return make


OPTIM = torch.optim
# name: the model, the optimizer, and whether both sides call the same ATen kernels, with the same arguments in the same order.
# Python's Adam, AdamW and centered RMSprop average with lerp, LibTorch's with mul and add; the fused optimizers have kernels of
# their own.
PAIRS = {
    "sgd": ("linear", one_group(OPTIM.SGD, lr=0.05), True),
    "sgd_nesterov": ("mlp", one_group(OPTIM.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True), True),
    "sgd_groups": ("lstm", two_groups(OPTIM.SGD, 0.02, lr=0.05, momentum=0.8, dampening=0.1), True),
    "rmsprop": ("conv", one_group(OPTIM.RMSprop, lr=0.01, momentum=0.5, weight_decay=0.01), True),
    "adagrad": ("tied", one_group(OPTIM.Adagrad, lr=0.02, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.125), True),
    "rmsprop_centered": ("linear", one_group(OPTIM.RMSprop, lr=0.01, centered=True), False),
    "adam": ("mlp", one_group(OPTIM.Adam, lr=0.01, amsgrad=True, weight_decay=0.01), False),
    "adamw": ("conv", two_groups(OPTIM.AdamW, 0.005, lr=0.01, betas=(0.8, 0.95)), False),
    "fused_adamw": ("lstm", two_groups(OPTIM.AdamW, 0.005, lr=0.01, weight_decay=0.1), False),
    "fused_adam": ("tied", one_group(OPTIM.Adam, lr=0.01, weight_decay=0.01), False),
    "fused_sgd": ("conv", one_group(OPTIM.SGD, lr=0.05, momentum=0.9, weight_decay=0.01), False),
    "fused_adagrad": ("mlp", one_group(OPTIM.Adagrad, lr=0.02, weight_decay=0.01), False),
}


class Training:
    """One training run of a pair; `mode` is "plain" or "scaler"."""

    def __init__(self, name, mode="plain"):
        kind, make_optimizer, _ = PAIRS[name]
        self.model = Net(kind)
        self.optimizer = make_optimizer(self.model)
        # Other values than those of the file, which replace them.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=7) if mode == "scaler" else None

    def run(self, gradients, begin, end):
        """Steps `begin` to `end`. With a scaler, steps 1 and 4 have an Inf and are skipped."""
        for step in range(begin, end):
            self.optimizer.zero_grad()
            if self.scaler is None:
                for name, parameter in self.model.named_parameters():
                    parameter.grad = gradients[f"{step}/{name}"].clone()
                self.optimizer.step()
                continue
            self.scaler.scale(self._loss(gradients, step, overflows=step % 3 == 1)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _loss(self, gradients, step, overflows):
        loss = torch.zeros(())
        for name, parameter in self.model.named_parameters():
            loss = loss + (parameter * gradients[f"{step}/{name}"]).sum()
            if overflows:
                loss = loss + parameter.sum() * float("inf")
        return loss
