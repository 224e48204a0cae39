"""Logistic regression by plain arrays: every rank has a part of the data, the store sums the gradients.

    mpirun -n 4 python examples/numpy/logistic.py
    mpirun -n 4 python examples/numpy/logistic.py --jax

JAX arrays cannot be written, so they go in as values and the sum comes out in a NumPy array; neither is copied.
"""

import sys

import numpy

import ringpull

store = ringpull.create("dist_sync_mpi")
rank, workers = store.rank, store.num_workers
random = numpy.random.RandomState(rank)
points = random.normal(size=(500, 3)).astype(numpy.float32)
labels = (points @ numpy.float32([1, -2, 0.5]) > 0).astype(numpy.float32)


def gradient_of(weights):
    answers = 1 / (1 + numpy.exp(-points @ weights))
    return points.T @ (answers - labels)


if "--jax" in sys.argv:
    import jax

    def loss(weights):
        scores = points @ weights
        return jax.numpy.sum(jax.numpy.logaddexp(0, scores) - labels * scores)

    gradient_of = jax.grad(loss)

weights = numpy.zeros(3, numpy.float32)
total = numpy.empty(3, numpy.float32)
store.init("weights", weights)
for _ in range(200):
    store.pushpull("weights", gradient_of(weights), out=total)
    weights -= 5.0 / (500 * workers) * total
right = numpy.array([((points @ weights > 0) == labels).sum(), len(labels)], numpy.float32)
store.init("right", numpy.zeros(2, numpy.float32))
store.pushpull("right", right)
if rank == 0:
    print(f"{workers} workers, accuracy {100 * right[0] / right[1]:.1f} %, weights {weights}")
