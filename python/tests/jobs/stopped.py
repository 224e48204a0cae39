"""Rank 0 stops for ever while rank 1 has more messages for it than the connection takes. Prints the time after which this is an error."""

import os
import signal
import time

import numpy as np

import ringpull

store = ringpull.create("dist_sync_mpi")
store.barrier()
if store.rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
# Waits until rank 0 has stopped.
time.sleep(0.5)
begun = time.monotonic()
value = np.ones(1, np.float32)
try:
    for number in range(40_000):
        store.init(f"{number}" + "k" * 400, value)
    called = time.monotonic() - begun
    store.barrier()
except ringpull.KVStoreError as error:
    text = " ".join(str(error).split())
    print(f"called after {called:.1f} s, {type(error).__name__} after {time.monotonic() - begun:.1f} s: {text}", flush=True)
raise SystemExit(1)
