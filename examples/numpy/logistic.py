"""Logistic regression by plain arrays: every rank has a part of the data, the store sums the gradients.

    python examples/numpy/logistic.py --kv-store local                                          # one process
    mpirun -n 4 --oversubscribe python examples/numpy/logistic.py                               # allreduce
    mpirun -n 4 --oversubscribe python examples/numpy/logistic.py --jax                         # gradients by JAX
    ringpull launch -n 4 -s 2 -- python examples/numpy/logistic.py --kv-store dist_sync         # servers

JAX arrays cannot be written, so they are the values, and a NumPy array gets the sum. Neither is copied.
"""

import argparse

import numpy

import ringpull


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-store", default="dist_sync_mpi", help="the kind of store (default: dist_sync_mpi)")
    parser.add_argument("--steps", type=int, default=200, help="steps of gradient descent (default: 200)")
    parser.add_argument("--lr", type=float, default=5.0, help="the learning rate (default: 5)")
    parser.add_argument("--jax", action="store_true", help="let JAX compute the gradients")
    return parser.parse_args()


def main():
    options = arguments()
    store = ringpull.create(options.kv_store)
    rank, workers = store.rank, store.num_workers
    random = numpy.random.RandomState(rank)
    points = random.normal(size=(500, 3)).astype(numpy.float32)
    labels = (points @ numpy.float32([1, -2, 0.5]) > 0).astype(numpy.float32)

    def gradient_of(weights):
        answers = 1 / (1 + numpy.exp(-points @ weights))
        return points.T @ (answers - labels)

    if options.jax:
        import jax

        def loss(weights):
            scores = points @ weights
            return jax.numpy.sum(jax.numpy.logaddexp(0, scores) - labels * scores)

        gradient_of = jax.grad(loss)

    weights = numpy.zeros(3, numpy.float32)
    total = numpy.empty(3, numpy.float32)
    store.init("weights", weights)
    for _ in range(options.steps):
        store.pushpull("weights", gradient_of(weights), out=total)
        weights -= options.lr / (len(labels) * workers) * total
    right = numpy.array([((points @ weights > 0) == labels).sum(), len(labels)], numpy.float32)
    store.init("right", numpy.zeros(2, numpy.float32))
    store.pushpull("right", right)
    if rank == 0:
        print(f"{workers} workers, accuracy {100 * right[0] / right[1]:.1f} %, weights {weights}")


main()
