"""Tests tensors of torch, CuPy, Numba and JAX in a store, in the order of their streams. Also tests steps of a torch model with a
store, with an optimizer of ours, with Horovod's interface and with the backend of ``torch.distributed``.

`frameworks.py cuda` is for GPUs, with RINGPULL_DEVICES=cuda. `frameworks.py cpu` does the same in host memory,
which shows that the program is right. Each check prints a line. Frameworks that are not installed are skipped.
"""

import contextlib
import copy
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

import numpy as np

import ringpull

PLACE = sys.argv[1]
ON_GPUS = PLACE == "cuda"
LEN = 1003
STEPS = 12


def with_torch(store):
    import torch

    for step in range(1, STEPS):
        stream = torch.cuda.stream(torch.cuda.Stream()) if ON_GPUS else contextlib.nullcontext()
        with stream:
            value = torch.full((LEN,), float(step), device=PLACE)
            value.mul_(2)
            store.pushpull("torch", value)
            value.add_(1)
            seen = value.cpu().numpy()
        assert (seen == 2 * step * store.num_workers + 1).all(), seen
    return "sums are in the order of the stream that is current"


def with_cupy(store):
    if not ON_GPUS:
        raise ImportError("it has no arrays in host memory")
    import cupy

    for step in range(1, STEPS):
        with cupy.cuda.Stream(non_blocking=True):
            value = cupy.full(LEN, step, cupy.float32)
            value *= 2
            store.pushpull("cupy", value)
            value += 1
            seen = value.get()
        assert (seen == 2 * step * store.num_workers + 1).all(), seen
    return "sums are in the order of the stream that is current"


def with_numba(store):
    if not ON_GPUS:
        raise ImportError("its device arrays are on GPUs alone")
    from numba import cuda

    value = cuda.to_device(np.zeros(LEN, np.float32), stream=cuda.stream())
    for step in range(1, STEPS):
        value.copy_to_device(np.full(LEN, step, np.float32), stream=value.stream)
        store.pushpull("numba", value)
        seen = value.copy_to_host(stream=value.stream)
        value.stream.synchronize()
        assert (seen == step * store.num_workers).all(), seen
    return "sums of arrays that have __cuda_array_interface__ alone are right"


def with_jax(store):
    import jax.numpy as jnp

    for step in range(1, STEPS):
        out = np.zeros(LEN, np.float32)
        store.push("jax", jnp.full(LEN, step, jnp.float32) * 2)
        store.pull("jax", out)
        assert (out == 2 * step * store.num_workers).all(), out
    return "sums of inputs are right"


def halves(store):
    import torch

    for dtype in torch.float16, torch.bfloat16, torch.float64, torch.int32:
        value = torch.arange(LEN, device=PLACE).remainder(64).to(dtype)
        expected = value * store.num_workers
        store.init(f"of {dtype}", torch.zeros_like(value))
        store.pushpull(f"of {dtype}", value)
        assert torch.equal(value, expected), value
    return "sums of float16, bfloat16, float64 and int32 are right"


def many_keys(store):
    """Runs operations at the same time as kernels that work on other tensors."""
    import torch

    values = [torch.empty(1 + 40_000 * at, device=PLACE) for at in range(12)]
    store.init([f"many {at}" for at in range(12)], [torch.zeros_like(value) for value in values])
    other = torch.randn(512, 512, device=PLACE)
    for step in range(1, STEPS):
        begun = []
        for at, value in enumerate(values):
            value.fill_(step + at)
            begun.append(store.pushpull(f"many {at}", value, wait=False))
            other = torch.tanh(other @ other)
        for at, (value, handle) in enumerate(zip(values, begun, strict=True)):
            handle.wait()
            assert (value == (step + at) * store.num_workers).all().item(), value
    return "12 keys beside other kernels are right"


def meet(store, backend):
    """A process group of all ranks."""
    import torch

    # All ranks of one host have the same launcher as their parent process.
    meeting = Path(f"/tmp/ringpull-frameworks-{os.getppid()}-{backend}")
    torch.distributed.init_process_group(
        backend, init_method=f"file://{meeting}", rank=store.rank, world_size=store.num_workers
    )
    return meeting


def part_company(store, meeting):
    import torch

    store.barrier()
    torch.distributed.destroy_process_group()
    meeting.unlink(missing_ok=True)


def compared(kind):
    """Compares the steps of a model in one process with steps of all ranks, where `kind` wraps the model and its optimizer. Every rank has
    the same batch, so the averages change nothing."""
    import torch

    torch.manual_seed(1)
    width = 1024 if ON_GPUS else 32
    alone = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).to(PLACE)
    together = copy.deepcopy(alone)
    batch = torch.randn(64, width, device=PLACE)
    seconds = {}
    for name, model in [("alone", alone), ("together", together)]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if model is together:
            model, optimizer = kind(model, optimizer)
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if ON_GPUS:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        seconds[name] = statistics.median(times[2:])
    for one, other in zip(alone.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    ms = {name: f"{1000 * second:.2f} ms" for name, second in seconds.items()}
    return f"the weights are those of one process; a step takes {ms['alone']} alone, {ms['together']} together"


def the_optimizer(store):
    import ringpull.torch

    return compared(lambda model, optimizer: (model, ringpull.torch.DistributedOptimizer(optimizer, store)))


def horovods(store):
    import ringpull.horovod.torch as hvd

    hvd.init()

    def wrapped(model, optimizer):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    return compared(wrapped)


def the_backend(store):
    """The backend of torch.distributed: its collectives, and DistributedDataParallel."""
    import torch

    import ringpull.torch_distributed

    meeting = meet(store, "ringpull")
    count, rank = store.num_workers, store.rank

    def ranks_own(scale=1.0):
        return torch.full((LEN,), scale * (rank + 1), device=PLACE)

    def is_all(tensor, value):
        assert tensor.device.type == PLACE and (tensor == value).all().item(), tensor

    distributed = torch.distributed
    total = count * (count + 1) // 2
    for stream in [torch.cuda.Stream() for _ in range(3)] if ON_GPUS else [None]:
        with torch.cuda.stream(stream) if ON_GPUS else contextlib.nullcontext():
            value = ranks_own()
            work = distributed.all_reduce(value, async_op=True)
            work.wait()
            is_all(value, total)
            value = torch.full((LEN, 2), True, device=PLACE).t()
            distributed.all_reduce(value, op=distributed.ReduceOp.PRODUCT)
            is_all(value, True)
            value = ranks_own()
            distributed.broadcast(value, src=count - 1)
            is_all(value, count)
            parts = [torch.empty(LEN, device=PLACE) for _ in range(count)]
            distributed.all_gather(parts, ranks_own())
            for at, part in enumerate(parts):
                is_all(part, at + 1)
            row = torch.empty(count * LEN, device=PLACE)
            distributed.all_gather_into_tensor(row, ranks_own())
            for at, part in enumerate(row.split(LEN)):
                is_all(part, at + 1)
            part = torch.empty(LEN, device=PLACE)
            distributed.reduce_scatter_tensor(part, torch.cat([ranks_own()] * count))
            is_all(part, total)
            distributed.reduce_scatter(part, [ranks_own(3.0)] * count)
            is_all(part, 3 * total)
            distributed.all_to_all_single(row, torch.cat([ranks_own()] * count))
            for at, part in enumerate(row.split(LEN)):
                is_all(part, at + 1)
            value = ranks_own()
            distributed.reduce(value, dst=0)
            is_all(value, total if rank == 0 else rank + 1)
            value = ranks_own()
            if count > 1 and rank < 2:
                (distributed.send if rank == 0 else distributed.recv)(value, 1 - rank)
                is_all(value, 1)
    distributed.barrier()
    said = compared(lambda model, optimizer: (torch.nn.parallel.DistributedDataParallel(model), optimizer))
    part_company(store, meeting)
    return f"collectives are right; {said}"


CHECKS = {
    "torch": with_torch,
    "torch's types": halves,
    "torch, many keys": many_keys,
    "torch, optimizer": the_optimizer,
    "torch, Horovod's optimizer": horovods,
    "torch.distributed": the_backend,
    "CuPy": with_cupy,
    "Numba": with_numba,
    "JAX": with_jax,
}
wrong = 0
with ringpull.create("dist_sync_mpi") as store:
    store.init(["torch", "cupy", "numba", "jax"], [np.zeros(LEN, np.float32)] * 4)
    for name, check in CHECKS.items():
        try:
            line = f"ok       {name}: {check(store)}"
        except ImportError as error:
            line = f"skipped  {name}: {error}"
        except Exception:
            wrong += 1
            line = f"FAILED   {name}: {traceback.format_exc()}"
        print(f"rank {store.rank} {line}", flush=True)
sys.exit(1 if wrong else 0)
