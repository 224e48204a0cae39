"""Trains on parts of a batch, and compares the weights with those of one process that has the whole batch."""

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

net = network(rank)
optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), "dist_sync_mpi")
assert (optimizer.store.rank, optimizer.store.type) == (rank, "dist_sync_mpi")
assert optimizer.param_groups[0]["lr"] == 0.5
train(net, optimizer, slice(rank, None, ranks))
for own, other in zip(net.parameters(), alone.parameters()):
    assert torch.allclose(own, other, atol=1e-6), (own, other)
# A program's own keys may have the same names as ours. It cannot give parameters to a store with integer keys.
named = ringpull.create("dist_sync_mpi")
for key in ("names.0", "reached.0", "names.1"):
    named.init(key, torch.zeros(2))
again = network(0)
train(again, ringpull.torch.DistributedOptimizer(torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.9), named), slice(rank, None, ranks))
assert all(torch.equal(own, other) for own, other in zip(again.parameters(), net.parameters()))
numbered = ringpull.create("dist_sync_mpi")
numbered.init(3, torch.zeros(2))
bare = torch.optim.SGD(network(0).parameters(), lr=0.5)
try:
    ringpull.torch.DistributedOptimizer(bare, numbered)
except ringpull.ArgumentError as error:
    assert "integer keys" in str(error) and type(bare) is torch.optim.SGD, error
else:
    raise AssertionError("a store of integer keys took names")
print(f"rank {rank} is done", flush=True)
