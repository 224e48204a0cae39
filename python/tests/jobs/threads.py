"""Rank 1 pushes only when a thread of rank 0 has told it to, while rank 0's main thread waits for that push."""

import threading

import numpy as np

import ringpull

store = ringpull.create("dist_sync_mpi")
store.init("go", np.zeros(1))
store.init("k", np.zeros(1))
if store.rank == 0:

    def other():
        store.push("go", np.ones(1))
        print("ran while waiting", flush=True)

    threading.Timer(0.2, other).start()
    store.pushpull("k", np.ones(1))
    store.pull("go", np.empty(1))
else:
    store.pushpull("go", np.ones(1))
    store.pushpull("k", np.ones(1))
