"""reducescatter of tensors: each rank gets its part of a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..basics import Average, Sum
from ..operations import OPS, Operation, begin, check_sum
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .tensors import differentiable, divided, factors, given_of, is_integral, scaled
from .travelling import allgather_async

__all__ = ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async"]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation:
    """Starts :func:`reducescatter`."""
    return _scatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor, True)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Operation:
    """Starts :func:`grouped_reducescatter`."""
    return _scatter_async(list(tensors), name, op, process_set, prescale_factor, postscale_factor, False)


def _scatter_async(
    tensors: list[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    is_single: bool,
) -> Operation:
    check_sum(op, "reducescatter")
    given = [given_of(tensor) for tensor in tensors]
    if any(tensor.dim() == 0 for tensor in given):
        raise ValueError(
            "reducescatter does not take a scalar\n  hint: its first dimension is divided over the ranks, so give a tensor of at least one dimension"
        )
    count = process_set.size()

    def call(comm: Any, known: str | None) -> list[Any]:
        handles = []
        for at, tensor in enumerate(given):
            integral = is_integral(tensor)
            if integral:
                tensor = scaled(tensor.to(torch.int32) if tensor.dtype == torch.int16 else tensor, prescale)
            scales = {} if integral else factors([tensor], prescale, postscale)
            kind = OPS[Sum] if integral else OPS[op]
            handles.append(comm.reduce_scatter(tensor, op=kind, name=known and f"{known}.{at}", **scales))
        return handles

    def result(results: list[Any]) -> Any:
        done = []
        for part, tensor, own in zip(results, given, tensors):
            if is_integral(tensor):
                part = scaled(divided(part, count) if op == Average else part, postscale)
            done.append(part.to(own.dtype).to(own.device))
        return done[0] if is_single else done

    return begin("reducescatter", name, process_set, call, result)


def _scatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    is_single: bool,
) -> Any:
    def forward(*values: torch.Tensor) -> Any:
        return _scatter_async(list(values), name, op, process_set, prescale, postscale, is_single).wait()

    def backward(*gradients: torch.Tensor) -> Any:
        factor = (process_set.size() if op == Sum else 1) * prescale * postscale
        gathered = [allgather_async(gradient, process_set=process_set).wait() for gradient in gradients]
        gathered = [gradient if factor == 1 else gradient * factor for gradient in gathered]
        return gathered[0] if is_single else tuple(gathered)

    done = differentiable(forward, backward)(*tensors)
    return done if is_single else list(done)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's part of the reduction. The first dimension is divided over the ranks. If it cannot be divided
    equally, the first ranks get one row more than the others."""
    compressed, context = compression.compress(tensor)
    return compression.decompress(
        _scatter([compressed], name, op, process_set, prescale_factor, postscale_factor, True), context
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """:func:`reducescatter` of several tensors, as one operation."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    parts = _scatter(
        [value for value, _ in compressed], name, op, process_set, prescale_factor, postscale_factor, False
    )
    return [compression.decompress(part, context) for part, (_, context) in zip(parts, compressed)]
