"""Ranks that keep each other waiting, through ringpull, ringpull.mxnet or ringpull.torch: ``waiting.py CASE KIND FRONT``."""

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
    """Begins a sum; what waits for it and gives it."""
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


def deadlock():
    """Each rank waits for a key of its own, having called only that."""
    begun = time.monotonic()
    try:
        call(keys[store.rank])()  # this line waits
    except Exception as error:
        text = " ".join(str(error).split())
        print(f"rank {store.rank} got {type(error).__name__}: {text} after {time.monotonic() - begun:.2f} s", flush=True)
        raise SystemExit(1) from None


keys = [f"key{number}" for number in range(max(store.num_workers, 2))]
for key in keys:
    store.init(key, ones())
{"late": late, "deadlock": deadlock}[case]()
print(f"rank {store.rank} is done", flush=True)
