"""Ctrl-C on rank 0 while a call waits for rank 1, which does not call: ``interrupted.py KIND CALL``."""

import signal
import sys
import time

import numpy as np

import ringpull

kind, call = sys.argv[1:]
store = ringpull.create(kind)
ones = np.ones(4, np.float32)
store.broadcast("a", ones, ones)
store.barrier()
if store.rank == 1:
    # Longer than a push waits in any case.
    time.sleep(8)
    sys.exit(0)
if call == "pull":
    store.push("a", ones)
signal.setitimer(signal.ITIMER_REAL, 1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
begun = time.monotonic()
try:
    if call == "push":
        for _ in range(6):
            store.push("a", ones)
    elif call == "pull":
        store.pull("a", ones)
    else:
        store.barrier()
except KeyboardInterrupt:
    print(f"interrupted after {time.monotonic() - begun:.1f} s", flush=True)
else:
    print("nothing", flush=True)
