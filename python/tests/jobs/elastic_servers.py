"""A worker of a job with servers that goes on without lost workers. Worker 1 is killed once, and a new worker joins.

    elastic_servers.py FOLDER KIND

In each step every worker pushes ones. The number of the step is in a key too.
"""

import os
import signal
import sys
from pathlib import Path

import numpy

import ringpull

STEPS = 30
killed = Path(sys.argv[1]) / "killed"
store = ringpull.create(sys.argv[2])
changes: list[tuple[int, int, int, list[int]]] = []
store.on_change(lambda *change: changes.append(change))
clock = numpy.array([0, 1], numpy.float32)
weights = numpy.zeros(200_000, numpy.float32)
ones = numpy.ones_like(weights)
store.init("weights", weights)
store.init("clock", clock)
store.barrier()
store.pull("clock", out=clock)
step = int(clock[0] / clock[1])
came_at = step
while step < STEPS:
    step += 1
    if step == 7 and store.rank == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if step > 10 and store.num_workers < 3:
        # Steps are repeated until the new worker has joined.
        step -= 1
    store.pushpull("weights", ones, out=weights)
    store.push("clock", numpy.array([step, 1], numpy.float32))
    assert (weights == weights[0]).all() and weights[0] in (2, 3), weights
    store.barrier()
    store.pull("clock", out=clock)
    assert clock[0] == step * clock[1], clock
    step = int(clock[0] / clock[1])
print(came_at, store.rank, store.num_workers, store.generation, weights[0], changes)
