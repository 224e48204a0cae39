"""Measures pushpull from Python: ``mpirun -n N python -m ringpull.bench --lens 6250000``; rank 0 prints one JSON array of records.

By default it measures ``store.pushpull(key, array)`` for NumPy's own arrays. ``--memory shared`` uses arrays of ``ringpull.zeros``.
With ``--no-keep`` only the arrays get the sums, and the store keeps none. ``--beside-rust`` alternates with the loop of ``ringpull bench
pushpull``, in the same processes and on the same store, and prints the record of that loop first. With ``--beside-rust --memory rust``
both loops are Rust's, on different keys: this shows how much the times of two equal loops differ. In every second turn the other loop
goes first.

Inputs and checks are as in ``ringpull bench pushpull``: element e of rank r in iteration i is (e + i + r) mod m, so the sum over
the ranks has a closed form. Every sum is checked before its time is printed. A time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy

from . import _native
from .kvstore import KVStore, create, zeros

#: Elements are filled and compared in runs of about this length, as in Rust. A run as long as the arrays would displace the arrays from
#: the processor's caches before the clock starts.
RUN_LEN = 512 * 17


class PythonIterations:
    """Runs iterations of pushpull over arrays, one by one. Collective, and so is ``seconds``."""

    def __init__(self, store: KVStore, lens: list[int], memory: str, keep: bool) -> None:
        self._store, self._keep = store, keep
        self._period = min(16, (1 << 24) // store.num_workers) + 1
        self._keys = [f"python.{index}" for index in range(len(lens))]
        make = zeros if memory == "shared" else numpy.zeros
        self._values: list[Any] = [make(length, numpy.float32) for length in lens]
        store.init(self._keys, self._values)

    def _run(self, ranks: range, iteration: int) -> Any:
        """The sum of the elements that these ranks push in an iteration, for a whole number of periods."""
        phases = numpy.arange(self._period) + iteration
        period = sum((phases + rank) % self._period for rank in ranks)
        return numpy.tile(numpy.asarray(period, numpy.float32), RUN_LEN // self._period)

    def seconds(self, iteration: int) -> float:
        """Runs one iteration, checks its sums and returns its seconds. Iterations count from 0."""
        store, keys, values = self._store, self._keys, self._values
        inputs = self._run(range(store.rank, store.rank + 1), iteration)
        for value in values:
            for chunk in chunks(value, len(inputs)):
                chunk[:] = inputs[: len(chunk)]
        store.barrier()
        start = time.perf_counter()
        store.pushpull(keys[::-1], values[::-1], keep=self._keep)
        seconds = time.perf_counter() - start
        # Without this barrier the first rank to finish would take processor time from the last.
        store.barrier()
        sums = self._run(range(store.num_workers), iteration)
        for key, value in zip(keys, values):
            if not all(numpy.array_equal(chunk, sums[: len(chunk)]) for chunk in chunks(value, len(sums))):
                sys.exit(f"wrong sum of key {key} on rank {store.rank} in iteration {iteration}")
        return seconds


def chunks(value: Any, length: int) -> Iterator[Any]:
    """Parts of the array of the given length. The last part may be shorter."""
    return (value[start : start + length] for start in range(0, len(value), length))


def main() -> None:
    """Runs the measurement that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="dist_sync_mpi")
    keys_of = parser.add_mutually_exclusive_group(required=True)
    keys_of.add_argument("--lens", help="elements of each key, separated by commas")
    keys_of.add_argument("--model", help="the key list of vgg16, resnet50 or bert-large, or a file, as ringpull bench reads it")
    parser.add_argument("--scale", type=float, default=1.0, help="scale every key of the model to this part of its elements")
    parser.add_argument("--memory", choices=["numpy", "shared", "rust"], default="numpy", help="who allocates the arrays")
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="write the sums to the arrays only; the store keeps none")
    parser.add_argument("--beside-rust", action="store_true", help="alternate between Rust's own loop and Python's")
    parser.add_argument("--iters", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    options = parser.parse_args()
    store = create(options.kv_store)
    rank, ranks = store.rank, store.num_workers
    lens = _native.model_lens(options.model, options.scale) if options.model else [int(word) for word in options.lens.split(",")]
    kept = "kept" if options.keep else "not kept"
    sides: dict[str, Any] = {}
    if options.beside_rust:
        sides["Rust"] = _native.RustIterations(store._native, lens, "rust")
    if options.memory == "rust":
        sides["Rust again"] = _native.RustIterations(store._native, lens, "again")
    else:
        sides[f"Python, {options.memory} memory, sums {kept}"] = PythonIterations(store, lens, options.memory, options.keep)
    #: For each turn the seconds of each side.
    rows: list[list[float]] = []
    for iteration in range(options.warmup + options.iters):
        order = list(sides)[:: -1 if iteration % 2 else 1]
        seconds = {name: sides[name].seconds(iteration) for name in order}
        if iteration >= options.warmup:
            rows.append([seconds[name] for name in sides])
    # Every rank puts its own rows into zeros; the sum has the rows of all ranks.
    matrix = numpy.zeros((ranks, options.iters, len(sides)))
    matrix[rank] = rows
    store.init("seconds", numpy.zeros_like(matrix))
    store.pushpull("seconds", matrix)
    slowest = matrix.max(axis=0).T.tolist()
    if rank == 0:
        modes = [f"{options.kv_store} ({name})" for name in sides]
        print(json.dumps([record(mode, ranks, 4 * sum(lens), seconds) for mode, seconds in zip(modes, slowest)]))


def record(mode: str, ranks: int, payload: int, seconds: list[float]) -> dict[str, Any]:
    """The record that ``ringpull bench`` prints for the same number of iterations."""
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
