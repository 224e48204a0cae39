"""Imports mpi4py after the store was made, and calls MPI from this thread while the store's thread does too."""

import numpy as np

import ringpull

store = ringpull.create("dist_sync_mpi")

from mpi4py import MPI  # noqa: E402

keys = [f"w{number}" for number in range(32)]
store.init(keys, [np.zeros(4096, np.float32)] * len(keys))
store.barrier()
total = store.num_workers * (store.num_workers + 1) // 2
for step in range(100):
    gradients = [np.ones(4096, np.float32) for _ in keys]
    handle = store.pushpull(keys, gradients, wait=False)
    mine = np.full(4096, store.rank + 1, np.float32)
    found = np.empty_like(mine)
    for _ in range(20):
        MPI.COMM_WORLD.Allreduce(mine, found)
    handle.wait()
    assert all((gradient == store.num_workers).all() for gradient in gradients) and (found == total).all(), step
# With a lower level of thread support the MPI library would take no locks.
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE, MPI.Query_thread()
print(f"rank {store.rank} is done")
