"""Ctrl-C on rank 0 while a call waits for rank 1, which comes three seconds later: ``interrupted.py KIND CALL``."""

import signal
import sys
import time

import numpy as np

import ringpull

kind, call = sys.argv[1:]
store = ringpull.create(kind)
ones = np.ones(4, np.float32)
#: The number of pushes of a key that do not wait for other ranks.
AHEAD = 4
store.broadcast("a", ones, ones)
store.barrier()


def push():
    for _ in range(AHEAD if store.rank == 1 else AHEAD + 2):
        store.push("a", ones)


def pull():
    store.push("a", ones)
    if store.rank == 0:
        store.pull("a", ones)


def barrier():
    store.barrier()


if store.rank == 1:
    time.sleep(4)
    globals()[call]()
else:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1)
    begun = time.monotonic()
    try:
        globals()[call]()
        print("nothing", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {time.monotonic() - begun:.1f} s", flush=True)
# Operations that were called go on. The call that waited was interrupted and has pushed nothing.
store.pull("a", ones)
assert (ones == (1 if call == "barrier" else 2)).all(), ones
store.barrier()
print(f"rank {store.rank} is done", flush=True)
