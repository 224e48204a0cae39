"""Trains a small network on Fashion-MNIST with PyTorch, gradients averaged over the workers by ringpull.torch.

    python examples/torch/train.py
    mpirun -n 4 --oversubscribe python examples/torch/train.py --kv-store dist_sync_mpi
"""

import argparse
import gzip
import hashlib
import pathlib
import struct

import numpy
import torch
from torch import nn

import ringpull
import ringpull.torch

#: Where Debian's package dataset-fashion-mnist puts the files, and where `scripts/setup` puts them without
#: root.
FASHION_MNIST = [
    pathlib.Path("/usr/share/datasets/fashion-mnist"),
    pathlib.Path(__file__).resolve().parents[2] / ".deps/usr/share/datasets/fashion-mnist",
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-store", default="local", help="the kind of store (default: local)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch, over all workers (default: 64)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-train", type=int, help="train on the first N images only")
    parser.add_argument("--limit-test", type=int, help="evaluate on the first N images only")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the IDX files (default: where scripts/setup puts them)")
    options = parser.parse_args()
    options.data = options.data or next((folder for folder in FASHION_MNIST if folder.is_dir()), FASHION_MNIST[0])
    if not options.data.is_dir():
        parser.error(f"no folder {options.data}: run scripts/setup, or name the folder of the IDX files with --data")
    return options


def read_idx(folder, name):
    """An array of bytes from a packed file in IDX format."""
    with gzip.open(folder / f"{name}.gz") as file:
        content = file.read()
    dimensions = struct.unpack_from(f">{content[3]}i", content, 4)
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * len(dimensions)).reshape(dimensions)


def read_images(folder, part, limit):
    images = read_idx(folder, f"{part}-images-idx3-ubyte")[:limit]
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte")[:limit]
    return torch.from_numpy(images[:, None].astype(numpy.float32) / 255 - 0.3), torch.from_numpy(labels.astype(numpy.int64))


def build():
    convolutions = [nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * 7 * 7, 10))


def main():
    options = arguments()
    store = ringpull.create(options.kv_store)
    rank, workers = store.rank, store.num_workers
    torch.manual_seed(options.seed + rank)
    images, labels = read_images(options.data, "train", options.limit_train)
    test_images, test_labels = read_images(options.data, "t10k", options.limit_test)
    net = build()
    optimizer = ringpull.torch.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9), store, named_parameters=net.named_parameters()
    )
    order, step = numpy.random.RandomState(options.seed), 0
    for epoch in range(options.epochs):
        shuffled = order.permutation(len(labels))
        for begin in range(0, len(labels) - options.batch + 1, options.batch):
            if step == options.steps:
                break
            share = shuffled[begin : begin + options.batch][rank::workers]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[share]), labels[share]).backward()
            optimizer.step()
            step += 1
        with torch.no_grad():
            accuracy = (net(test_images).argmax(1) == test_labels).float().mean().item()
        if rank == 0:
            print(f"epoch {epoch + 1} step {step} accuracy {100 * accuracy:.2f} %", flush=True)
        if step == options.steps:
            break
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters()))
    print(f"rank {rank} of {workers} weights {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
