"""Trains with PyTorch's DataLoader, whose workers are forked from a program with a store."""

import numpy as np
import torch
from torch import nn

import ringpull
import ringpull.torch

LEN = 1 << 17


class Rows(torch.utils.data.Dataset):
    """Data in memory that ranks share. A loader's worker must find it unchanged, and then overwrites a part of its own copy."""

    def __init__(self):
        self.values = ringpull.zeros(LEN)
        self.values[:] = np.arange(LEN)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = torch.from_numpy(self.values[index * 8 : index * 8 + 8].copy())
        assert (row == torch.arange(index * 8, index * 8 + 8)).all(), row
        self.values[LEN - 8 :] = -1
        return row / 512


def main():
    torch.manual_seed(0)
    net = nn.Linear(8, LEN // 1024)
    optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), "dist_sync_mpi")
    rows = Rows()
    expected = np.arange(LEN, dtype=np.float32)
    for _ in range(3):
        # New workers are forked in every epoch.
        for batch in torch.utils.data.DataLoader(rows, batch_size=8, num_workers=2):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
        assert (rows.values == expected).all(), "a worker has changed the parent's array"
    print(f"rank {optimizer.store.rank} ends with {net.weight.sum().item():.6f}", flush=True)


if __name__ == "__main__":
    main()
