"""Measures push and pull of the real MXNet's dist_sync store; rank 0 prints one JSON array of records.

Run by every process of a parameter-server job: MXNet reads DMLC_ROLE while it is imported, and a server or a scheduler
serves there and never comes back. With --layers the keys are a model's, whose training is replayed; with --sparse a step pushes rows
of a table and pulls others. `replay.py` stands before this text.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--lens", required=True, help="elements of each key, separated by commas")
arguments.add_argument("--iters", type=int, default=3)
arguments.add_argument("--warmup", type=int, default=1)
arguments.add_argument("--sparse", help="ROWS:WIDTH:TOUCHED:ZIPF: push and pull rows of a table instead")
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
lens = [] if options.sparse else [int(length) for length in options.lens.split(",")]
values = [mxnet.nd.zeros((length,)) for length in lens]
outs = [mxnet.nd.zeros((length,)) for length in lens]
for key, value in enumerate(values):
    store.init(key, value)


def gathered_maxima(rows):
    """Returns for each number of each row the largest over the ranks."""
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
    """The keys of a model, used as MXNet's trainer does: its engine waits for a key when the forward pass reads it."""

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



def mixed(numbers):
    """SplitMix64's finaliser."""
    numbers = numbers + numpy.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> numpy.uint64(31))


class Table:
    """A table and the rows of it that ranks touch, drawn by Zipf's law as in `ringpull bench pushpull --sparse` (crates/workload/src/sparse.rs)."""

    def __init__(self, described):
        rows, width, touched, zipf = described.split(":")
        self.rows, self.width, self.touched, self.zipf = int(rows), int(width), int(touched), float(zipf)
        step = max(1, int(self.rows * 0.61803398875))
        while math.gcd(step, self.rows) != 1:
            step += 1
        self.rarity = numpy.empty(self.rows)
        self.rarity[numpy.arange(self.rows) * step % self.rows] = (numpy.arange(self.rows) + 1.0) ** self.zipf
        self.numbers = numpy.arange(self.rows, dtype=numpy.uint64)
        # For the first column of each row, the sum of all pushes and their number.
        self.sums, self.counts, self.union = numpy.zeros(self.rows), numpy.zeros(self.rows), []

    def ids(self, of, iteration):
        """Returns the rows that rank ``of`` touches, in ascending order."""
        seed = mixed(numpy.array([iteration << 20 ^ of], dtype=numpy.uint64))
        part = ((mixed(seed ^ self.numbers) >> numpy.uint64(11)) + numpy.uint64(1)).astype(numpy.float64) / (1 << 53)
        times = -numpy.log(part) * self.rarity
        return numpy.sort(numpy.argpartition(times, self.touched - 1)[: self.touched])

    def pushed(self, of, iteration, ids):
        """Returns the gradient of the first column; that of column c is larger by c % 3."""
        return 1.0 + (of + iteration + ids) % 5

    def advance(self, iteration):
        """Adds all ranks' pushes of the iteration to the expected content of the table."""
        seen = numpy.zeros(self.rows, dtype=bool)
        for other in range(ranks):
            ids = self.ids(other, iteration)
            self.sums[ids] += self.pushed(other, iteration, ids)
            self.counts[ids] += 1
            seen[ids] = True
        self.union.append(int(seen.sum()))

    def expected(self, ids):
        """Returns the expected content of these rows; at the start all elements are 1."""
        return 1 + self.sums[ids, None] + self.counts[ids, None] * (numpy.arange(self.width) % 3)


def measure_table(table):
    """Returns the slowest rank's seconds and traffic of each measured iteration. An iteration pushes its rows and pulls those of the next iteration."""
    shape, found = (table.rows, table.width), []
    store.init(1, mxnet.nd.ones(shape).tostype("row_sparse"))
    # This optimizer adds each push to its rows.
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=-1.0, wd=0.0, lazy_update=True))
    store._barrier()
    for iteration in range(options.warmup + options.iters):
        ids, following = table.ids(rank, iteration), table.ids(rank, iteration + 1)
        data = table.pushed(rank, iteration, ids)[:, None] + numpy.arange(table.width) % 3
        gradient = mxnet.nd.sparse.row_sparse_array((data.astype(numpy.float32), ids), shape=shape)
        out, wanted = mxnet.nd.sparse.zeros("row_sparse", shape), mxnet.nd.array(following, dtype="int64")
        mxnet.nd.waitall()
        store._barrier()
        before, start = traffic(), time.perf_counter()
        store.push(1, gradient)
        store.row_sparse_pull(1, out=out, row_ids=wanted)
        out.wait_to_read()
        seconds = time.perf_counter() - start
        after = traffic()
        store._barrier()
        table.advance(iteration)
        right = numpy.array_equal(out.indices.asnumpy(), following)
        if not right or not numpy.array_equal(out.data.asnumpy(), table.expected(following)):
            sys.exit(f"mxnet: wrong rows on rank {rank} in iteration {iteration}")
        if iteration >= options.warmup:
            found.append([seconds, after[0] - before[0], after[1] - before[1]])
    return found


table = Table(options.sparse) if options.sparse else None
patterns = None if table else Patterns(rank, ranks, max(lens))  # noqa: F821
rows = measure_table(table) if table else []
for iteration in range(0 if table else options.warmup + options.iters):
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

# Bytes are exchanged as MB: f32 is precise enough for these.
slowest = gathered_maxima(numpy.array(rows) * [1.0, 1e-6, 1e-6])
if rank == 0:
    times = [float(seconds) for seconds in slowest[:, 0]]
    payload, median = 4 * (table.touched * table.width if table else sum(lens)), statistics.median(times)
    record = words | {
        "op": "pushpull", "ranks": ranks, "hosts": ranks, "bytes": payload, "dtype": "f32", "seconds": times,
        "median_s": median, "bound_s": None, "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True,
        "host_bytes": int(float(slowest[:, 1:].max(axis=1).mean()) * 1e6) or None,
    }
    if table:
        record["sparse"] = {
            "rows": table.rows, "width": table.width, "touched": table.touched, "zipf": table.zipf,
            "union": sum(table.union) / len(table.union),
        }
    print(json.dumps([record]))
