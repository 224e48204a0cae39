"""Operations on whole models, on states of optimizers, and on objects."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .. import process_sets as sets
from ..process_sets import ProcessSet, global_process_set
from .mpi_ops import broadcast_async_, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives tensors the values of ``root_rank``. ``params`` is ``model.state_dict()``, or pairs such as ``model.named_parameters()``."""
    if isinstance(params, Mapping):
        pairs: Iterable[Any] = params.items()
    elif isinstance(params, (list, tuple)) or hasattr(params, "__next__"):
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"parameters cannot be a {type(params).__name__}\n  hint: give model.state_dict() or model.named_parameters()")
    handles = []
    for name, value in pairs:
        if isinstance(value, torch.Tensor):
            try:
                handles.append(broadcast_async_(value, root_rank, process_set=process_set))
            except ValueError as error:
                error.args = (f"parameter {name!r}: {error}",)
                raise
    for handle in handles:
        synchronize(handle)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``. It travels pickled."""
    comm, ranks = process_set.comm(), process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"broadcast_object: root_rank={root_rank} is not in {process_set}\n  hint: name one of its ranks")
    return sets.broadcast_object(comm, obj, ranks.index(root_rank), name and f"object.{name}")


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in the order of the ranks. They travel pickled."""
    return sets.gather_objects(process_set.comm(), obj, name and f"object.{name}")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None, process_set: ProcessSet = global_process_set
) -> None:
    """Gives an optimizer the states and options of ``root_rank``; makes states that do not exist yet. ``model`` is accepted for Horovod's sake."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast\n  hint: use another optimizer, whose state belongs to single parameters")
    process_set.comm()
    is_root = sets.job().rank == root_rank
    tensors: list[torch.Tensor] = []

    def without_tensors(value: Any) -> Any:
        """The value with a `_Place` instead of each tensor."""
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Place(len(tensors) - 1, value.dtype, tuple(value.shape))
        if isinstance(value, Mapping):
            return {key: without_tensors(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(without_tensors(one) for one in value)
        return value

    def with_tensors(value: Any) -> Any:
        if isinstance(value, _Place):
            return tensors[value.number]
        if isinstance(value, dict):
            return {key: with_tensors(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(with_tensors(one) for one in value)
        return value

    states = optimizer.state_dict()
    layout, places = None, None
    if is_root:
        layout = without_tensors(states)
        places = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    layout, places = broadcast_object((layout, places), root_rank, process_set=process_set)
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in places]
    tensors = [tensor.detach().cpu().contiguous() for tensor in tensors]
    for handle in [broadcast_async_(tensor, root_rank, process_set=process_set) for tensor in tensors]:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(with_tensors(copy.copy(layout)))


class _Place:
    """Marks the place of a tensor."""

    def __init__(self, number: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.number, self.dtype, self.shape = number, dtype, shape
