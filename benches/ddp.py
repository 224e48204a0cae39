#!/usr/bin/env python3
"""DistributedDataParallel over the backend `ringpull` beside gloo: the same model in the same processes, step
by step in turn.

    mpirun -n 2 --oversubscribe .venv-torch/bin/python benches/ddp.py \\
      [--layers 8] [--width 2048] [--batch 2] [--rounds 20]
    ringpull lab up 8 200mbit
    ringpull launch -n 8 --launcher lab -- .venv-torch/bin/python benches/ddp.py --width 256
    ringpull lab down

Needs `scripts/setup --torch-distributed --release`. A round has a step over each backend and a step that only
computes, and each round begins with another of the three; rounds of warm-up come before. A step is forward,
backward and the optimizer. Its time is that of the slowest rank. Rank 0 prints the median step of each, the
ratio of the backends with the quartiles of the rounds' ratios, and the least possible ratio. In the end the
parameters of each backend must be equal on all ranks, and those of both backends nearly equal.
`ddp_horovod.py` has the same steps with Horovod, in a separate job.
"""

import os
import socket
import statistics

# Ranks share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from steps import check_replicas, options, perceptron, timed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ringpull.torch_distributed  # noqa: E402

words = options(__doc__)
dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
if ringpull.communicator().local_size < size:
    # Gloo uses the interface to which the host's name resolves. Emulated hosts have no such interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", next(name for _, name in socket.if_nameindex() if name != "lo"))
groups = {"ringpull": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def send_nothing(_, bucket):
    """Leaves every rank its own gradients, so that a step is only computing: a communication hook."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def trainer(group, hook=None):
    """Returns a function that makes a step over the group, and the model that it trains."""
    layers, batch = perceptron(words, rank)
    model = DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
    if hook:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step, model


trainers = {name: trainer(group) for name, group in groups.items()}
trainers["computing"] = trainer(dist.group.WORLD, send_nothing)
seconds = timed({name: step for name, (step, _) in trainers.items()}, words.rounds, words.warmup)

check_replicas(trainers["ringpull"][1], "ringpull")
for parameter, beside in zip(trainers["ringpull"][1].parameters(), trainers["gloo"][1].parameters(), strict=True):
    assert torch.allclose(parameter, beside, rtol=1e-3, atol=1e-5), "backends end at different parameters"

if rank == 0:
    count = sum(parameter.numel() for parameter in trainers["gloo"][1].parameters())
    print(
        f"DistributedDataParallel, {size} ranks, {4 * count / 1e6:.1f} MB of gradients, "
        f"batch {words.batch}, {words.rounds} rounds"
    )
    for name, times in seconds.items():
        print(f"{name:10} median step {1e3 * statistics.median(times):9.2f} ms")
    ratios = [ours / gloo for ours, gloo in zip(seconds["ringpull"], seconds["gloo"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = statistics.median(seconds["ringpull"]) / statistics.median(seconds["gloo"])
    print(f"ringpull / gloo: {medians:.3f} (medians); of a round {middle:.3f}, quartiles {low:.3f} to {high:.3f}")
    bounds = [alone / gloo for alone, gloo in zip(seconds["computing"], seconds["gloo"], strict=True)]
    print(f"computing / gloo, the least possible ratio: {statistics.median(bounds):.3f}")
dist.barrier()
dist.destroy_process_group()
