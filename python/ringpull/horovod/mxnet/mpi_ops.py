"""Operations on MXNet's arrays. Each waits for its result, so all ranks call them in one order; ``priority`` is accepted for Horovod's sake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet
import numpy

from ..basics import Average, Sum
from ..operations import OPS, Operation, begin, check_sum, index_of_root, op_of, splits_of
from ..process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def _given(tensor: Any) -> numpy.ndarray[Any, Any]:
    """A copy of the array, made after MXNet has computed it."""
    if not isinstance(tensor, mxnet.nd.NDArray):
        raise ValueError(f"a {type(tensor).__name__} cannot be reduced or sent\n  hint: give an NDArray")
    return numpy.ascontiguousarray(tensor.asnumpy())


def _made(values: Any, like: Any) -> Any:
    """The values as an array on the device of `like`."""
    values = numpy.asarray(values)
    return mxnet.nd.array(values.astype(like.dtype, copy=False), ctx=like.context, dtype=like.dtype)


def _is_integral(values: numpy.ndarray[Any, Any]) -> bool:
    return values.dtype.kind in "iub"


def _divisible(tensor: Any, what: str) -> numpy.ndarray[Any, Any]:
    """The array. Raises if it has no first dimension to divide over the ranks."""
    values = _given(tensor)
    if tensor.ndim == 0:
        raise ValueError(f"{what} does not take a scalar\n  hint: its first dimension is divided over the ranks, so give an array of at least one dimension")
    return values


def _divided(values: numpy.ndarray[Any, Any], count: int) -> numpy.ndarray[Any, Any]:
    """Integers divided, rounded towards zero."""
    return numpy.asarray((values - numpy.fmod(values, count)) // count)


def _scaled(values: numpy.ndarray[Any, Any], factor: float) -> numpy.ndarray[Any, Any]:
    """Integers times a factor, rounded towards zero."""
    return values if factor == 1.0 else (values.astype(numpy.float64) * factor).astype(values.dtype)


def reduce_async(
    tensors: Sequence[Any], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet, is_single: bool = False
) -> Operation:
    """Starts a reduction whose results are NumPy arrays."""
    if op not in OPS:
        raise ValueError("Adasum of MXNet's arrays is supported neither here nor in Horovod\n  hint: give another op")
    given = [_given(tensor) for tensor in tensors]
    kind, count = OPS[op], process_set.size()
    integral = _is_integral(given[0])
    if any(_is_integral(values) != integral for values in given):
        raise ValueError("a group mixes integers and floating-point numbers\n  hint: reduce them apart")
    if integral:
        kind = OPS[Sum] if op == Average else kind
        given = [_scaled(values, prescale) for values in given]

    def call(comm: Any, known: str | None) -> list[Any]:
        scales = {} if integral else {"prescale": prescale, "postscale": postscale}
        if is_single:
            return [comm.allreduce(given[0], op=kind, name=known, out=given[0], **scales)]
        return [comm.grouped_allreduce(given, op=kind, name=known, outs=given, **scales)]

    def result(results: list[Any]) -> Any:
        done = [numpy.asarray(values) for values in (results if is_single else results[0])]
        if integral:
            done = [_scaled(_divided(values, count) if op == Average else values, postscale) for values in done]
        return done

    return begin("allreduce" if is_single else "grouped_allreduce", name, process_set, call, result)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """The reduction of the array over the ranks, by default the average."""
    (done,) = reduce_async([tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set, True).wait()
    return _made(done, tensor)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """:func:`allreduce` in place."""
    allreduce(tensor, average, name, priority, prescale_factor, postscale_factor, process_set, op).copyto(tensor)
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """The reductions of several arrays, as one operation."""
    if not tensors:
        return []
    done = reduce_async(tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set).wait()
    return [_made(values, tensor) for values, tensor in zip(done, tensors)]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """:func:`grouped_allreduce` in place."""
    for done, tensor in zip(grouped_allreduce(tensors, average, name, priority, prescale_factor, postscale_factor, process_set, op), tensors):
        done.copyto(tensor)
    return list(tensors)


def grouped_allgather(tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> list[Any]:
    """:func:`allgather` of several arrays, as one operation."""
    given = [_given(tensor) for tensor in tensors]

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.allgather(values, name=known and f"{known}.{at}") for at, values in enumerate(given)]

    done = begin("allgather", name, process_set, call, list).wait()
    return [_made(values, tensor) for values, tensor in zip(done, tensors)]


def allgather(tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' arrays, concatenated along the first dimension. The arrays may differ in this dimension."""
    return grouped_allgather([tensor], name, priority, process_set)[0]


def broadcast(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """The array of ``root_rank``. ``root_rank`` is a rank of the job, also if a process set is given."""
    given = _given(tensor)

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.broadcast(given, index_of_root(root_rank, process_set), name=known, out=given)]

    return _made(begin("broadcast", name, process_set, call, lambda results: results[0]).wait(), tensor)


def broadcast_(tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """:func:`broadcast` in place."""
    broadcast(tensor, root_rank, name, priority, process_set).copyto(tensor)
    return tensor


def alltoall(tensor: Any, splits: Any = None, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Sends ``splits[r]`` rows to each rank r, by default the same number to each. Returns the rows that the ranks send to this one.

    With ``splits`` it also returns the number of rows from each rank.
    """
    given, count = _divisible(tensor, "alltoall"), process_set.size()
    if isinstance(splits, mxnet.nd.NDArray):
        splits = splits.asnumpy()
        if splits.dtype.kind == "f":
            raise ValueError(f"splits cannot be {splits.dtype}\n  hint: give integers")
    wanted = splits_of(splits, given.shape[0], count)

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.alltoall(given, splits=wanted, name=known)]

    collected, received = begin("alltoall", name, process_set, call, lambda results: results[0]).wait()
    made = _made(collected, tensor)
    return made if splits is None else (made, mxnet.nd.array(list(received), dtype="int32"))


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`reducescatter` of several arrays, as one operation."""
    check_sum(op, "reducescatter")
    given, count = [_divisible(tensor, "reducescatter") for tensor in tensors], process_set.size()

    def call(comm: Any, known: str | None) -> list[Any]:
        handles = []
        for at, values in enumerate(given):
            integral = _is_integral(values)
            scales = {} if integral else {"prescale": prescale_factor, "postscale": postscale_factor}
            addend = _scaled(values, prescale_factor) if integral else values
            handles.append(comm.reduce_scatter(addend, op=OPS[Sum if integral else op], name=known and f"{known}.{at}", **scales))
        return handles

    done = [numpy.asarray(part) for part in begin("reducescatter", name, process_set, call, list).wait()]
    done = [_scaled(_divided(part, count) if op == Average else part, postscale_factor) if _is_integral(part) else part for part in done]
    return [_made(part, tensor) for part, tensor in zip(done, tensors)]


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's part of the reduction. The first dimension is divided over the ranks. If it cannot be divided equally, the first ranks
    get one row more than the others."""
    return grouped_reducescatter([tensor], op, name, priority, prescale_factor, postscale_factor, process_set)[0]
