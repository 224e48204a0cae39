"""The table of programs, and the network that most of them train."""

from typing import Any

import torch
from torch import nn

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())

#: The programs by their names, each with the fronts that run it.
PROGRAMS: dict[str, tuple[Any, tuple[str, ...]]] = {}


def program(needs=(1, 13), fronts=("ringpull", "horovod"), **cases):
    """Adds a program to the table for each of the named cases."""

    def known(function):
        for name, case in cases.items() or [("", ())]:
            if needs <= VERSION:
                PROGRAMS[f"{function.__name__} {name}".strip()] = ((lambda run, case=case: function(run, *case)), fronts)
        return function

    return known


class Run:
    """Gives a program its optimizer, and a loss. The average of the loss's gradients over the ranks is the gradient in a bare run."""

    def __init__(self, wrap=None, rank=0, ranks=1):
        self.made, self.is_bare, self.rank, self.ranks = wrap, wrap is None, rank, ranks

    @property
    def apart(self):
        """A number that differs on each rank, and is zero on average over the ranks."""
        return 0 if self.is_bare else 2 * self.rank - self.ranks + 1

    def wrap(self, optimizer, *words, **named):
        return optimizer if self.made is None else self.made(optimizer, *words, **named)

    def loss(self, net, inputs=None):
        inputs = torch.linspace(-1, 1, 12).reshape(4, 3) if inputs is None else inputs
        made = net(inputs.to(next(net.parameters()).dtype)).square().mean()
        return made + self.off(net.parameters())

    def off(self, parameters):
        """A term of the loss whose gradients differ on each rank, and are zero on average over the ranks."""
        if self.is_bare or self.ranks == 1:
            return 0.0
        share = 0.25 * self.apart
        return sum(share * parameter.sum() for parameter in parameters if parameter.requires_grad)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def weights(net):
    return [parameter.detach().clone() for parameter in net.parameters()]


def train(run, net, optimizer, steps=3, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        run.loss(net).backward()
        optimizer.step()
        after()
    return weights(net)


def sgd(net, **options):
    return torch.optim.SGD(net.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
