#!/usr/bin/env python3
"""Steps of the model of `ddp.py` with Horovod's optimizer, in a separate job. The job is separate because
Horovod's thread sends requests to the other ranks in every cycle, also while another library takes a step.

    scripts/peers/setup --horovod
    ringpull lab up 8 200mbit
    ringpull launch -n 8 --launcher lab -- .venv-peers/bin/python benches/ddp_horovod.py --width 512
    ringpull lab down

Rank 0 prints the median step. Run it in turn with `ddp.py`, with the same options.
"""

import os
import statistics

# Ranks share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402
from steps import options, perceptron, timed  # noqa: E402

words = options(__doc__)
hvd.init()
model, batch = perceptron(words, hvd.rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step() -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def slowest(seconds: float) -> float:
    return hvd.allreduce(torch.tensor([seconds], dtype=torch.float64), op=hvd.Max, name="slowest").item()


seconds = timed({"horovod": step}, words.rounds, words.warmup, lambda: slowest(0.0), slowest)["horovod"]
for number, parameter in enumerate(model.parameters()):
    first = hvd.broadcast(parameter.detach(), 0, name=f"first.{number}")
    assert torch.equal(first, parameter), "ranks have different parameters by horovod"
if hvd.rank() == 0:
    count = sum(parameter.numel() for parameter in model.parameters())
    low, middle, high = statistics.quantiles(seconds, n=4)
    print(f"Horovod, {hvd.size()} ranks, {4 * count / 1e6:.1f} MB of gradients, batch {words.batch}, {words.rounds} rounds")
    print(f"{'horovod':10} median step {1e3 * middle:9.2f} ms, quartiles {1e3 * low:.2f} to {1e3 * high:.2f}")
