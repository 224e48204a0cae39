"""Tensors on two simulated devices of every rank, summed in place, pushed and pulled."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_devices import full

import ringpull

store = ringpull.create("dist_sync_mpi")
mine, total = store.rank + 1, store.num_workers * (store.num_workers + 1) // 2
store.init("w", full(0))
for _ in range(8):
    values = [full(mine), full(10 * mine, 1)]
    store.pushpull("w", values)
    assert values[0].array.tolist() == values[1].array.tolist() == [11 * total] * 5
    pushed, out = full(mine), full(0, 1)
    store.push("w", pushed)
    pushed.array[:] = 100
    store.pull("w", out)
    assert out.array.tolist() == [total] * 5
store.barrier()
print("the sums are right")
