"""Tensors of torch, CuPy and JAX in a store, in the order of their streams, and steps of a model by torch.

`frameworks.py cuda` is for GPUs, with RINGPULL_DEVICES=cuda. `frameworks.py cpu` does the same in host memory,
which shows that the program is right. Each check prints a line; what is not installed is skipped.
"""

import contextlib
import copy
import os
import statistics
import sys
import time
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


def with_jax(store):
    import jax.numpy as jnp

    for step in range(1, STEPS):
        out = np.zeros(LEN, np.float32)
        store.push("jax", jnp.full(LEN, step, jnp.float32) * 2)
        store.pull("jax", out)
        assert (out == 2 * step * store.num_workers).all(), out
    return "sums of inputs are right"


def steps_of_a_model(store):
    """The hook of DistributedDataParallel: every rank has the same batch, so the averages change nothing."""
    import torch

    import ringpull.torch

    torch.manual_seed(1)
    width = 1024 if ON_GPUS else 32
    alone = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).to(PLACE)
    together = copy.deepcopy(alone)
    batch = torch.randn(64, width, device=PLACE)
    # Ranks of one host have their launcher in common.
    meeting = Path(f"/tmp/ringpull-frameworks-{os.getppid()}")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=store.rank, world_size=store.num_workers
    )
    wrapped = torch.nn.parallel.DistributedDataParallel(together)
    wrapped.register_comm_hook(None, ringpull.torch.ddp_hook(store))
    seconds = {}
    for name, model in [("alone", alone), ("with the store", wrapped)]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
    store.barrier()
    torch.distributed.destroy_process_group()
    meeting.unlink(missing_ok=True)
    ms = {name: f"{1000 * second:.2f} ms" for name, second in seconds.items()}
    return f"the weights are those of one process; a step takes {ms['alone']} alone, {ms['with the store']} with it"


wrong = 0
with ringpull.create("dist_sync_mpi") as store:
    store.init(["torch", "cupy", "jax"], [np.zeros(LEN, np.float32)] * 3)
    for name, check in [
        ("torch", with_torch),
        ("torch, a model", steps_of_a_model),
        ("CuPy", with_cupy),
        ("JAX", with_jax),
    ]:
        try:
            line = f"ok       {name}: {check(store)}"
        except ImportError as error:
            line = f"skipped  {name}: {error}"
        except AssertionError as error:
            wrong += 1
            line = f"FAILED   {name}: {error}"
        print(f"rank {store.rank} {line}", flush=True)
sys.exit(1 if wrong else 0)
