"""Trains the network of train.py on Fashion-MNIST, and goes on when ranks are lost or hosts are added.

    ringpull launch --elastic --min-workers 2 --max-workers 4 -- python examples/torch/elastic.py
    ringpull launch --elastic --min-workers 2 --max-workers 4 --discover-hosts ./hosts.sh -- python examples/torch/elastic.py
    ringpull launch -n 4 -- python examples/torch/elastic.py                            # not elastic: the same training

When the number of ranks changes, the batch of all ranks together stays the same, and so does the learning
rate.
"""

import argparse
import pathlib

import ringpull.horovod.torch as hvd
import torch
from ringpull.elastic import Sampler, generation
from torch import nn
from train import FASHION_MNIST, build, read_images


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="images in a batch, over all ranks (default: 64)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", type=int, default=10, metavar="K", help="commit after every K steps (default: 10)")
    parser.add_argument("--limit-train", type=int, help="train on the first N images only")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the IDX files (default: where scripts/setup puts them)")
    options = parser.parse_args()
    options.data = options.data or next((folder for folder in FASHION_MNIST if folder.is_dir()), FASHION_MNIST[0])
    if not options.data.is_dir():
        parser.error(f"no folder {options.data}: run scripts/setup, or name the folder of the IDX files with --data")
    return options


def main():
    options = arguments()
    hvd.init()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    images, labels = read_images(options.data, "train", options.limit_train)
    test_images, test_labels = read_images(options.data, "t10k", None)
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    # Each rank divides its loss by the whole batch, so the sum over all ranks is the mean.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), op=hvd.Sum)

    @hvd.elastic.run
    def train(state):
        if hvd.rank() == 0:
            print(f"generation {generation()} with {hvd.size()} ranks at step {state.step}", flush=True)
        while state.sampler.epoch < options.epochs:
            for rows in state.sampler.batches(options.batch):
                taken = (state.sampler.position - 1) % options.batch + 1
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(images[rows]), labels[rows], reduction="sum") / taken
                loss.backward()
                optimizer.step()
                state.step += 1
                if state.step % options.commit == 0:
                    state.commit()
            state.sampler.set_epoch(state.sampler.epoch + 1)
            with torch.no_grad():
                accuracy = (net(test_images).argmax(1) == test_labels).float().mean().item()
            if hvd.rank() == 0:
                print(f"epoch {state.sampler.epoch} step {state.step} accuracy {100 * accuracy:.2f} %", flush=True)

    train(hvd.elastic.TorchState(net, optimizer, step=0, sampler=Sampler(len(labels), seed=options.seed)))


if __name__ == "__main__":
    main()
