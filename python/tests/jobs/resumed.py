"""Three ranks, each on a simulated host of its own, find commits of an earlier generation.

The first host has commit (1, 3). The second has (1, 4), and a commit of an earlier generation with a greater number. The third has (1, 4),
which faulty memory has changed, and (1, 3).
"""

import os
import socket

import numpy

import ringpull
from ringpull.elastic import State
from ringpull.elastic.packing import packed
from ringpull.elastic.snapshots import Snapshots

job = ringpull.communicator()
socket.gethostname = lambda: f"h{job.rank}"
snapshots = Snapshots(os.environ["RINGPULL_SNAPSHOTS"], 1)
snapshots.prepare()
for key in [[(1, 3)], [(0, 9), (1, 4)], [(1, 3), (1, 4)]][job.rank]:
    snapshots.write(key, packed({"value": f"the value of {key}", "array": numpy.full(5, key[1])}))
if job.rank == 2:
    path = snapshots.folder / "snapshot-1-4"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
job.barrier()
state = State(value="none", array=numpy.zeros(5, int))
assert state.resume() and (state.array == 4).all()
print(f"rank {job.rank} has {state.value}")
