"""Trains a network on Fashion-MNIST through any KVStore of MXNet's. To use ours, only the store's name
changes.

    python examples/mxnet/train.py                                                              # one process
    mpirun -n 4 --oversubscribe python -m ringpull.mxnet examples/mxnet/train.py --kv-store dist_sync_mpi       # allreduce
    ringpull launch -n 4 -s 4 -- python examples/mxnet/train.py --kv-store dist_sync            # MXNet's own servers

Every worker takes its share of each batch; gradients are summed over the workers. This program does not
mention ringpull.
"""

import argparse
import gzip
import hashlib
import pathlib
import struct
import time

import mxnet as mx
import numpy
from mxnet import autograd, gluon
from mxnet.gluon import nn

#: Where Debian's package dataset-fashion-mnist puts the files, and where `scripts/setup` puts them without
#: root.
FASHION_MNIST = [
    pathlib.Path("/usr/share/datasets/fashion-mnist"),
    pathlib.Path(__file__).resolve().parents[2] / ".deps/usr/share/datasets/fashion-mnist",
]

#: The channels of VGG's convolutions; 0 is a pooling.
VGG = {
    "vgg11": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "vgg16": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-store", default="local", help="the kind of store (default: local)")
    parser.add_argument("--network", default="small", choices=["small", *VGG])
    parser.add_argument("--width", type=float, default=1.0, help="part of the channels of VGG that is kept (default: 1)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch, over all workers (default: 64)")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9, help="for sgd and nag")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-train", type=int, help="train on the first N images only")
    parser.add_argument("--limit-test", type=int, help="evaluate on the first N images only")
    parser.add_argument("--update-on-worker", action="store_true", help="the trainer updates, not the store")
    parser.add_argument("--compression", type=compression, help="how gradients are compressed, such as 2bit or 2bit:0.5")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of the IDX files; where scripts/setup has put them unless given")
    options = parser.parse_args()
    options.data = options.data or next((folder for folder in FASHION_MNIST if folder.is_dir()), FASHION_MNIST[0])
    if not options.data.is_dir():
        parser.error(f"no folder {options.data}: run scripts/setup, or name the folder of the IDX files with --data")
    return options


def compression(word):
    """MXNet's parameters for a type and its threshold."""
    kind, _, threshold = word.partition(":")
    return {"type": kind, **({"threshold": float(threshold)} if threshold else {})}


def read_idx(folder, name):
    """An array of bytes from a file in IDX format, packed or not."""
    packed = folder / f"{name}.gz"
    with gzip.open(packed) if packed.exists() else open(folder / name, "rb") as file:
        content = file.read()
    dimensions = struct.unpack_from(f">{content[3]}i", content, 4)
    return numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * len(dimensions)).reshape(dimensions)


def read_images(folder, part, limit):
    images = read_idx(folder, f"{part}-images-idx3-ubyte")[:limit]
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte")[:limit]
    return images[:, None].astype(numpy.float32) / 255 - 0.3, labels.astype(numpy.float32)


def build(network, width):
    net = nn.HybridSequential()
    if network == "small":
        net.add(nn.Conv2D(8, 5, strides=2, padding=2, activation="relu"))
        net.add(nn.Conv2D(16, 3, strides=2, padding=1, activation="relu"))
        net.add(nn.Dense(10))
        return net
    for channels in VGG[network]:
        if channels:
            net.add(nn.Conv2D(max(1, int(channels * width)), 3, padding=1, activation="relu"))
        else:
            net.add(nn.MaxPool2D(2, 2))
    for units in (4096, 4096):
        net.add(nn.Dense(max(1, int(units * width)), activation="relu"), nn.Dropout(0.5))
    net.add(nn.Dense(10))
    return net


def evaluate(net, images, labels, prepare):
    right = 0
    for begin in range(0, len(labels), 500):
        answers = net(prepare(images[begin : begin + 500])).asnumpy().argmax(axis=1)
        right += int((answers == labels[begin : begin + 500]).sum())
    return 100.0 * right / len(labels)


def weight_hash(net):
    digest = hashlib.sha256()
    for parameter in net.collect_params().values():
        digest.update(parameter.data().asnumpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    options = arguments()
    store = mx.kv.create(options.kv_store)
    rank, workers = store.rank, store.num_workers
    images, labels = read_images(options.data, "train", options.limit_train)
    test_images, test_labels = read_images(options.data, "t10k", options.limit_test)
    # VGG halves its input five times, so the images have 32 pixels with an empty border.
    border = ((0, 0), (0, 0), (2, 2), (2, 2)) if options.network in VGG else None

    def prepare(some):
        return mx.nd.array(numpy.pad(some, border) if border else some)

    # Ranks begin with different weights; the store gives all ranks those of rank 0.
    mx.random.seed(options.seed + rank)
    net = build(options.network, options.width)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(prepare(images[:1]))

    # The learning rate falls to 0, so that the last batches do not decide the accuracy. An asynchronous
    # server counts the pushes of all workers as updates.
    batches = len(labels) // options.batch * options.epochs
    steps = batches if options.steps is None else min(options.steps, batches)
    counted = workers if options.kv_store.startswith("dist_async") and not options.update_on_worker else 1
    falling = mx.lr_scheduler.CosineScheduler(max_update=steps * counted + 1, base_lr=options.lr)
    settings = {"learning_rate": options.lr, "lr_scheduler": falling}
    if options.optimizer in ("sgd", "nag"):
        settings["momentum"] = options.momentum
    trainer = gluon.Trainer(
        net.collect_params(),
        options.optimizer,
        settings,
        kvstore=store,
        update_on_kvstore=False if options.update_on_worker else None,
        compression_params=options.compression,
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    order = numpy.random.RandomState(options.seed)
    step = 0
    for epoch in range(options.epochs):
        shuffled, begun, seen = order.permutation(len(labels)), time.time(), 0
        for begin in range(0, len(labels) - options.batch + 1, options.batch):
            if step == options.steps:
                break
            share = shuffled[begin : begin + options.batch][rank::workers]
            with autograd.record():
                loss = loss_of(net(prepare(images[share])), mx.nd.array(labels[share]))
            loss.backward()
            trainer.step(options.batch)
            step, seen = step + 1, seen + options.batch
        mx.nd.waitall()
        speed = seen / (time.time() - begun)
        accuracy = evaluate(net, test_images, test_labels, prepare)
        if rank == 0:
            print(f"epoch {epoch + 1} step {step} accuracy {accuracy:.2f} % images/s {speed:.0f}", flush=True)
        if step == options.steps:
            break
    print(f"rank {rank} of {workers} weights {weight_hash(net)}", flush=True)


main()
