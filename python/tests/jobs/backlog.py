"""Tests pushes ahead of a slow worker: their memory is limited, and no worker waits for ever."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import ringpull

kind, case = sys.argv[1:]
store = ringpull.create(kind)
rank, ranks = store.rank, store.num_workers
MIB = 1 << 20
#: The number of float32 elements of a push, which are 8 MiB.
LEN = 2 * MIB
PUSHES = 64


def peak(process="self"):
    """The largest resident memory that a process has had, in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"no VmHWM of {process}")


def servers():
    """The processes that are this job's servers."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        port = f"DMLC_PS_ROOT_PORT={os.environ.get('DMLC_PS_ROOT_PORT')}".encode()
        if folder.name.isdigit() and port in words and b"DMLC_ROLE=server" in words:
            yield folder.name


if case == "memory":
    store.init("k", np.zeros(LEN, np.float32))
    value = np.full(LEN, 1.0, np.float32)
    store.pushpull("k", value)
    store.barrier()
    watched = ["self", *servers()] if rank == 0 else []
    assert kind == "dist_sync_mpi" or rank > 0 or len(watched) > 1
    before = [peak(process) for process in watched]
    if rank == ranks - 1:
        # This is shorter than the time after which a push is made in any case.
        time.sleep(3)
    for number in range(PUSHES):
        value[:] = number
        store.push("k", value)
    store.pull("k", value)
    assert (value == ranks * (PUSHES - 1)).all(), value
    more = [peak(process) - old for process, old in zip(watched, before)]
    # Some pushes of 8 MiB are under way, waiting or being copied. All pushes together would be 512 MiB.
    assert all(mib < 160 for mib in more), (watched, more)
    store.barrier()
elif case == "orders":
    # The order within a step differs between ranks, and no rank waits for any result.
    keys = [f"k{number}" for number in range(5)]
    store.init(keys, [np.zeros(1000, np.float32)] * len(keys))
    for step in range(200):
        order = keys[step % 5 :] + keys[: step % 5] if rank % 2 else keys
        store.push(order, [np.full(1000, step + rank, np.float32)] * len(keys))
    out = np.empty(1000, np.float32)
    for key in keys:
        store.pull(key, out)
        assert (out == 199 * ranks + ranks * (ranks - 1) // 2).all(), out
else:
    # There are no steps: each rank has more unfinished pushes of a key than are allowed before the other rank pushes this key at all.
    assert case == "circle"
    store.init(["a", "b"], [np.zeros(3, np.float32)] * 2)
    for key in ("a", "b") if rank % 2 else ("b", "a"):
        for number in range(5):
            store.push(key, np.full(3, number, np.float32))
    out = np.empty(3, np.float32)
    for key in ("a", "b"):
        store.pull(key, out)
        assert (out == 4 * ranks).all(), out
print(f"rank {rank} of {ranks} is done", flush=True)
