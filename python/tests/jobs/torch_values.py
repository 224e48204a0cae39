"""Trains on parts of a batch and compares with one process that has all of it."""

import sys
import tempfile
from typing import Any

import torch
from torch import nn

import ringpull
import ringpull.torch

store = ringpull.create("dist_sync_mpi")
rank, ranks = store.rank, store.num_workers


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


inputs = torch.arange(24.0).reshape(8, 3) / 24
targets = torch.arange(8) % 2


def train(net, optimizer, part):
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[part]), targets[part]).backward()
        optimizer.step()


alone = network(0)
train(alone, torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9), slice(None))

if sys.argv[1] == "optimizer":
    net = network(rank)
    optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), "dist_sync_mpi")
    assert (optimizer.store.rank, optimizer.store.type) == (rank, "dist_sync_mpi")
    assert optimizer.param_groups[0]["lr"] == 0.5
    train(net, optimizer, slice(rank, None, ranks))
else:
    net = network(0)
    # DistributedDataParallel requires a process group; one of a single process carries no gradient.
    with tempfile.NamedTemporaryFile() as file:
        torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        model: Any = nn.parallel.DistributedDataParallel(net)
        model.register_comm_hook(None, ringpull.torch.ddp_hook("dist_sync_mpi"))
        train(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), slice(rank, None, ranks))
        torch.distributed.destroy_process_group()
for own, other in zip(net.parameters(), alone.parameters()):
    assert torch.allclose(own, other, atol=1e-6), (own, other)
print(f"rank {rank} is done", flush=True)
