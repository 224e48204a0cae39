"""``horovod.keras`` and ``horovod.tensorflow.keras`` on our collectives, for Keras 3 on its backends torch, jax and tensorflow, and for
Keras 2: ``import ringpull.horovod.keras as hvd``."""

from __future__ import annotations

from typing import Any

import numpy

from .. import basics
from ..basics import *  # noqa: F403
from ..exceptions import HorovodInternalError
from ..operations import begin, op_of
from ..process_sets import ProcessSet, broadcast_object as _broadcast_object, gather_objects, global_process_set
from . import callbacks, elastic
from .callbacks import broadcast_variables
from .reducing import Compression, DistributedOptimizer, load_model, reduced
from .versions import array_of

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += basics.__all__


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of a number, an array or a tensor over the ranks, by default the average. Returns a NumPy array."""
    array = array_of(value)
    (done,) = reduced([array.reshape(-1)], name, op_of(op, average), process_set, prescale_factor, postscale_factor, compression.dtype)
    return done.reshape(array.shape)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' values, concatenated along the first dimension."""
    array = array_of(value)
    return begin("allgather", name, process_set, lambda comm, known: [comm.allgather(array, name=known)], lambda done: numpy.asarray(done[0])).wait()


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The value of ``root_rank``."""
    array = array_of(value)

    def call(comm: Any, known: str | None) -> list[Any]:
        flat = array.reshape(-1)
        return [comm.broadcast(flat, (process_set.ranks or []).index(root_rank), name=known, out=flat)]

    return begin("broadcast", name, process_set, call, lambda done: numpy.asarray(done[0]).reshape(array.shape)).wait()


def reducescatter(value: Any, name: str | None = None, op: int = basics.Average, process_set: ProcessSet = global_process_set) -> Any:
    """This rank's rows of the reduction."""
    array, kind = array_of(value), "average" if op == basics.Average else "sum"
    return begin("reducescatter", name, process_set, lambda comm, known: [comm.reduce_scatter(array, op=kind, name=known)], lambda done: numpy.asarray(done[0])).wait()


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``. It travels pickled."""
    return _broadcast_object(process_set.comm(), obj, (process_set.ranks or []).index(root_rank), name)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in the order of the ranks."""
    return gather_objects(process_set.comm(), obj, name)
