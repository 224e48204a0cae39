"""Trains the network of torch_mnist.py, and goes on when workers are lost or hosts are added. The script
imports only Horovod.

    horovodrun -np 4 --min-np 2 --host-discovery-script ./hosts.sh python examples/horovod/torch_elastic.py         # Horovod
    ringpull launch --elastic -n 4 --min-workers 2 -- python -m ringpull.horovod examples/horovod/torch_elastic.py  # ringpull
    ringpull launch --elastic --in-place -n 4 --min-workers 2 -- python -m ringpull.horovod examples/horovod/torch_elastic.py

The last command keeps the surviving processes; it needs Open MPI 5.
"""

import argparse
import hashlib
import pathlib

import fashion_mnist
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="images in a rank's batch (default: 16)")
    parser.add_argument("--lr", type=float, default=0.0125, help="of one rank; multiplied by the number of ranks")
    parser.add_argument("--commit", type=int, default=10, metavar="K", help="commit after every K batches (default: 10)")
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
    test = data_set("t10k", options.limit_test, options.data)
    # It gives each rank its part of the samples that no rank has processed in this epoch.
    sampler = hvd.elastic.ElasticSampler(training)
    loader = DataLoader(training, batch_size=options.batch, sampler=sampler)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def fit_the_rate():
        # The size of all ranks' batches together has changed with the number of ranks.
        for group in optimizer.param_groups:
            group["lr"] = options.lr * hvd.size()

    @hvd.elastic.run
    def train(state):
        if hvd.rank() == 0:
            print(f"{hvd.size()} ranks at epoch {state.epoch} batch {state.batch}", flush=True)
        while state.epoch < options.epochs:
            model.train()
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                state.batch += 1
                state.sampler.record_batch(state.batch, len(labels))
                if state.batch % options.commit == 0:
                    state.commit()
            model.eval()
            with torch.no_grad():
                images, labels = test.tensors
                accuracy = (model(images).argmax(1) == labels).float().mean().item()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1} accuracy {100 * accuracy:.2f} %", flush=True)
            state.epoch, state.batch = state.epoch + 1, 0
            state.sampler.set_epoch(state.epoch)
            state.commit()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0, batch=0, sampler=sampler)
    state.register_reset_callbacks([fit_the_rate])
    train(state)
    digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    print(f"rank {hvd.rank()} of {hvd.size()} weights {digest.hexdigest()[:16]}", flush=True)


main()
