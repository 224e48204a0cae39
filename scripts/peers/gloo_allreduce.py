"""Measures Gloo's allreduce, as PyTorch ships it; rank 0 prints one JSON array of records.

Run under mpirun, which only starts the ranks: they find each other through a TCP store on rank 0's host.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from datetime import timedelta

arguments = argparse.ArgumentParser()
arguments.add_argument("--lens", required=True, help="elements of each key, separated by commas")
arguments.add_argument("--iters", type=int, default=3)
arguments.add_argument("--warmup", type=int, default=1)
options = arguments.parse_args()


def from_launcher(*names):
    """What mpirun says, by the first of these variables that is set."""
    found = [os.environ[name] for name in names if name in os.environ]
    if not found:
        sys.exit(f"gloo: none of {', '.join(names)} is set; start this under mpirun")
    return int(found[0])


rank = from_launcher("OMPI_COMM_WORLD_RANK", "PMI_RANK")
ranks = from_launcher("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
if "MASTER_ADDR" not in os.environ:
    sys.exit("gloo: MASTER_ADDR is not set; it is the address of rank 0's host")
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((os.environ["MASTER_ADDR"], 9))
own = probe.getsockname()[0]
for line in subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout.splitlines():
    if f" {own}/" in line:
        os.environ["GLOO_SOCKET_IFNAME"] = line.split()[1]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
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
    dist.barrier()
    start = time.perf_counter()
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in reversed(tensors)]:
        work.wait()
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    for key, (tensor, length) in enumerate(zip(tensors, lens)):
        expected = sum(pattern(period, iteration + other) for other in range(ranks))
        if not torch.equal(tensor, expected.repeat(length // period + 1)[:length]):
            sys.exit(f"gloo: wrong sum of key {key} on rank {rank} in iteration {iteration}")
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if iteration >= options.warmup:
        times.append(float(seconds[0]))

if rank == 0:
    payload, median = 4 * sum(lens), statistics.median(times)
    record = {
        "op": "allreduce", "mode": "gloo", "algorithm": "gloo", "ranks": ranks, "hosts": ranks, "servers": 0,
        "bytes": payload, "dtype": "f32", "seconds": times, "median_s": median, "bound_s": None,
        "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True,
        "unit_notes": f"Gloo of PyTorch {torch.__version__}",
    }
    print(json.dumps([record]))
dist.barrier()
