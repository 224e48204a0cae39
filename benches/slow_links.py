#!/usr/bin/env python3
"""The time until a target loss over slow links: DistributedDataParallel, and ways that communicate less, in the same processes.

    scripts/setup --torch-distributed --release
    ringpull lab up 8 50mbit
    ringpull launch -n 8 --launcher lab -- .venv-torch/bin/python benches/slow_links.py [--target 0.6] [--svg FILE]
    ringpull lab down

Every way trains the same network on Fashion-MNIST, from the same weights, on the same images, with the same SGD with momentum:

- ddp: DistributedDataParallel over the backend `ringpull`;
- ddp fp16: the same with PyTorch's `fp16_compress_hook`;
- 2bit: `ringpull.torch.DistributedOptimizer` with our compression of gradients;
- local sgd: PyTorch's `PostLocalSGDOptimizer`: the first `--period` steps as ddp; then each rank trains by itself, and
  parameters are averaged every `--period` steps;
- diloco: torchft's DiLoCo, if it is installed, with PyTorch's outer SGD every `--period` steps.

A round has `--period` steps of each way, and each round begins with another way. The time of a round is that of the slowest rank. After
each round, outside the measured time, rank 0 evaluates the mean of all ranks' parameters. A way ends when the mean test loss of two rounds
in a row is at most `--target`, or after `--steps` steps. Rank 0 prints a line for each way: the median time of a step, the steps and the
time until the loss, and the time of ddp divided by this time. `--svg` writes the losses over time as a picture.
"""

import argparse
import copy
import os
import pathlib
import statistics
import sys
import time

# Ranks share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from steps import slowest_of_all  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook  # noqa: E402
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager  # noqa: E402
from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ringpull.torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples/torch"))
from train import FASHION_MNIST, read_images  # noqa: E402

try:
    from torchft.local_sgd import DiLoCo
except ImportError:
    DiLoCo = None

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--target", type=float, default=0.6, help="the test loss to be reached (default: 0.6)")
parser.add_argument("--steps", type=int, default=400, help="the most steps of a way (default: 400)")
parser.add_argument("--period", type=int, default=16, help="steps between two averages of parameters (default: 16)")
parser.add_argument("--width", type=int, default=512, help="units of the hidden layer (default: 512)")
parser.add_argument("--batch", type=int, default=16, help="images of a rank in a step (default: 16)")
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--threshold", type=float, default=0.005, help="the threshold of 2bit (default: 0.005)")
parser.add_argument("--svg", type=pathlib.Path, help="a file for the picture")
words = parser.parse_args()

dist.init_process_group("ringpull")
rank, size = dist.get_rank(), dist.get_world_size()
data = next(path for path in FASHION_MNIST if path.is_dir())
images, labels = read_images(data, "train", None)
test_images, test_labels = read_images(data, "t10k", 2000)
criterion = nn.CrossEntropyLoss()


class FixedRanks:
    """Replaces torchft's manager in a job whose ranks do not change: averages over the process group."""

    _use_async_quorum = False

    def __init__(self):
        self.rounds = 0

    def allreduce(self, tensor, should_quantize=False):
        return dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)

    def current_step(self):
        return self.rounds

    def should_commit(self):
        self.rounds += 1
        return True

    def start_quorum(self):
        pass

    allow_state_dict_read = disallow_state_dict_read = start_quorum

    def register_state_dict_fn(self, *_):
        pass


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=words.lr, momentum=0.9)


def ddp(net, hook=None, state=None):
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if hook:
        model.register_comm_hook(state, hook)
    return model, sgd(model)


def two_bits(net):
    store = ringpull.create("dist_sync_mpi")
    store.set_gradient_compression({"type": "2bit", "threshold": words.threshold})
    return net, ringpull.torch.DistributedOptimizer(sgd(net), store)


def local_sgd(net):
    alone, _ = dist.new_subgroups(group_size=1)
    state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=words.period)
    model, optimizer = ddp(net, post_localSGD_hook, state)
    return model, PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(words.period, warmup_steps=words.period))


def diloco(net):
    optimizer = sgd(net)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    DiLoCo(FixedRanks(), [net], optimizer, outer, sync_every=words.period).__enter__()
    return net, optimizer


class Way:
    """A way to train, with the times of its rounds and the losses after them."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, words.width), nn.ReLU(), nn.Linear(words.width, 10))
        self.model, self.optimizer = make(self.net)
        self.count, self.losses, self.rounds = 0, [], []

    def step(self):
        rows = torch.randint(len(images), (size, words.batch), generator=torch.Generator().manual_seed(self.count))[rank]
        self.optimizer.zero_grad()
        criterion(self.model(images[rows]), labels[rows]).backward()
        self.optimizer.step()
        self.count += 1

    @torch.no_grad()
    def test_loss(self):
        """Returns the test loss of the mean of all ranks' parameters. Ways that do not average in every step have no such model of their own."""
        mean = copy.deepcopy(self.net)
        for parameter in mean.parameters():
            dist.all_reduce(parameter.data, dist.ReduceOp.AVG)
        loss = criterion(mean(test_images), test_labels) if rank == 0 else torch.zeros(())
        dist.broadcast(loss, 0)
        return loss.item()

    def train(self):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(words.period):
            self.step()
        self.rounds.append(slowest_of_all(time.perf_counter() - begun))
        self.losses.append(self.test_loss())

    def is_there(self):
        return len(self.losses) > 1 and sum(self.losses[-2:]) / 2 <= words.target

    def curve(self):
        return [(sum(self.rounds[: at + 1]), loss) for at, loss in enumerate(self.losses)]


STYLE = """text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1d1f24; } text.title { font-size: 17px; font-weight: 650; }
text.soft { font-size: 12px; fill: #5f636d; } rect { fill: #fbfaf7; } line { stroke: #dcd9d1; } line.goal { stroke: #5f636d; stroke-dasharray: 4 3; }
polyline { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { text { fill: #e8e6e1; } text.soft { fill: #a2a5ad; } rect { fill: #16181c; } line { stroke: #34373d; } }"""
COLOURS = ("#8b8f99", "#3d6fb5", "#7a4f9a", "#0b6e69", "#c2662d")


def picture(curves):
    """Returns an SVG of the losses of each way over time, with the way's name at the end of its line. The time axis is logarithmic."""
    import math

    first, last = min(curve[0][0] for curve in curves.values()), max(curve[-1][0] for curve in curves.values())
    top = max(loss for curve in curves.values() for _, loss in curve)
    low = min(words.target, min(loss for curve in curves.values() for _, loss in curve)) - 0.05

    def x(seconds):
        return 60 + 560 * math.log(seconds / first) / math.log(last / first)

    def y(loss):
        return 50 + 270 * (top - loss) / (top - low)

    marks = [f'<rect width="760" height="360"/><text class="title" x="20" y="28">Test loss by the time of training, {size} hosts</text>']
    for loss in (at / 5 for at in range(math.ceil(low * 5), math.floor(top * 5) + 1)):
        marks.append(f'<line x1="60" x2="620" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/><text class="soft" x="30" y="{y(loss) + 4:.1f}">{loss:.1f}</text>')
    marks.append(f'<line class="goal" x1="60" x2="620" y1="{y(words.target):.1f}" y2="{y(words.target):.1f}"/>')
    for seconds in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if first <= seconds <= last:
            marks.append(f'<text class="soft" x="{x(seconds):.1f}" y="342" text-anchor="middle">{seconds} s</text>')
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        points = " ".join(f"{x(seconds):.1f},{y(loss):.1f}" for seconds, loss in curve)
        (seconds, loss) = curve[-1]
        marks.append(f'<polyline points="{points}" style="stroke: {colour}"/>')
        marks.append(f'<text x="{x(seconds) + 6:.1f}" y="{y(loss) + 16:.1f}" style="fill: {colour}">{name}</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 360" width="760" height="360" role="img" aria-label="Test loss by time"><style>\n{STYLE}\n</style>\n' + "\n".join(marks) + "\n</svg>\n"


makers = {"ddp": ddp, "ddp fp16": lambda net: ddp(net, fp16_compress_hook), "2bit": two_bits, "local sgd": local_sgd}
if DiLoCo:
    makers["diloco"] = diloco
ways = {name: Way(make) for name, make in makers.items()}
number = 0
while going := [way for way in ways.values() if not way.is_there() and way.count < words.steps]:
    first = number % len(going)
    for way in going[first:] + going[:first]:
        way.train()
    number += 1

if rank == 0:
    count = sum(parameter.numel() for parameter in ways["ddp"].net.parameters())
    print(f"{size} ranks, {4 * count / 1e6:.2f} MB of parameters, batch {words.batch} of each, parameters averaged every {words.period} steps")
    for name, way in ways.items():
        took = sum(way.rounds)
        if way.is_there():
            ratio = f"ddp / this {sum(ways['ddp'].rounds) / took:6.2f}" if ways["ddp"].is_there() else ""
            reached = f"loss {words.target} after {way.count:4} steps in {took:7.2f} s, {ratio}"
        else:
            reached = f"loss {way.losses[-1]:.3f} after {way.count:4} steps in {took:7.2f} s, not at {words.target}"
        print(f"{name:10} median step {1e3 * statistics.median(way.rounds) / words.period:8.2f} ms, {reached}")
    if words.svg:
        words.svg.write_text(picture({name: way.curve() for name, way in ways.items()}))
dist.barrier()
dist.destroy_process_group()
