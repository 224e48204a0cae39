"""Operations that only move tensors: allgather, broadcast and alltoall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..basics import Average
from ..operations import Operation, begin, index_of_root, splits_of
from ..process_sets import ProcessSet, global_process_set
from .reductions import allreduce_async
from .tensors import differentiable, given_of, into

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`allgather`."""
    return _gather_async([tensor], name, process_set, True)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`grouped_allgather`."""
    return _gather_async(list(tensors), name, process_set, False)


def _gather_async(tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet, is_single: bool) -> Operation:
    given = [given_of(tensor) for tensor in tensors]

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.allgather(tensor, name=known and f"{known}.{at}") for at, tensor in enumerate(given)]

    def result(results: list[Any]) -> Any:
        done = [rows.to(tensor.device) for rows, tensor in zip(results, tensors)]
        return done[0] if is_single else done

    return begin("allgather", name, process_set, call, result)


def _gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, is_single: bool) -> Any:
    def forward(*values: torch.Tensor) -> Any:
        return _gather_async(list(values), name, process_set, is_single).wait()

    def backward(*gradients: torch.Tensor) -> Any:
        parts = []
        for gradient, tensor in zip(gradients, tensors):
            rows = tensor.shape[0] if tensor.dim() else 1
            reduced = allreduce_async(gradient, op=Average, process_set=process_set).wait()
            counts = allgather_async(torch.tensor([rows]), process_set=process_set).wait()
            begin_at = int(counts[: process_set.rank()].sum())
            parts.append(reduced[begin_at : begin_at + rows].reshape(tensor.shape))
        return parts[0] if is_single else tuple(parts)

    done = differentiable(forward, backward)(*tensors)
    return done if is_single else list(done)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, concatenated along the first dimension. The tensors may differ in this dimension."""
    done: torch.Tensor = _gather([tensor], name, process_set, True)
    return done


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """:func:`allgather` of several tensors, as one operation."""
    done: list[torch.Tensor] = _gather(list(tensors), name, process_set, False)
    return done


def _broadcast_async(
    tensor: torch.Tensor, out: torch.Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> Operation:
    given = given_of(tensor)
    if out is None and given.data_ptr() == tensor.data_ptr():
        given = given.clone()

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.broadcast(given, index_of_root(root_rank, process_set), name=known, out=given)]

    def result(results: list[Any]) -> Any:
        (done,) = results
        if out is None:
            return done.to(tensor.device)
        into([done], [given], [out])
        return out

    return begin("broadcast", name, process_set, call, result)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`broadcast`."""
    return _broadcast_async(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`broadcast_`."""
    return _broadcast_async(tensor, tensor, root_rank, name, process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of ``root_rank``. ``root_rank`` is a rank of the job, also if a process set is given."""

    def backward(gradient: torch.Tensor) -> Any:
        reduced = allreduce_async(gradient, op=Average, process_set=process_set).wait()
        is_root = index_of_root(root_rank, process_set) == process_set.rank()
        return reduced if is_root else torch.zeros_like(reduced)

    done: torch.Tensor = differentiable(
        lambda value: broadcast_async(value, root_rank, name, process_set).wait(), backward
    )(tensor)
    return done


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """:func:`broadcast` in place."""
    done: torch.Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return done


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`alltoall`."""
    return _alltoall_async(tensor, splits, name, process_set)


def _alltoall_async(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, came: list[int] | None = None
) -> Operation:
    """Starts an alltoall. Appends the number of rows from each rank to `came`."""
    given, count = given_of(tensor), process_set.size()
    if tensor.dim() == 0:
        raise ValueError(
            "alltoall does not take a scalar\n  hint: its first dimension is divided over the ranks, so give a tensor of at least one dimension"
        )
    if isinstance(splits, torch.Tensor) and splits.is_floating_point():
        raise ValueError(f"splits cannot be {splits.dtype}\n  hint: give integers")
    wanted = splits_of(splits, tensor.shape[0], count)

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.alltoall(given, splits=wanted, name=known)]

    def result(results: list[Any]) -> Any:
        collected, received = results[0]
        collected = collected.to(tensor.device)
        if came is not None:
            came.extend(int(split) for split in received)
        if splits is None:
            return collected
        like: dict[str, Any] = {"dtype": torch.int32}
        if isinstance(splits, torch.Tensor):
            like = {"dtype": splits.dtype, "device": splits.device}
        return collected, torch.tensor([int(split) for split in received], **like)

    return begin("alltoall", name, process_set, call, result)


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends ``splits[r]`` rows to each rank r, by default the same number to each. Returns the rows that the ranks send to this one.

    With ``splits`` it also returns the number of rows from each rank.
    """
    received: list[Any] = []
    came: list[int] = []

    def forward(value: torch.Tensor) -> Any:
        result = _alltoall_async(value, splits, name, process_set, came).wait()
        if splits is None:
            return result
        received.append(result[1])
        return result[0]

    def backward(gradient: torch.Tensor) -> Any:
        # The gradient's rows go back to the ranks from which the rows came. Also with equal splits, ranks may send different numbers.
        return alltoall_async(gradient, came, process_set=process_set).wait()[0]

    collected = differentiable(forward, backward)(tensor)
    return collected if splits is None else (collected, received[0])
