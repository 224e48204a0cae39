"""Logistic regression on ranks that are not equally fast. Each rank gets a share of the batch such that all
ranks end together.

    mpirun -n 4 --oversubscribe python examples/numpy/unequal.py --slow 3

Every row takes the time of --row. On the last rank it takes --slow times that, as if its processor were
slower.
"""

import argparse
import time

import numpy

import ringpull


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-store", default="dist_sync_mpi", help="the kind of store (default: dist_sync_mpi)")
    parser.add_argument("--slow", type=float, default=3, help="how many times as long the last rank takes (default: 3)")
    parser.add_argument("--row", type=float, default=0.002, help="seconds for a row (default: 0.002)")
    parser.add_argument("--batch", type=int, default=400, help="rows in a batch, over all ranks (default: 400)")
    parser.add_argument("--steps", type=int, default=6, help="steps with equal and with suggested shares (default: 6)")
    return parser.parse_args()


def gradient(weights, rows, labels):
    """The mean over the rows."""
    return (rows.T @ (1 / (1 + numpy.exp(-rows @ weights)) - labels) / len(rows)).astype(numpy.float32)


def main():
    options = arguments()
    store = ringpull.create(options.kv_store)
    rank, ranks = store.rank, store.num_workers
    seconds_a_row = options.row * (options.slow if rank == ranks - 1 else 1)
    generator = numpy.random.RandomState(1)
    truth = generator.normal(size=20)
    weights, alone = numpy.zeros(20), numpy.zeros(20)
    store.init("gradient", numpy.zeros(20, numpy.float32))
    shares = [1.0] * ranks
    # The shortest time in which all ranks together can compute the rows.
    possible = options.batch * options.row / (ranks - 1 + 1 / options.slow)
    for phase in "equal", "suggested":
        parts = ringpull.split(options.batch, shares)
        own = parts[rank]
        # Each rank pushes the mean over its rows. The mean is weighted by the number of rows.
        store.set_shares([part.stop - part.start for part in parts])
        store.barrier()
        began = time.perf_counter()
        for _ in range(options.steps):
            rows = generator.normal(size=(options.batch, 20))
            labels = rows @ truth > 0
            mean = gradient(weights, rows[own], labels[own])
            time.sleep(seconds_a_row * (own.stop - own.start))
            store.pushpull("gradient", mean)
            weights -= mean / ranks
            alone -= gradient(alone, rows, labels)
        step = (time.perf_counter() - began) / options.steps
        assert numpy.allclose(weights, alone, atol=1e-4), "the sum is not the gradient of the whole batch"
        if rank == 0:
            said = ":".join(f"{share * ranks / sum(shares):.2f}" for share in shares)
            print(f"{phase} shares {said}: a step takes {step * 1e3:.1f} ms, {step / possible:.3f} of what is possible", flush=True)
        if phase == "equal":
            shares = ringpull.suggest_shares()


main()
