"""Measures push and pull of the real MXNet's dist_sync store; rank 0 prints one JSON array of records.

Run by every process of a parameter-server job: MXNet reads DMLC_ROLE while it is imported, and a server or a scheduler
serves there and never comes back. With --layers the keys are a model's, whose training is replayed. `replay.py` stands before
this text.
"""
import argparse
import json
import os
import statistics
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--lens", required=True, help="elements of each key, separated by commas")
arguments.add_argument("--iters", type=int, default=3)
arguments.add_argument("--warmup", type=int, default=1)
add_train_arguments(arguments)  # noqa: F821
options = arguments.parse_args()

import numpy  # noqa: E402

# MXNet 1.9.1 needs names that later versions of numpy removed; if they exist nothing changes.
for name, stand_in in (("bool", bool), ("object", object)):
    if name not in vars(numpy):
        setattr(numpy, name, stand_in)
import mxnet  # noqa: E402

store = mxnet.kv.create("dist_sync")
rank, ranks = store.rank, store.num_workers
lens = [int(length) for length in options.lens.split(",")]
values = [mxnet.nd.zeros((length,)) for length in lens]
outs = [mxnet.nd.zeros((length,)) for length in lens]
for key, value in enumerate(values):
    store.init(key, value)


def gathered_maxima(rows):
    """The largest over the ranks of each number of each row."""
    # Every rank pushes its own rows among zeros; the sum holds all of them.
    matrix = numpy.zeros((ranks, *numpy.shape(rows)), dtype=numpy.float32)
    matrix[rank] = rows
    gathered = mxnet.nd.array(matrix)
    store.init(len(lens), mxnet.nd.zeros(matrix.shape))
    store.push(len(lens), gathered)
    store.pull(len(lens), gathered)
    slowest = gathered.asnumpy().max(axis=0)
    store._barrier()
    return slowest


class Training:
    """The keys of a model as MXNet's trainer uses them: its engine waits for a key where the forward pass reads it."""

    name = "mxnet"
    waits_for_all = False

    def __init__(self):
        self.rank, self.ranks, self.barrier = rank, ranks, store._barrier

    def write(self, key, content):
        values[key][:] = content

    def read(self, key):
        return outs[key].asnumpy()

    def begin(self, key, priority):
        store.push(key, values[key], priority=priority)
        store.pull(key, outs[key], priority=priority)

    def wait(self, keys):
        for key in keys:
            outs[key].wait_to_read()

    def largest(self, numbers):
        return [float(number) for number in gathered_maxima(numbers)]


words = {
    "mode": "mxnet", "algorithm": "servers", "servers": int(os.environ["DMLC_NUM_SERVER"]), "unit_notes": f"MXNet {mxnet.__version__}",
}
if options.layers:
    record = replay(Training(), lens, options) | words  # noqa: F821
    if rank == 0:
        print(json.dumps([record]))
    sys.exit()

patterns = Patterns(rank, ranks, max(lens))  # noqa: F821
rows = []
for iteration in range(options.warmup + options.iters):
    for value, length in zip(values, lens):
        value[:] = patterns.of(length, iteration)
    mxnet.nd.waitall()
    store._barrier()
    before, start = traffic(), time.perf_counter()
    for key in reversed(range(len(lens))):
        store.push(key, values[key], priority=-key)
        store.pull(key, outs[key], priority=-key)
    for out in outs:
        out.wait_to_read()
    seconds = time.perf_counter() - start
    after = traffic()
    store._barrier()
    for key, (out, length) in enumerate(zip(outs, lens)):
        if not numpy.array_equal(out.asnumpy(), patterns.sum_of(length, iteration)):
            sys.exit(f"mxnet: wrong sum of key {key} on rank {rank} in iteration {iteration}")
    if iteration >= options.warmup:
        rows.append([seconds, after[0] - before[0], after[1] - before[1]])

# Bytes go as MB, which f32 holds well enough.
slowest = gathered_maxima(numpy.array(rows) * [1.0, 1e-6, 1e-6])
if rank == 0:
    times = [float(seconds) for seconds in slowest[:, 0]]
    payload, median = 4 * sum(lens), statistics.median(times)
    record = words | {
        "op": "pushpull", "ranks": ranks, "hosts": ranks, "bytes": payload, "dtype": "f32", "seconds": times,
        "median_s": median, "bound_s": None, "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True,
        "host_bytes": int(float(slowest[:, 1:].max(axis=1).mean()) * 1e6) or None,
    }
    print(json.dumps([record]))
