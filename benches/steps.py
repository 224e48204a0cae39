"""Steps of training by several ways in turn, timed on all ranks of a job: what `ddp.py` and `gpu.py` share."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def timed(steps: dict[str, Callable[[], None]], rounds: int, warmup: int) -> dict[str, list[float]]:
    """The seconds of the slowest rank for each step. A round has a step by each way, each time with another one first;
    `warmup` rounds before them do not count. Collective over the default group."""
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            begun = time.perf_counter()
            steps[name]()
            slowest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if number >= warmup:
                seconds[name].append(slowest.item())
    return seconds


def check_replicas(model: torch.nn.Module, name: str) -> None:
    """Fails unless every rank has rank 0's parameters. Collective over the default group."""
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter), f"ranks have different parameters by {name}"
