"""MXNet's push/pull KVStore for data-parallel training, on MPI allreduce and on parameter servers.

    import numpy, ringpull
    store = ringpull.create("dist_sync_mpi")       # under mpirun -n N; "local" for one process
    store.init("w", numpy.zeros(4, numpy.float32))  # rank 0's value wins
    gradient = numpy.ones(4, numpy.float32)
    store.pushpull("w", gradient)                   # summed over all workers, in place
    print(store.rank, gradient)

Tensors are NumPy arrays, MXNet NDArrays, torch tensors, JAX arrays: anything with the buffer protocol or DLPack, in host memory or, for a
store on devices, on its GPUs.
``ringpull.mxnet`` makes MXNet 1.9 itself use these stores, ``ringpull.torch`` averages an optimizer's gradients;
``ringpull.elastic`` lets a job go on when ranks are lost.
"""

try:
    from ._native import __version__
except ModuleNotFoundError as missing:
    raise ImportError(
        "ringpull's native part is not here\n  hint: build it with scripts/setup --python, or `pip install ./python`"
    ) from missing

from . import errors, uncaught
from .collectives import Communicator, Operation, Receive, communicator
from .errors import *  # noqa: F403
from .kvstore import Handle, Key, KVStore, RowSparse, create, kinds, zeros
from .optimizers import NAG, SGD, AdaGrad, Adam, Optimizer, RMSProp, Test
from .shares import split, suggest_shares
from .stopping import should_stop, stop_on

__all__ = [
    "NAG",
    "SGD",
    "AdaGrad",
    "Adam",
    "Communicator",
    "Handle",
    "KVStore",
    "Key",
    "Operation",
    "Optimizer",
    "Receive",
    "RMSProp",
    "RowSparse",
    "Test",
    "__version__",
    "communicator",
    "create",
    "errors",
    "kinds",
    "should_stop",
    "split",
    "stop_on",
    "suggest_shares",
    "zeros",
]
__all__ += errors.__all__

uncaught.install()
