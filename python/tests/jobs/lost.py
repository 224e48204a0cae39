"""A job that goes on when rank 0 is killed. The others print the change that their callbacks get. With the word `stop` their programs end then."""

import os
import signal
import sys

import numpy as np

import ringpull


class LostRank(Exception):
    pass


def change(*words):
    told.append(words)
    if "stop" in sys.argv:
        raise LostRank


store = ringpull.create("dist_sync_mpi")
own = store.rank
told: list[tuple[object, ...]] = []
sums: list[float] = []
store.on_change(change)
assert store.generation == 0
store.init("w", np.zeros(1000, np.float32))
try:
    for step in range(10):
        if own == 0 and step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        out = np.empty(1000, np.float32)
        store.pushpull("w", np.full(1000, 2.0**own, np.float32), out=out)
        assert (out == out[0]).all()
        sums.append(float(out[0]))
    store.barrier()
    ended = "ended"
except LostRank:
    ended = "stopped"
print(ended, store.generation, store.rank, store.num_workers, told, sorted(set(sums)))
