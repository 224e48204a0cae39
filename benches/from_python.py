#!/usr/bin/env python3
"""What pushpull costs from Python beside Rust: both in the same run, round by round in rotation.

    .venv/bin/python benches/from_python.py [--ranks 2] [--rounds 7] [--model resnet50 | --bytes 25000000]

Wants the command `ringpull` and the package in one profile: `cargo build --release --bin ringpull`, `scripts/python-setup --release`.
A job is one `mpirun`; a round has one job of each way, and a ratio is of the medians of one round. Every sum is checked.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WAYS = {
    "Rust": None,
    "Python, arrays of ringpull.zeros, keep=False": ["--memory", "shared", "--no-keep"],
    "Python, arrays of NumPy's, keep=False": ["--memory", "numpy", "--no-keep"],
    "Python, arrays of NumPy's": ["--memory", "numpy"],
}


def job(options, ways):
    """The seconds of each iteration of one job, the slowest rank's."""
    times = ["--iters", str(options.iters), "--warmup", "3"]
    model = ["--model", options.model, "--scale", str(options.scale)]
    if ways is None:
        what = model if options.model else ["--sizes", f"{options.bytes}"]
        command = [options.ringpull, "bench", "pushpull", *what, "--format", "json", *times]
    else:
        what = model if options.model else ["--lens", str(options.bytes // 4)]
        command = [options.python, "-m", "ringpull.bench", *what, *times, *ways]
    mpirun = [os.environ.get("RINGPULL_MPIRUN", "mpirun"), "-n", str(options.ranks), "--oversubscribe", "--bind-to", "none"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run([*mpirun, *command], stdout=subprocess.PIPE, text=True, env=os.environ | root, timeout=300, check=True)
    (record,) = json.loads(done.stdout)
    assert record["verified"]
    return record["seconds"]


def main():
    """Measures and prints one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iters", type=int, default=15)
    parser.add_argument("--bytes", type=int, default=25_000_000)
    parser.add_argument("--model", help="a model's key list in place of one key")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--ringpull", default=ROOT / "target/release/ringpull", help="the command")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the package")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        order = list(WAYS)[number % len(WAYS) :] + list(WAYS)[: number % len(WAYS)]
        medians = {way: statistics.median(job(options, WAYS[way])) for way in order}
        rounds.append(medians)
    what = options.model or f"{options.bytes / 1e6:g} MB"
    print(f"pushpull of {what} by {options.ranks} ranks, medians of {options.rounds} rounds x {options.iters} iterations\n")
    for way in WAYS:
        seconds = statistics.median(medians[way] for medians in rounds)
        ratios = sorted(medians[way] / medians["Rust"] for medians in rounds)
        print(f"{way:<46} {seconds * 1e3:8.2f} ms   {statistics.median(ratios):5.2f}x of Rust  ({ratios[0]:.2f} to {ratios[-1]:.2f})")


main()
