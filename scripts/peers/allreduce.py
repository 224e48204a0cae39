"""Measures an allreduce: Gloo's, as PyTorch ships it, Horovod's over MPI, or ours behind the API of PyTorch or Horovod. Rank 0
prints one JSON array of records.

Run this under mpirun. For Gloo mpirun only starts the ranks; these find each other through a TCP store on rank 0's host. All keys
of --lens are one payload that is summed together. With --apart each key is measured by itself. With --layers the keys are those of
a model, whose training is replayed. The text of `replay.py` is put before this text.
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
arguments.add_argument("--peer", required=True, choices=["gloo", "horovod", "ringpull-horovod", "ringpull-torch"])
arguments.add_argument("--lens", required=True, help="elements of each key, separated by commas")
arguments.add_argument("--apart", action="store_true", help="a record for each key instead of one for all")
arguments.add_argument("--iters", type=int, default=3)
arguments.add_argument("--warmup", type=int, default=1)
arguments.add_argument("--rest", type=float, default=0.0, help="milliseconds without traffic before each iteration")
add_train_arguments(arguments)  # noqa: F821
options = arguments.parse_args()


def from_launcher(*names):
    """Returns the number in the first of these variables of mpirun that is set."""
    found = [os.environ[name] for name in names if name in os.environ]
    if not found:
        sys.exit(f"{options.peer}: none of {', '.join(names)} is set; start this under mpirun")
    return int(found[0])


class Gloo:
    """torch.distributed with the backend gloo."""

    name = "gloo"

    def __init__(self):
        self.rank = from_launcher("OMPI_COMM_WORLD_RANK", "PMI_RANK")
        self.ranks = from_launcher("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
        if "MASTER_ADDR" not in os.environ:
            sys.exit("gloo: MASTER_ADDR is not set; it is the address of rank 0's host")
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.connect((os.environ["MASTER_ADDR"], 9))
        own = probe.getsockname()[0]
        addresses = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True).stdout
        for line in addresses.splitlines():
            if f" {own}/" in line:
                os.environ["GLOO_SOCKET_IFNAME"] = line.split()[1]
        import torch
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo", rank=self.rank, world_size=self.ranks, timeout=timedelta(seconds=60))
        self.notes = f"Gloo of PyTorch {torch.__version__}"

    def barrier(self):
        self.dist.barrier()

    def begin_sum(self, tensor, name):
        return self.dist.all_reduce(tensor, async_op=True)

    def end_sum(self, work):
        work.wait()

    def largest(self, value):
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX)
        return value


class RingpullTorch(Gloo):
    """torch.distributed with the backend ringpull."""

    name = "ringpull-torch"

    def __init__(self):
        import torch
        import torch.distributed as dist

        import ringpull
        import ringpull.torch_distributed  # noqa: F401

        self.dist = dist
        dist.init_process_group("ringpull")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.notes = f"ringpull {ringpull.__version__} as the backend of PyTorch {torch.__version__}"


class Horovod:
    """horovod.torch over MPI."""

    name = "horovod"

    def __init__(self):
        import horovod
        import horovod.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.ranks = hvd.rank(), hvd.size()
        self.notes = f"Horovod {horovod.__version__}"

    def barrier(self):
        self.hvd.barrier()

    def begin_sum(self, tensor, name):
        return self.hvd.allreduce_async_(tensor, op=self.hvd.Sum, name=name)

    def end_sum(self, handle):
        self.hvd.synchronize(handle)

    def largest(self, value):
        return self.hvd.allreduce(value, op=self.hvd.Max, name="slowest")


class RingpullHorovod(Horovod):
    """ringpull.horovod.torch."""

    name = "ringpull-horovod"

    def __init__(self):
        import ringpull
        import ringpull.horovod.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.ranks = hvd.rank(), hvd.size()
        self.notes = f"ringpull.horovod of ringpull {ringpull.__version__}"


peer = {kind.name: kind for kind in (Gloo, Horovod, RingpullHorovod, RingpullTorch)}[options.peer]()
import torch  # noqa: E402

rank, ranks = peer.rank, peer.ranks
period = min(16, (1 << 24) // ranks) + 1


def sum_all(tensors):
    for work in [peer.begin_sum(tensors[key], f"{key}.{tensors[key].numel()}") for key in reversed(range(len(tensors)))]:
        peer.end_sum(work)


class Training:
    """The keys of a model, used as PyTorch does: the forward pass begins when the optimizer has waited for every gradient."""

    waits_for_all = True

    def __init__(self, lens):
        self.name, self.rank, self.ranks, self.barrier = options.peer, rank, ranks, peer.barrier
        self.tensors, self.pending = [torch.zeros(length) for length in lens], {}

    def write(self, key, values):
        self.tensors[key].numpy()[:] = values

    def read(self, key):
        return self.tensors[key].numpy()

    def begin(self, key, priority):
        self.pending[key] = peer.begin_sum(self.tensors[key], str(key))

    def wait(self, keys):
        for key in reversed(keys):
            peer.end_sum(self.pending.pop(key))

    def largest(self, values):
        return peer.largest(torch.tensor(values, dtype=torch.float64)).tolist()


def pattern(length, phase):
    """Returns `length` values of the periodic pattern, from `phase` on."""
    return ((torch.arange(length) + phase) % period).to(torch.float32)


def measure(lens):
    """Returns the slowest rank's time in each iteration, and checks every sum."""
    tensors = [torch.zeros(length) for length in lens]
    times = []
    for iteration in range(options.warmup + options.iters):
        # Rests awake, as `ringpull bench allreduce` does.
        begin = time.perf_counter()
        while time.perf_counter() - begin < options.rest / 1e3:
            os.sched_yield()
        for tensor, length in zip(tensors, lens):
            tensor.copy_(pattern(length, iteration + rank))
        peer.barrier()
        start = time.perf_counter()
        sum_all(tensors)
        seconds = time.perf_counter() - start
        peer.barrier()
        for key, (tensor, length) in enumerate(zip(tensors, lens)):
            expected = sum(pattern(period, iteration + other) for other in range(ranks))
            if not torch.equal(tensor, expected.repeat(length // period + 1)[:length]):
                sys.exit(f"{options.peer}: wrong sum of key {key} on rank {rank} in iteration {iteration}")
        slowest = peer.largest(torch.tensor([seconds], dtype=torch.float64))
        if iteration >= options.warmup:
            times.append(float(slowest[0]))
    return times


def record(lens):
    """Measures one payload, and returns its record for the comparison."""
    times, payload = measure(lens), 4 * sum(lens)
    median = statistics.median(times)
    return {
        "op": "allreduce", "mode": options.peer, "algorithm": options.peer, "ranks": ranks, "hosts": ranks,
        "servers": 0, "bytes": payload, "dtype": "f32", "seconds": times, "median_s": median, "bound_s": None,
        "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks, "verified": True, "unit_notes": peer.notes,
    }


lens = [int(length) for length in options.lens.split(",")]
if options.layers:
    words = {"mode": options.peer, "algorithm": options.peer, "servers": 0, "unit_notes": peer.notes}
    records = [replay(Training(lens), lens, options) | words]  # noqa: F821
else:
    records = [record(payload) for payload in ([[length] for length in lens] if options.apart else [lens])]
if rank == 0:
    print(json.dumps(records))
peer.barrier()
