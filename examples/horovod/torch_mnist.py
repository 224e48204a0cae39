"""Trains a small network on Fashion-MNIST with PyTorch and Horovod's API. The script imports only Horovod.

    horovodrun -np 4 python examples/horovod/torch_mnist.py                                # Horovod
    ringpull launch -n 4 -- python -m ringpull.horovod examples/horovod/torch_mnist.py   # ringpull
"""

import argparse
import hashlib
import pathlib

import fashion_mnist
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="images in a rank's batch (default: 16)")
    parser.add_argument(
        "--lr", type=float, default=0.0125, help="of one rank; multiplied by the number of ranks (default: 0.0125)"
    )
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as halves")
    parser.add_argument(
        "--checkpoint", type=pathlib.Path, help="rank 0 writes it after each epoch, and all go on from it"
    )
    parser.add_argument("--limit-train", type=int, help="train on the first N images only")
    parser.add_argument("--limit-test", type=int, help="evaluate on the first N images only")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the IDX files")
    return parser.parse_args()


def data_set(part, limit, folder):
    images, labels = fashion_mnist.read(part, limit, folder)
    return TensorDataset(torch.from_numpy(images[:, None] - 0.3), torch.from_numpy(labels))


def main():
    options = arguments()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    training = data_set("train", options.limit_train, options.data)
    sampler = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank(), drop_last=True)
    loader = DataLoader(training, batch_size=options.batch, sampler=sampler, drop_last=True)
    test = data_set("t10k", options.limit_test, options.data)
    test_loader = DataLoader(
        test, batch_size=500, sampler=DistributedSampler(test, hvd.size(), hvd.rank(), shuffle=False)
    )

    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    first = 0
    if options.checkpoint and hvd.rank() == 0 and options.checkpoint.exists():
        state = torch.load(options.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    first = hvd.broadcast_object(first, root_rank=0, name="first epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)

    for epoch in range(first, options.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(images).argmax(1) == labels).sum() for images, labels in test_loader)
        accuracy = hvd.allreduce(right / len(test_loader.sampler), name="accuracy").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} accuracy {100 * accuracy:.2f} %", flush=True)
            if options.checkpoint:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
                torch.save(state, options.checkpoint)
    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    print(f"rank {hvd.rank()} of {hvd.size()} weights {digest.hexdigest()[:16]}", flush=True)


main()
