"""The common code of `ddp.py`, `ddp_horovod.py` and `gpu.py`: steps of training by several ways in turn, timed
on all ranks of a job."""

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn


def options(doc: str | None) -> argparse.Namespace:
    """Returns the options of a command that trains `perceptron`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    return parser.parse_args()


def perceptron(words: argparse.Namespace, rank: int) -> tuple[nn.Module, torch.Tensor]:
    """Returns a model, equal on all ranks, and a batch, different on each rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(words.width, words.width), nn.ReLU()) for _ in range(words.layers)]
    torch.manual_seed(rank)
    return nn.Sequential(*layers), torch.randn(words.batch, words.width)


def slowest_of_all(seconds: float, group: dist.ProcessGroup | None = None) -> float:
    """Returns the largest `seconds` of any rank of the group, by default of all ranks. Collective."""
    slowest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
    return slowest.item()


def timed(
    steps: dict[str, Callable[[], None]],
    rounds: int,
    warmup: int,
    barrier: Callable[[], object] = dist.barrier,
    slowest: Callable[[float], float] = slowest_of_all,
) -> dict[str, list[float]]:
    """Returns for each way the seconds of its steps on the slowest rank. A round has a step by each way, and each round
    begins with another way. The first `warmup` rounds do not count. Collective."""
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            barrier()
            begun = time.perf_counter()
            steps[name]()
            took = slowest(time.perf_counter() - begun)
            if number >= warmup:
                seconds[name].append(took)
    return seconds


def check_replicas(model: torch.nn.Module, name: str) -> None:
    """Fails unless every rank has rank 0's parameters. Collective over the default group."""
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter), f"ranks have different parameters by {name}"
