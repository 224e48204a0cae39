"""Measures pushpull from Python: ``mpirun -n N python -m ringpull.bench --lens 6250000``; rank 0 prints one JSON array of records.

Without more words it is what ``store.pushpull(key, array)`` costs for NumPy's own arrays. ``--memory shared`` takes arrays of
``ringpull.zeros``, ``--no-keep`` leaves the sums to them. ``--beside-rust`` runs an iteration of ``ringpull bench pushpull`` before
each of Python's, in the same processes and on the same store, and prints its record first.

Inputs and checks are those of ``ringpull bench pushpull``: element e of rank r in iteration i is (e + i + r) mod m, so the sum over
the ranks has a closed form, and a time is printed only beside a check of its sums. A time is the slowest rank's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy

from . import _native
from .kvstore import create, zeros


def strips(period: int, length: int, ranks: int) -> tuple[Any, Any]:
    """As many periods as `length` elements from any phase need, of inputs and of what they sum to over the ranks."""
    ramp = numpy.arange(period)
    sums: Any = sum((ramp + other) % period for other in range(ranks))
    inputs, sums = (numpy.resize(row.astype(numpy.float32), length + period) for row in (ramp, sums))
    return inputs, sums


def main() -> None:
    """Runs the measurement that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="dist_sync_mpi")
    keys_of = parser.add_mutually_exclusive_group(required=True)
    keys_of.add_argument("--lens", help="elements of each key, separated by commas")
    keys_of.add_argument("--model", help="the key list of vgg16, resnet50 or bert-large, or a file, as ringpull bench reads it")
    parser.add_argument("--scale", type=float, default=1.0, help="scale every key of the model to this part of its elements")
    parser.add_argument("--memory", choices=["numpy", "shared"], default="numpy", help="where the arrays are")
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="let the arrays alone have the sums")
    parser.add_argument("--beside-rust", action="store_true", help="measure Rust's own loop in turn with Python's")
    parser.add_argument("--iters", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    options = parser.parse_args()
    store = create(options.kv_store)
    rank, ranks = store.rank, store.num_workers
    period = min(16, (1 << 24) // ranks) + 1
    lens = _native.model_lens(options.model, options.scale) if options.model else [int(word) for word in options.lens.split(",")]
    keys = [f"python.{index}" for index in range(len(lens))]
    make = zeros if options.memory == "shared" else numpy.zeros
    values: list[Any] = [make(length, numpy.float32) for length in lens]
    store.init(keys, values)
    rust = _native.RustIterations(store._native, lens, "rust") if options.beside_rust else None
    #: The seconds of each iteration, Rust's beside Python's.
    rows: list[list[float]] = []
    inputs, sums = strips(period, max(lens), ranks)
    for iteration in range(options.warmup + options.iters):
        beside = rust.seconds(iteration) if rust is not None else 0.0
        for value in values:
            value[:] = inputs[(iteration + rank) % period :][: len(value)]
        store.wait_all()
        store.barrier()
        start = time.perf_counter()
        store.pushpull(keys[::-1], values[::-1], keep=options.keep)
        seconds = time.perf_counter() - start
        for key, value in zip(keys, values):
            if not numpy.array_equal(value, sums[iteration % period :][: len(value)]):
                sys.exit(f"wrong sum of key {key} on rank {rank} in iteration {iteration}")
        if iteration >= options.warmup:
            rows.append([beside, seconds])
    # Every rank puts its own rows among zeros; the sum holds all of them.
    matrix = numpy.zeros((ranks, options.iters, 2))
    matrix[rank] = rows
    store.init("seconds", numpy.zeros_like(matrix))
    store.pushpull("seconds", matrix)
    slowest = matrix.max(axis=0)
    if rank == 0:
        kept = "kept" if options.keep else "not kept"
        modes = [f"{options.kv_store} (Rust)", f"{options.kv_store} (Python, {options.memory} memory, sums {kept})"]
        taken = list(zip(modes, slowest.T.tolist()))[0 if options.beside_rust else 1 :]
        print(json.dumps([record(mode, ranks, 4 * sum(lens), seconds) for mode, seconds in taken]))


def record(mode: str, ranks: int, payload: int, seconds: list[float]) -> dict[str, Any]:
    """What ``ringpull bench`` prints of as many iterations."""
    median = statistics.median(seconds)
    return {
        "op": "pushpull",
        "mode": mode,
        "ranks": ranks,
        "bytes": payload,
        "dtype": "f32",
        "seconds": seconds,
        "median_s": median,
        "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (ranks - 1) / ranks,
        "verified": True,
    }


if __name__ == "__main__":
    main()
