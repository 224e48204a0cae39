#!/usr/bin/env python3
"""The time until a target loss when a worker is late: allreduce, synchronous and asynchronous servers in turn.

    scripts/setup && scripts/python-setup && .venv/bin/python benches/late_loss.py [--target 0.55] [--late 3=0.02] [--out FILE]

A round has a job of each program. A program is a kind of store, followed by `late` if a worker is late. Every job trains the
network of `examples/torch` on Fashion-MNIST with SGD in the store: on every rank, or on the servers. A worker's step takes at
least `--pace` seconds, however busy this machine is. On the late worker it takes longer, by the seconds of `--late`. Worker 0
saves its weights every `--every` steps, and evaluates them after the training. A line of the table has medians over the
rounds, with the least and the most:

- step: the harmonic mean over the workers of the seconds of a step;
- time to the loss: from the first step until the mean test loss of three evaluations in a row is at most `--target`;
- images until then: the images whose gradients all workers together had pushed by that time;
- loss after: the loss at the last evaluation within `--seconds`.

With `--out` the jobs are appended to the file, and the table shows all jobs of the file.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# Workers share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = ["dist_sync_mpi", "dist_sync", "dist_async"]
PROGRAMS = [kind + late for late in ("", " late") for kind in KINDS]
# Options that are passed on to workers.
PASSED_ON = ("late", "pace", "seconds", "batch", "lr", "every", "test_images", "seed")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="programs, separated by commas, of: " + ", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4, help="the number of workers, and of servers if there are any (default: 4)")
    parser.add_argument("--launcher", default="local", help="the launcher of `ringpull launch`: local or lab (default: local)")
    parser.add_argument("--binary", default="ringpull", help="the command ringpull")
    parser.add_argument("--late", default="3=0.02", metavar="RANK=SECONDS", help="the rank that is late in every step, and by how many seconds (default: 3=0.02)")
    parser.add_argument("--pace", type=float, default=0.02, help="the seconds of a step of a worker that is not late (default: 0.02)")
    parser.add_argument("--seconds", type=float, default=20, help="the approximate time for which a job trains (default: 20)")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch, over all workers (default: 64)")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--target", type=float, default=0.55, help="the test loss to be reached (default: 0.55)")
    parser.add_argument("--every", type=int, default=10, help="steps of worker 0 between evaluations (default: 10)")
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, help="a file of jobs, each a line of JSON")
    parser.add_argument("--worker", nargs=2, metavar=("PROGRAM", "FOLDER"), help=argparse.SUPPRESS)
    return parser.parse_args()


def be_worker(options):
    """Runs one worker of a job: trains, and writes the time at which each of its steps ended; worker 0 also writes its test losses."""
    import numpy
    import torch

    import ringpull

    sys.path.insert(0, str(ROOT / "examples/torch"))
    from train import FASHION_MNIST, build, read_images

    program, folder = options.worker
    kind, *is_late = program.split()
    store = ringpull.create(kind)
    rank, workers = store.rank, store.num_workers
    late_rank, late = options.late.split("=")
    late = float(late) if is_late and int(late_rank) == rank else 0.0
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = next((path for path in FASHION_MNIST if path.is_dir()), FASHION_MNIST[0])
    images, labels = read_images(data, "train", None)
    net = build()
    names, weights = zip(*net.named_parameters(), strict=True)
    values = [weight.detach() for weight in weights]
    store.init(list(names), values)
    store.set_optimizer(ringpull.optimizers.SGD(learning_rate=options.lr, momentum=0.9, rescale_grad=1 / options.batch))
    # Workers that wait for each other all make the same number of steps; with dist_async all train for the same time.
    steps = int(options.seconds / (options.pace + (float(options.late.split("=")[1]) if is_late else 0)))
    order, batches = numpy.random.RandomState(options.seed), []
    ends, kept = [], []
    store.barrier()
    start = time.perf_counter()
    while time.perf_counter() < start + options.seconds if kind == "dist_async" else len(ends) < steps:
        begun = time.perf_counter() + late
        time.sleep(late)
        if not batches:
            shuffled = order.permutation(len(labels))
            batches = [shuffled[at : at + options.batch] for at in range(0, len(labels) - options.batch + 1, options.batch)]
        share = batches.pop()[rank::workers]
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(images[share]), labels[share], reduction="sum").backward()
        time.sleep(max(0.0, begun + options.pace - time.perf_counter()))
        store.pushpull(list(names), [weight.grad for weight in weights], out=values)
        ends.append(time.perf_counter() - start)
        if rank == 0 and len(ends) % options.every == 0:
            kept.append((ends[-1], [value.clone() for value in values]))
    store.barrier()
    found = {"ends": ends}
    if rank == 0:
        images, labels = read_images(data, "t10k", options.test_images)
        found["losses"] = []
        for at, snapshot in kept:
            for value, was in zip(values, snapshot, strict=True):
                value.copy_(was)
            with torch.no_grad():
                found["losses"].append((at, torch.nn.functional.cross_entropy(net(images), labels).item()))
    (pathlib.Path(folder) / str(rank)).write_text(json.dumps(found))
    store.barrier()


def job(program, options):
    """Runs one job, and returns its measurements as a dictionary."""
    with tempfile.TemporaryDirectory(prefix="late-loss-") as folder:
        servers = [] if program.startswith("dist_sync_mpi") else ["-s", options.workers]
        own = [word for name in PASSED_ON for word in own_option(options, name)]
        worker = [sys.executable, __file__, *own, "--worker", program, folder]
        launch = [options.binary, "launch", "-n", options.workers, *servers, "--launcher", options.launcher, "--", *worker]
        subprocess.run([str(word) for word in launch], check=True, stdout=sys.stderr)
        found = [json.loads((pathlib.Path(folder) / str(rank)).read_text()) for rank in range(options.workers)]
    ends = [one["ends"] for one in found]
    paces = [len(of) / of[-1] for of in ends]
    losses = found[0]["losses"]
    means = [(at, statistics.mean(loss for _, loss in losses[number - 2 : number + 1])) for number, (at, _) in enumerate(losses) if number >= 2]
    reached = next((at for at, loss in means if loss <= options.target), None)
    pushed = reached and sum(sum(end <= reached for end in of) for of in ends) * options.batch / options.workers
    last = [loss for at, loss in means if at <= options.seconds]
    found = {"program": program, "step": len(paces) / sum(paces), "time": reached, "images": pushed, "last": last[-1] if last else None}
    return found | {"settings": settings(options)}


def settings(options):
    """Returns the settings that must be equal for all jobs of one table."""
    return {name: getattr(options, name) for name in ("workers", "target", *PASSED_ON)}


def own_option(options, name):
    return [f"--{name.replace('_', '-')}", getattr(options, name)]


def table(jobs, options):
    """Yields the lines of a table in Markdown, of the jobs with these settings."""
    jobs = [one for one in jobs if one["settings"] == settings(options)]
    yield f"| program | step | time to a loss of {options.target} | images until then | loss after {options.seconds:g} s |"
    yield "| --- | --- | --- | --- | --- |"
    for program in PROGRAMS:
        of = [one for one in jobs if one["program"] == program]
        if of:
            cells = [spread(of, "step", 1000, " ms"), spread(of, "time", 1, " s"), spread(of, "images", 1, "", 0), spread(of, "last", 1, "", 3)]
            yield f"| {program}, {len(of)} job{'s'[: len(of) > 1]} | {' | '.join(cells)} |"


def spread(of, name, times=1, unit="", digits=1):
    found = [one[name] * times for one in of if one[name] is not None]
    if not found:
        return "not reached"
    missed = f", {len(of) - len(found)} not" if len(found) < len(of) else ""
    return f"{statistics.median(found):.{digits}f}{unit} ({min(found):.{digits}f} to {max(found):.{digits}f}{missed})"


def main():
    options = arguments()
    if options.worker:
        be_worker(options)
        return
    jobs = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out and options.out.exists() else []
    programs = options.programs.split(",")
    for number in range(options.rounds):
        turn = number % len(programs)
        for program in programs[turn:] + programs[:turn]:
            jobs.append(job(program, options))
            print(f"round {number + 1}: {json.dumps(jobs[-1])}", file=sys.stderr)
            if options.out:
                with open(options.out, "a") as file:
                    print(json.dumps(jobs[-1]), file=file)
    print("\n".join(table(jobs, options)))


if __name__ == "__main__":
    main()
