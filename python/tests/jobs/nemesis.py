"""Runs steps with exact sums, for jobs with injected faults: ``nemesis.py KIND STEPS [LENGTH]``. After a wrong sum the exit code is 4.

KIND is `dist_sync_mpi`, `dist_sync` or `dist_hybrid`. It is `elastic` for ranks of an elastic job, and `elastic_servers` for
workers of an elastic job with servers.
"""

import sys
import time

import numpy

import ringpull
import ringpull.elastic

kind, steps = sys.argv[1], int(sys.argv[2])
PAUSE, LENGTH = 0.05, int(sys.argv[3]) if len(sys.argv) > 3 else 20_000


def check(found, expected, step):
    if not numpy.isin(found[0], expected) or not (found == found[0]).all():
        print(f"WRONG sum in step {step}: {found[0]}, and not one of {expected}", flush=True)
        sys.exit(4)


def fixed():
    """Every worker takes part in every step."""
    store = ringpull.create(kind)
    rank, size = store.rank, store.num_workers
    keys = {"dense": numpy.zeros(LENGTH, numpy.float32), "other": numpy.zeros(10, numpy.float32)}
    for key, value in keys.items():
        store.init(key, value)
    if kind == "dist_hybrid":
        store.init("rows", numpy.zeros((10, 4), numpy.float32), row_sparse=True)
    for step in range(steps):
        arrays = [numpy.full_like(value, rank + step % 7) for value in keys.values()]
        store.pushpull(list(keys), arrays)
        for array in arrays:
            check(array, [size * (step % 7) + size * (size - 1) / 2], step)
        if kind == "dist_hybrid":
            store.push("rows", ringpull.RowSparse([3], numpy.ones((1, 4), numpy.float32), (10, 4)))
            rows = numpy.empty((1, 4), numpy.float32)
            store.row_sparse_pull("rows", out=rows, row_ids=[3])
            check(rows.ravel(), [size], step)
        time.sleep(PAUSE)


def elastic():
    """Ranks start again, or go on in place, from their last commit."""
    job = ringpull.communicator()

    @ringpull.elastic.run
    def train(state):
        while state.step < steps:
            total = job.allreduce(numpy.full(LENGTH, job.rank + 1.0), name="total").wait()
            check(total, [job.size * (job.size + 1) / 2], state.step)
            state.seen += total[:3] / total[0]
            state.step += 1
            check(state.seen, [state.step], state.step)
            time.sleep(PAUSE)
            if state.step % 5 == 0:
                state.commit()

    train(ringpull.elastic.State(step=0, seen=numpy.zeros(3)))


def elastic_servers():
    """Workers come and go. Each sum is over the present workers. A key has the number of the present step."""
    store = ringpull.create("dist_sync")
    clock, ones = numpy.array([0, 1], numpy.float32), numpy.ones(LENGTH, numpy.float32)
    workers = store.num_workers
    store.init("total", ones)
    store.init("clock", clock)
    store.barrier()
    store.pull("clock", out=clock)
    step = int(clock[0] / clock[1])
    while step < steps:
        step, total = step + 1, ones.copy()
        workers = max(workers, store.num_workers)
        store.pushpull("total", total)
        store.push("clock", numpy.array([step, 1], numpy.float32))
        check(total, range(1, max(workers, store.num_workers) + 1), step)
        store.barrier()
        store.pull("clock", out=clock)
        check(clock[:1], [step * clock[1]], step)
        time.sleep(PAUSE)


{"elastic": elastic, "elastic_servers": elastic_servers}.get(kind, fixed)()
print("done", flush=True)
