"""Measures Horovod's allreduce over MPI; rank 0 prints one JSON array of records. Run under mpirun."""
import argparse
import json
import statistics
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--lens", required=True, help="elements of each key, separated by commas")
arguments.add_argument("--iters", type=int, default=3)
arguments.add_argument("--warmup", type=int, default=1)
options = arguments.parse_args()

import horovod  # noqa: E402
import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

hvd.init()
rank, ranks = hvd.rank(), hvd.size()
period = min(16, (1 << 24) // ranks) + 1
lens = [int(length) for length in options.lens.split(",")]
tensors = [torch.zeros(length) for length in lens]


def pattern(length, phase):
    """The first `length` values of the period that begins at `phase`."""
    return ((torch.arange(length) + phase) % period).to(torch.float32)


times = []
for iteration in range(options.warmup + options.iters):
    for tensor, length in zip(tensors, lens):
        tensor.copy_(pattern(length, iteration + rank))
    hvd.barrier()
    start = time.perf_counter()
    pending = [
        hvd.allreduce_async_(tensors[key], op=hvd.Sum, name=str(key)) for key in reversed(range(len(lens)))
    ]
    for handle in pending:
        hvd.synchronize(handle)
    seconds = time.perf_counter() - start
    for key, (tensor, length) in enumerate(zip(tensors, lens)):
        expected = sum(pattern(period, iteration + other) for other in range(ranks))
        if not torch.equal(tensor, expected.repeat(length // period + 1)[:length]):
            sys.exit(f"horovod: wrong sum of key {key} on rank {rank} in iteration {iteration}")
    slowest = hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max, name="slowest")
    if iteration >= options.warmup:
        times.append(float(slowest[0]))

if rank == 0:
    payload, median = 4 * sum(lens), statistics.median(times)
    record = {
        "op": "allreduce", "mode": "horovod", "algorithm": "horovod", "ranks": ranks, "hosts": ranks, "servers": 0,
        "bytes": payload, "dtype": "f32", "seconds": times, "median_s": median, "bound_s": None,
        "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True,
        "unit_notes": f"Horovod {horovod.__version__}",
    }
    print(json.dumps([record]))
