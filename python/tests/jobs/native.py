"""Sums by MPI's own collectives, which need one order on all ranks, among row-sparse pushes, whose messages go beside others."""

import sys
import threading

import numpy as np

import ringpull

store = ringpull.create(sys.argv[1])
rank, size = store.rank, store.num_workers
ROWS, STEPS = 64, 40
store.init("dense", np.zeros(5000, np.float32))
store.init("rows", np.zeros((ROWS, 3), np.float32))
store.init("small", np.zeros(2, np.float64))
dense, rows, small = np.zeros(5000, np.float32), np.zeros((ROWS, 3), np.float32), np.zeros(2)
for step in range(STEPS):
    if step % 7 == rank:
        # The others begin what follows meanwhile.
        threading.Event().wait(0.02)
    # Priorities that ask for another order than that of the calls.
    store.push("dense", np.full(5000, rank + step, np.float32), priority=-3)
    ids = [(rank * 5 + step + at) % ROWS for at in range(8)]
    store.push("rows", ringpull.RowSparse(ids, np.full((8, 3), step + 1, np.float32), (ROWS, 3)), priority=step % 3)
    store.push("small", np.full(2, rank, np.float64), priority=5)
    if step % 10 < 5:
        store.pull("small", small)
        assert (small == sum(range(size))).all(), (step, small)
    expected = np.zeros((ROWS, 3), np.float32)
    for other in range(size):
        for at in range(8):
            expected[(other * 5 + step + at) % ROWS] += step + 1
    if step % 3 == 0:
        store.pull("rows", rows)
        assert (rows == expected).all(), step
        store.pull("dense", dense)
        assert (dense == sum(range(size)) + size * step).all(), step
store.barrier()
print("done")
