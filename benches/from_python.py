#!/usr/bin/env python3
"""Compares the time of pushpull from Python and from Rust: iterations in turn, in the same processes, on the
same store.

    .venv/bin/python benches/from_python.py [--ranks 2] [--rounds 5] [--model resnet50 | --bytes 25000000]

Needs the package in the release profile: `scripts/python-setup --release`. A job is one `mpirun`. In each of its turns an iteration
of `ringpull bench pushpull` and an iteration from Python follow each other, in changing order. A round has one job for each way to
hold the arrays in Python. A ratio is the median of all iterations from Python divided by the median of those from Rust. Each line also
has the ratio's 95 % confidence interval, by bootstrap over the rounds and the turns in each, and the ratios of the best and the worst
round. The first row compares Rust's loop with itself: its difference from 1 is the measurement's own error. Every sum is checked.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy

WAYS = {
    "Rust again": ["--memory", "rust"],
    "arrays of ringpull.zeros, keep=False": ["--memory", "shared", "--no-keep"],
    "arrays of ringpull.zeros": ["--memory", "shared"],
    "arrays of NumPy's, keep=False": ["--memory", "numpy", "--no-keep"],
    "arrays of NumPy's": ["--memory", "numpy"],
}


def job(options, words):
    """Runs one job. Returns for each turn the seconds of Rust and of Python, on the slowest rank."""
    what = ["--model", options.model, "--scale", str(options.scale)] if options.model else ["--lens", str(options.bytes // 4)]
    command = [options.python, "-m", "ringpull.bench", "--beside-rust", *what, *words]
    command += ["--iters", str(options.iters), "--warmup", str(options.warmup)]
    mpirun = [os.environ.get("RINGPULL_MPIRUN", "mpirun"), "-n", str(options.ranks), "--oversubscribe", "--bind-to", "none"]
    # Threads of BLAS and OpenMP, which nothing here needs, would take cores from other ranks.
    more = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*mpirun, *command], stdout=subprocess.PIPE, text=True, env=os.environ | more, timeout=300, check=True)
    rust, other = json.loads(done.stdout)
    assert rust["verified"] and other["verified"]
    return numpy.array([rust["seconds"], other["seconds"]]).T


def ratio(turns):
    """Returns the median of Python's seconds divided by the median of Rust's."""
    rust, other = numpy.median(turns, axis=0)
    return other / rust


def interval(rounds):
    """Returns the 95 % confidence interval of the ratio: rounds, and turns in each round, are resampled a thousand times."""
    random = numpy.random.default_rng(0)

    def drawn():
        jobs = [rounds[index] for index in random.integers(len(rounds), size=len(rounds))]
        return ratio(numpy.concatenate([job[random.integers(len(job), size=len(job))] for job in jobs]))

    ordered = sorted(drawn() for _ in range(1000))
    return ordered[25], ordered[-26]


def main():
    """Measures, and prints one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iters", type=int, help="turns of a job (default: 400; with --model 60)")
    parser.add_argument("--warmup", type=int, default=6, help="turns before the measured ones")
    parser.add_argument("--bytes", type=int, default=25_000_000)
    parser.add_argument("--model", help="a model's key list in place of one key")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the package")
    options = parser.parse_args()
    # A median that is right within one per cent takes some hundred turns of one or two milliseconds. The turns
    # of a whole model are longer and vary less.
    options.iters = options.iters or (60 if options.model else 400)
    turns = {way: [] for way in WAYS}
    for number in range(options.rounds):
        order = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        for way in order:
            turns[way].append(job(options, WAYS[way]))
    what = options.model or f"{options.bytes / 1e6:g} MB"
    print(f"pushpull of {what} by {options.ranks} ranks, {options.rounds} rounds x {options.iters} turns of Rust and another\n")
    for way, rounds in turns.items():
        together = numpy.concatenate(rounds)
        rust, other = 1e3 * numpy.median(together, axis=0)
        low, high = interval(rounds)
        of_rounds = sorted(ratio(turn) for turn in rounds)
        print(
            f"{way:<38} {other:8.2f} ms, Rust {rust:8.2f} ms: {ratio(together):5.3f}x ({low:.3f} to {high:.3f};"
            f" rounds {of_rounds[0]:.3f} to {of_rounds[-1]:.3f})"
        )


main()
