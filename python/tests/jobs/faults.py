"""One thing that goes wrong; each rank says which exception it got."""

import os
import sys
import time

import numpy as np

import ringpull

case = sys.argv[1]
kind = sys.argv[2] if len(sys.argv) > 2 else "dist_sync_mpi"
store = ringpull.create(kind)
rank, last = store.rank, store.num_workers - 1
ones = np.ones(4, np.float32)


def arguments():
    """Calls that are wrong by themselves: each raises at once, and changes nothing."""
    store.init("a", ones)
    numbered = ringpull.create(kind)
    numbered.init(3, ones)
    half, out = np.ones(4, np.float16), np.empty(4, np.float32)
    for name, call in {
        "UnknownKeyError 1": lambda: numbered.pull(99, out),
        "UnknownKeyError 2": lambda: numbered.push(99, ones),
        "UnknownKeyError 3": lambda: store.pull("b", out),
        "UnknownKeyError 4": lambda: store.push("b", ones),
        "DuplicateKeyError 5": lambda: numbered.init(3, ones),
        "DuplicateKeyError 6": lambda: store.init("a", ones),
        "MixedKeyTypesError 7": lambda: store.push(3, ones),
        "ShapeMismatchError 8": lambda: store.push("a", np.ones(5, np.float32)),
        "ShapeMismatchError 9": lambda: store.pushpull("a", np.ones((4, 1), np.float32)),
        "DtypeMismatchError 10": lambda: store.push("a", [half, half]),
        "ArgumentError 11": lambda: store.push(["a", "b"], [ones]),
        "ArgumentError 12": lambda: store.push("a", "no tensor"),
        "ArgumentError 13": lambda: store.push(1.5, ones),
    }.items():
        try:
            call()
            print(f"rank {rank} got nothing from {name}", flush=True)
        except ringpull.KVStoreError as error:
            expected = name.split()[0]
            if type(error).__name__ != expected:
                print(f"rank {rank} got {type(error).__name__} from {name}: {error}", flush=True)
    store.pull("a", out)
    assert (out == 1).all()
    store.pushpull("a", out)
    assert (out == store.num_workers).all()
    numbered.close()
    print(f"rank {rank} has tried all", flush=True)


def other_size_pushed_by_one():
    store.init("a", ones)
    store.pushpull("a", np.ones(5 if rank == last else 4, np.float32))


def integers():
    store.init("a", np.ones(4, np.int8))
    store.pushpull("a", np.ones(4, np.int8))


def other_size_initialised():
    store.init("a", np.ones(4 if rank == 0 else 5, np.float32))
    store.pull("a", np.empty(4 if rank == 0 else 5, np.float32))


def never_pushed():
    store.init("a", ones)
    if rank == last:
        store.barrier()
    else:
        store.pushpull("a", ones.copy())


def pushed_twice():
    store.init("a", ones)
    if rank == 0:
        store.push("a", ones)
        store.push("a", ones)
        store.pull("a", np.empty(4, np.float32))
    store.barrier()


def peer_gone():
    store.init("a", ones)
    store.pushpull("a", ones.copy())
    if rank == last:
        os._exit(0)
    store.pushpull("a", ones.copy())


def no_optimizer():
    store.init("a", ones)
    store.push("a", ones)


begun = time.monotonic()
try:
    globals()[case]()
    outcome = "nothing"
except ringpull.KVStoreError as error:
    outcome = f"{type(error).__name__} rank={error.rank} key={error.key!r}"
    print(error, flush=True)
print(f"rank {rank} got {outcome} after {time.monotonic() - begun:.1f} s", flush=True)
try:
    # Nobody leaves while another is at work; after a fault that every rank has met there is nothing to wait for.
    store.barrier()
except ringpull.KVStoreError:
    pass
