"""Measures the time of an elastic job from the loss of a rank to its next step, and the time of its start.

    python benches/restarts.py [--ranks 4] [--megabytes 10] [--times 5] [--binary ringpull] [--torch]

`ringpull launch --elastic` starts a job of `--ranks` ranks, `--times` times. The job commits its state after
every step. Its last rank is killed after some steps. A line has the median over the jobs, with the least and
the most:

- start: from the launcher's start to the end of the first step;
- loss: from the kill to the end of the first step of the next generation. It is checked that each sample is in the state once;
- beyond: loss minus start;
- commit: the time of one commit of `--megabytes` megabytes.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def rank(folder, megabytes):
    """Runs one rank of the job."""
    import numpy

    import ringpull
    from ringpull.elastic import Sampler, State, generation, run

    job = ringpull.communicator()
    log = open(folder / f"{generation()}-{job.rank}", "a", buffering=1)  # noqa: SIM115

    @run
    def train(state):
        for rows in state.sampler.batches(job.size * 2):
            counts = numpy.bincount(rows, minlength=len(state.seen)).astype(numpy.float64)
            state.seen += job.allreduce(counts, out=counts).wait()
            state.step += 1
            done = time.time()
            state.commit()
            print(os.getpid(), state.step, int(state.seen.sum()), int(state.seen.max()), done, time.time() - done, file=log)
            if generation() > 0 and state.step > 30:
                break

    train(State(seen=numpy.zeros(100_000), ballast=numpy.ones(megabytes * 125_000), step=0, sampler=Sampler(100_000)))


def lines(folder, generation, rank):
    path = folder / f"{generation}-{rank}"
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text.splitlines() if len(line.split()) == 6]


def once(options):
    with tempfile.TemporaryDirectory() as name:
        folder, last = pathlib.Path(name), options.ranks - 1
        words = [options.binary, "launch", "-q", "--elastic", "-n", options.ranks, "--", sys.executable, __file__]
        words += ["--rank-in", folder, "--megabytes", options.megabytes, *(["--torch"] if options.torch else [])]
        begun = time.time()
        job = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while len(lines(folder, 0, last)) < 20:
            if job.poll() is not None:
                sys.exit(f"the job has ended with {job.returncode}\n{job.stderr.read()}")
            time.sleep(0.01)
        killed = time.time()
        os.kill(int(lines(folder, 0, last)[-1][0]), signal.SIGKILL)
        _, said = job.communicate(timeout=120)
        first, after = lines(folder, 0, 0), lines(folder, 1, 0)
        if job.returncode != 0 or not after:
            sys.exit(f"the job has ended with {job.returncode}\n{said}")
        for _, step, samples, most, _, _ in first + after:
            assert int(samples) == int(step) * options.ranks * 2 and int(most) == 1, "a sample is missing or was taken twice"
        start, loss = float(first[0][4]) - begun, float(after[0][4]) - killed
        return start, loss, loss - start, statistics.median(float(line[5]) for line in first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=10, help="the size of the state")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--binary", default="ringpull", help="the command ringpull")
    parser.add_argument("--torch", action="store_true", help="every rank imports PyTorch first")
    parser.add_argument("--rank-in", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_in:
        if options.torch:
            import torch  # noqa: F401
        rank(options.rank_in, options.megabytes)
        return
    measured = [once(options) for _ in range(options.times)]
    print(f"{options.ranks} ranks, a state of {options.megabytes} MB, {options.times} jobs: median (least to most)")
    for name, values in zip(["start", "loss", "beyond", "commit"], zip(*measured, strict=True), strict=True):
        print(f"{name:8} {statistics.median(values):8.3f} s  ({min(values):.3f} to {max(values):.3f})")


main()
