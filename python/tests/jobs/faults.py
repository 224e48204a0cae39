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


def unknown_key():
    store.init(1, ones)
    store.pull(2, np.empty(4, np.float32))


def unknown_key_pushed():
    store.init("a", ones)
    store.push("b", ones)


def double_init():
    store.init(3, ones)
    store.init(3, ones)


def other_size_pushed():
    store.init("a", ones)
    store.push("a", np.ones(5, np.float32))


def other_size_initialised():
    store.init("a", np.ones(4 if rank == 0 else 5, np.float32))
    store.pull("a", np.empty(4 if rank == 0 else 5, np.float32))


def other_dtype_pushed():
    store.init("a", ones)
    store.push("a", [np.ones(4), np.ones(4)])


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
