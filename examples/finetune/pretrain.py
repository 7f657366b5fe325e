"""Trains the backbone of network.h in Python, to classify the digits 0 to 4, and writes its weights: pretrain.py digits.csv backbone.safetensors

Needs torch and safetensors.
"""
import sys

import torch
from safetensors.torch import save_file


class Backbone(torch.nn.Module):
    """The counterpart of struct BackboneImpl: the same modules with the same names."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(16)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(32)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x))).amax((2, 3))


def main(digits, out):
    torch.manual_seed(0)
    with open(digits) as file:
        rows = torch.tensor([[float(number) for number in line.split(",")] for line in file])
    rows = rows[rows[:, 64] < 5]
    images, labels = rows[:, :64].view(-1, 1, 8, 8) / 16, rows[:, 64].long()
    backbone, head = Backbone(), torch.nn.Linear(32, 5)
    parameters = [*backbone.parameters(), *head.parameters()]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    for epoch in range(1, 7):
        for batch in torch.randperm(len(rows)).split(64):
            loss = torch.nn.functional.cross_entropy(head(backbone(images[batch])), labels[batch])
            # Plain SGD: torch.optim would also need sympy.
            for parameter, momentum, grad in zip(parameters, momenta, torch.autograd.grad(loss, parameters)):
                momentum.mul_(0.9).add_(grad)
                parameter.data.sub_(momentum, alpha=0.05)
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    save_file(backbone.state_dict(), out)


if len(sys.argv) != 3:
    sys.exit("usage: pretrain.py digits.csv backbone.safetensors")
main(*sys.argv[1:])
