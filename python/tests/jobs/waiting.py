"""Ranks that wait for each other, through ringpull, ringpull.mxnet or ringpull.torch: ``waiting.py CASE KIND FRONT``."""

import sys
import time

import numpy as np

case, kind, front = sys.argv[1:]
if front == "mxnet":
    import ringpull.mxnet  # noqa: F401
    import mxnet as mx

    store = mx.kv.create(kind if kind == "dist_sync_mpi" else f"ringpull_{kind}")

    def ones():
        return mx.nd.ones(1000)

    def values(array):
        return array.asnumpy()
else:
    import ringpull

    store = ringpull.create(kind)

    def ones():
        return np.ones(1000, np.float32)

    def values(array):
        return array


def call(key):
    """Begins a sum. Returns a function that waits for it and returns it."""
    array = ones()
    handle = store.pushpull(key, array, **({} if front == "mxnet" else {"wait": False}))

    def wait():
        if handle is not None and hasattr(handle, "wait"):
            handle.wait()
        return values(array)

    return wait


def late():
    """The last rank needs six seconds for step 20 of 30."""
    for step in range(30):
        if step == 20 and store.rank == store.num_workers - 1:
            time.sleep(6)
        for wait in [call(key) for key in keys]:
            assert (wait() == store.num_workers).all(), step


def start():
    """The last rank calls its first key eleven seconds later than the others, and then again a barrier."""
    is_late = store.rank == store.num_workers - 1
    time.sleep(11 * is_late)
    store.init("first", ones())
    time.sleep(11 * is_late)
    store.barrier()


def sum_of(number):
    """Makes a sum of a key, and waits for it."""
    call(keys[number])()


def passes():
    """Returns a function that makes a step of one of two networks, with sums of its gradients. Each network has made a step already, so all
    keys are known."""
    import torch
    from torch import nn

    import ringpull.torch

    torch.manual_seed(0)
    nets = [nn.Linear(10, 10 + number) for number in range(2)]
    steps = [ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), store, key) for net, key in zip(nets, keys)]

    def run(number, seconds=0):
        values = nets[number](torch.ones(4, 10))
        if seconds:
            values.register_hook(lambda _: time.sleep(seconds))
        values.sum().backward()
        steps[number].step()

    run(0)
    run(1)
    return run


def asleep():
    """The last rank sleeps for eight seconds within its third backward pass."""
    step_of = passes()
    for step in range(5):
        step_of(0, 8 if step == 2 and store.rank == store.num_workers - 1 else 0)


def deadlock():
    """Each rank waits for a key that no other rank has called."""
    step_of = sum_of if has_arrays else passes()
    begun = time.monotonic()
    try:
        if front == "torch" and store.rank:
            # A backward pass belongs to all optimizers of a store, so two different passes would not wait for each other.
            sum_of(store.rank)
        step_of(store.rank)
    except Exception as error:
        text = " ".join(str(error).split())
        print(f"rank {store.rank} got {type(error).__name__}: {text} after {time.monotonic() - begun:.2f} s", flush=True)
        raise SystemExit(1) from None


keys = [f"key{number}" for number in range(max(store.num_workers, 2))]
has_arrays = front in ("ringpull", "mxnet")
for key in keys:
    store.init(key, ones())
{"start": start, "late": late, "asleep": asleep, "deadlock": deadlock}[case]()
print(f"rank {store.rank} is done", flush=True)
