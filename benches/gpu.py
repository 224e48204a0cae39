#!/usr/bin/env python3
"""Steps of a model on GPUs with PyTorch, in turn without communication and with DistributedDataParallel over several backends.

    mpirun -n 2 python3 benches/gpu.py [--model resnet50] [--batch 32] [--rounds 20]

Needs torch with CUDA, torchvision and `ringpull`. The number of a rank's GPU is the rank's number on its host,
modulo the number of GPUs. The ways are `alone`, which has no communication; `ringpull`, the backend of
`torch.distributed`, through pinned memory; `gloo`; and `nccl`, if every rank has a GPU of its own. A round has a
step by each way, and each round begins with another way; rounds of warm-up come before. A step is forward, backward
and the optimizer. Its time is that of the slowest rank. Rank 0 prints the median step of each way and its ratio to
`alone`, with the quartiles of the rounds' ratios. In the end the parameters must be equal on all ranks.
"""

import argparse
import statistics

import torch
import torch.distributed as dist
import torchvision
from steps import check_replicas, timed
from torch.nn.parallel import DistributedDataParallel

import ringpull
import ringpull.torch_distributed  # noqa: F401

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="resnet50", help="a name of torchvision.models")
parser.add_argument("--batch", type=int, default=32, help="images of each rank")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--warmup", type=int, default=6)
options = parser.parse_args()

dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
local = ringpull.communicator()
device = torch.device("cuda", local.local_rank % torch.cuda.device_count())
torch.cuda.set_device(device)
backends = {"ringpull": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
if local.local_size <= torch.cuda.device_count():
    backends["nccl"] = dist.new_group(backend="nccl")


def trainer(name):
    """Returns a function that makes a step by one way, and the model that it trains."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, options.model)(weights=None).to(device)
    if name != "alone":
        model = DistributedDataParallel(model, process_group=backends[name], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    images = torch.randn(options.batch, 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (options.batch,), device=device)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step, model


names = ["alone", *backends]
trainers = {name: trainer(name) for name in names}
seconds = timed({name: step for name, (step, _) in trainers.items()}, options.rounds, options.warmup)
for name in backends:
    check_replicas(trainers[name][1], name)

if rank == 0:
    count = sum(parameter.numel() for parameter in trainers["alone"][1].parameters())
    print(
        f"{options.model}, {size} ranks on {torch.cuda.device_count()} GPUs ({torch.cuda.get_device_name()}), "
        f"{4 * count / 1e6:.1f} MB of gradients, batch {options.batch}, {options.rounds} rounds"
    )
    for name, times in seconds.items():
        low, middle, high = statistics.quantiles(
            [with_it / alone for with_it, alone in zip(times, seconds["alone"], strict=True)], n=4
        )
        print(f"{name:10} median step {1e3 * statistics.median(times):9.2f} ms, {middle:.3f} of alone, {low:.3f} to {high:.3f}")
dist.barrier()
dist.destroy_process_group()
