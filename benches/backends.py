#!/usr/bin/env python3
"""The backend `ringpull` of torch.distributed beside gloo: fourteen rows, in the same processes and rounds.

    mpirun -n 2 --oversubscribe .venv-torch/bin/python benches/backends.py [--busy] [--rounds 20] [--only 4B]

Needs `scripts/setup --torch-distributed --release`. With `--busy` a process that only computes runs on each core at
the same time. A round has a burst of calls by each backend, and each round begins with another backend. The time of a
burst is that of the slowest rank. Rank 0 prints for each row the median time of a call by each backend, the ratio of
the medians, and the quartiles of the rounds' ratios. Before the timing the backends' results are compared.
"""

import argparse
import os
import statistics
import subprocess
import sys

# Ranks share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from steps import slowest_of_all, timed  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--busy", action="store_true")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--only", default="")
words = parser.parse_args()

dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
GROUPS = {"ringpull": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
#: The group that collects the times, so that the timed groups do nothing else.
CLOCK = dist.new_group(backend="gloo")
KIB, MIB = 1 << 10, 1 << 20
BUSY = "import os, sys\nos.sched_setaffinity(0, [int(sys.argv[1])])\nwhile os.getppid() == int(sys.argv[2]): pass"


def tensor_of(length_bytes, dtype=torch.float32):
    return torch.ones(length_bytes // dtype.itemsize, dtype=dtype) * (rank + 1)


def all_reduce(group, length_bytes, dtype):
    tensor = tensor_of(length_bytes, dtype)
    return lambda: dist.all_reduce(tensor, group=group) or tensor


def all_gather(group, length_bytes):
    tensor = tensor_of(length_bytes)
    out = tensor.new_zeros(size * tensor.numel())
    return lambda: dist.all_gather_into_tensor(out, tensor, group=group) or out


def reduce_scatter(group, length_bytes):
    tensor = tensor_of(length_bytes)
    out = tensor.new_zeros(tensor.numel() // size)
    return lambda: dist.reduce_scatter_tensor(out, tensor, group=group) or out


def all_to_all(group, length_bytes):
    tensor = tensor_of(length_bytes)
    out = torch.zeros_like(tensor)
    return lambda: dist.all_to_all_single(out, tensor, group=group) or out


def objects(group):
    given, out = {"rank": rank, "words": ["a"] * 20}, [None] * size
    return lambda: dist.all_gather_object(out, given, group=group) or torch.tensor([found["rank"] for found in out])


def ddp_step(group):
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8)])
    model = DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(2, 256) * (rank + 1)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return next(model.parameters()).detach().clone()

    return step


F32, BF16 = torch.float32, torch.bfloat16
#: For each row the number of calls in a burst, and a function that makes a call.
ROWS = {
    "all_reduce f32 4B": (50, lambda group: all_reduce(group, 4, F32)),
    "all_reduce f32 4KiB": (50, lambda group: all_reduce(group, 4 * KIB, F32)),
    "all_reduce f32 64KiB": (20, lambda group: all_reduce(group, 64 * KIB, F32)),
    "all_reduce f32 1MiB": (5, lambda group: all_reduce(group, MIB, F32)),
    "all_reduce f32 64MiB": (1, lambda group: all_reduce(group, 64 * MIB, F32)),
    "all_reduce bf16 4KiB": (50, lambda group: all_reduce(group, 4 * KIB, BF16)),
    "all_reduce bf16 1MiB": (5, lambda group: all_reduce(group, MIB, BF16)),
    "all_reduce bf16 64MiB": (1, lambda group: all_reduce(group, 64 * MIB, BF16)),
    "all_gather 1MiB": (5, lambda group: all_gather(group, MIB)),
    "reduce_scatter 1MiB": (5, lambda group: reduce_scatter(group, MIB)),
    "all_to_all 4KiB": (50, lambda group: all_to_all(group, 4 * KIB)),
    "all_to_all 4MiB": (2, lambda group: all_to_all(group, 4 * MIB)),
    "all_gather_object": (20, objects),
    "DDP step 2MB": (2, ddp_step),
}


def burst(call, count):
    def calls():
        for _ in range(count):
            call()

    return calls


busy = []
if words.busy and rank == 0:
    starts = ([sys.executable, "-c", BUSY, str(core), str(os.getpid())] for core in range(os.cpu_count() or 1))
    busy = [subprocess.Popen(start) for start in starts]
if rank == 0:
    beside = ", beside a busy process on each" if words.busy else ""
    print(f"{size} ranks on {os.cpu_count()} cores{beside}, {words.rounds} rounds")
    print(f"{'':24}{'ringpull us':>12}{'gloo us':>12}{'ratio':>8}   quartiles", flush=True)
for name, (count, make) in ROWS.items():
    if words.only not in name:
        continue
    calls = {backend: make(group) for backend, group in GROUPS.items()}
    ours, gloo = (call() for call in calls.values())
    assert torch.allclose(ours.double(), gloo.double(), rtol=1e-2), name
    for result in (ours, gloo):
        # Without this the sums of sums would grow.
        result.zero_()
    seconds = timed(
        {backend: burst(call, count) for backend, call in calls.items()},
        words.rounds,
        3,
        lambda: dist.barrier(CLOCK),
        lambda own: slowest_of_all(own, CLOCK),
    )
    if rank == 0:
        ours, gloo = (statistics.median(times) / count * 1e6 for times in seconds.values())
        ratios = [ours / gloo for ours, gloo in zip(*seconds.values(), strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"{name:24}{ours:12.0f}{gloo:12.0f}{ours / gloo:8.2f}   {low:.2f} to {high:.2f}", flush=True)
for process in busy:
    process.kill()
    process.wait()
dist.barrier()
dist.destroy_process_group()
