"""Measures push and pull of the real MXNet's dist_sync store; rank 0 prints one JSON array of records.

Run by every process of a parameter-server job: MXNet reads DMLC_ROLE while it is imported, and a server or a scheduler
serves there and never comes back. Inputs and checks are those of `ringpull bench pushpull`: element e of rank r in
iteration i is (e + i + r) mod m, so the sum over the ranks has a closed form.
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
options = arguments.parse_args()

import numpy  # noqa: E402

# MXNet 1.9.1 asks for names that later numpy took away; where they exist nothing changes.
for name, stand_in in (("bool", bool), ("object", object)):
    if name not in vars(numpy):
        setattr(numpy, name, stand_in)
import mxnet  # noqa: E402

store = mxnet.kv.create("dist_sync")
rank, ranks = store.rank, store.num_workers
period = min(16, (1 << 24) // ranks) + 1
lens = [int(length) for length in options.lens.split(",")]
values = [mxnet.nd.zeros((length,)) for length in lens]
outs = [mxnet.nd.zeros((length,)) for length in lens]
for key, value in enumerate(values):
    store.init(key, value)


def pattern(length, phase):
    """The first `length` values of the period that begins at `phase`."""
    return numpy.resize((numpy.arange(period) + phase) % period, length).astype(numpy.float32)


def traffic():
    """Bytes sent and received by this host's interfaces, the loopback apart."""
    sent = received = 0
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, colon, counters = line.partition(":")
            if colon and name.strip() != "lo":
                fields = counters.split()
                sent, received = sent + int(fields[8]), received + int(fields[0])
    return sent, received


rows = []
for iteration in range(options.warmup + options.iters):
    for value, length in zip(values, lens):
        value[:] = pattern(length, iteration + rank)
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
    for key, (out, length) in enumerate(zip(outs, lens)):
        expected = sum(pattern(period, iteration + other) for other in range(ranks))
        if not numpy.array_equal(out.asnumpy(), numpy.resize(expected, length)):
            sys.exit(f"mxnet: wrong sum of key {key} on rank {rank} in iteration {iteration}")
    if iteration >= options.warmup:
        rows.append([seconds, after[0] - before[0], after[1] - before[1]])

# Every rank pushes its own rows among zeros; the sum holds all of them. Bytes go as MB, which f32 holds well enough.
matrix = numpy.zeros((ranks, options.iters, 3), dtype=numpy.float32)
matrix[rank] = numpy.array(rows) * [1.0, 1e-6, 1e-6]
gathered = mxnet.nd.array(matrix)
store.init(len(lens), mxnet.nd.zeros(matrix.shape))
store.push(len(lens), gathered)
store.pull(len(lens), gathered)
slowest = gathered.asnumpy().max(axis=0)
store._barrier()
if rank == 0:
    times = [float(seconds) for seconds in slowest[:, 0]]
    payload, median = 4 * sum(lens), statistics.median(times)
    record = {
        "op": "pushpull", "mode": "mxnet", "algorithm": "servers", "ranks": ranks, "hosts": ranks,
        "servers": int(os.environ["DMLC_NUM_SERVER"]), "bytes": payload, "dtype": "f32", "seconds": times,
        "median_s": median, "bound_s": None, "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True,
        "host_bytes": int(float(slowest[:, 1:].max(axis=1).mean()) * 1e6) or None,
        "unit_notes": f"MXNet {mxnet.__version__}",
    }
    print(json.dumps([record]))
