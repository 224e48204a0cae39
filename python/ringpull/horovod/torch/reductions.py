"""allreduce of dense and sparse tensors, by all reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError
from ..basics import Adasum, Average, Sum
from ..operations import OPS, Operation, begin, check_sum, op_of
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .tensors import delivered, differentiable, divided, factors, given_of, is_integral, scaled

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]


def _reduce_async(
    tensors: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor] | None,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    is_single: bool,
) -> Operation:
    """Starts the reduction of tensors. The results are written to `outs` if that is given."""
    if not tensors:
        raise ValueError("grouped_allreduce has no tensors\n  hint: give one at least")
    given = [given_of(tensor) for tensor in tensors]
    if op == Adasum:
        return _adasum_async(given, outs, name, prescale, postscale, process_set, is_single)
    if any(tensor.dtype == torch.bool for tensor in given):
        of = f" of {name}" if name else ""
        raise ArgumentError(f"allreduce{of}: bool cannot be reduced\n  hint: give a tensor of numbers")
    # The arithmetic of integers is made here: all of it rounds towards zero.
    integral = is_integral(given[0])
    if any(is_integral(tensor) != integral for tensor in given):
        raise ValueError("a group mixes integers and floating-point numbers\n  hint: reduce them apart")
    addends, kind = given, OPS[op]
    if integral:
        if op == Average:
            kind = OPS[Sum]
        addends = [
            scaled(tensor.to(torch.int32) if tensor.dtype == torch.int16 else tensor, prescale) for tensor in given
        ]

    def call(comm: Any, known: str | None) -> list[Any]:
        scales = {} if integral else factors(given, prescale, postscale)
        in_place = outs is not None and not integral
        # In place, the results are written to `addends`, which is the caller's memory or a copy of ours.
        if is_single:
            return [comm.allreduce(addends[0], op=kind, name=known, out=addends[0] if in_place else None, **scales)]
        return [comm.grouped_allreduce(addends, op=kind, name=known, outs=addends if in_place else None, **scales)]

    count = process_set.size()

    def result(results: list[Any]) -> Any:
        done = results if is_single else results[0]
        if integral:
            if op == Average:
                done = [divided(tensor, count) for tensor in done]
            done = [scaled(tensor, postscale).to(own.dtype) for tensor, own in zip(done, given)]
        return delivered(done, given, tensors, outs, is_single)

    return begin("allreduce" if is_single else "grouped_allreduce", name, process_set, call, result)


def _adasum_async(
    given: list[torch.Tensor],
    outs: Sequence[torch.Tensor] | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    is_single: bool,
) -> Operation:
    """Starts Adasum: every rank gathers all ranks' tensors, and all combine them in the same way: in pairs, then pairs of
    pairs, and so on."""
    count = process_set.size()
    if count & (count - 1):
        raise NotImplementedError(f"Adasum does not work over {count} ranks\n  hint: it is defined for a power of two")
    if not all(tensor.is_floating_point() for tensor in given):
        raise ValueError("Adasum takes neither integers nor complex numbers\n  hint: give floating-point numbers")

    def call(comm: Any, known: str | None) -> list[Any]:
        return [
            comm.allgather(tensor.reshape(1, -1), name=known and f"{known}.{at}", lengths=[1] * count)
            for at, tensor in enumerate(given)
        ]

    def result(results: list[Any]) -> Any:
        done = [_adasum(rows, prescale, postscale).reshape(tensor.shape) for rows, tensor in zip(results, given)]
        return delivered(done, given, given, outs, is_single)

    return begin("adasum", name, process_set, call, result)


def _adasum(rows: Any, prescale: float, postscale: float) -> Any:
    """Combines the gradients of all ranks, which are the rows. Of each two gradients the common part counts once, and orthogonal
    parts add up."""
    values = [row.double() * prescale for row in rows]
    while len(values) > 1:
        pairs = []
        for one, other in zip(values[::2], values[1::2]):
            product = torch.dot(one, other)
            of_one, of_other = torch.dot(one, one), torch.dot(other, other)
            pairs.append(
                (1 - product / (2 * of_one) if of_one else 1) * one
                + (1 - product / (2 * of_other) if of_other else 1) * other
            )
        values = pairs
    return (values[0] * postscale).to(rows.dtype)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation:
    """Starts :func:`allreduce`. The tensor must not be changed until :func:`synchronize` has returned the result."""
    return _reduce_async([tensor], None, name, op_of(op, average), prescale_factor, postscale_factor, process_set, True)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation:
    """Starts :func:`allreduce_`."""
    return _reduce_async(
        [tensor], [tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set, True
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation:
    """Starts :func:`grouped_allreduce`."""
    return _reduce_async(
        list(tensors), None, name, op_of(op, average), prescale_factor, postscale_factor, process_set, False
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Operation:
    """Starts :func:`grouped_allreduce_`."""
    tensors = list(tensors)
    return _reduce_async(
        tensors, tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set, False
    )


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduction of the tensor over the ranks, by default the average."""
    chosen = op_of(op, average)
    compressed, context = compression.compress(tensor)

    def reduce(value: torch.Tensor, name: str | None = None) -> Any:
        return _reduce_async([value], None, name, chosen, prescale_factor, postscale_factor, process_set, True).wait()

    reduced = differentiable(lambda value: reduce(value, name), reduce)(compressed)
    return compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`allreduce` in place."""
    done: torch.Tensor = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return done


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The reductions of several tensors, as one operation."""
    chosen = op_of(op, average)
    compressed = [compression.compress(tensor) for tensor in tensors]

    def reduce(*values: torch.Tensor, name: str | None = None) -> Any:
        return _reduce_async(
            list(values), None, name, chosen, prescale_factor, postscale_factor, process_set, False
        ).wait()

    def backward(*gradients: torch.Tensor) -> Any:
        return tuple(reduce(*gradients))

    reduced = differentiable(lambda *values: reduce(*values, name=name), backward)(*(value for value, _ in compressed))
    return [compression.decompress(value, context) for value, (_, context) in zip(reduced, compressed)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """:func:`grouped_allreduce` in place."""
    done: list[torch.Tensor] = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()
    return done


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts the sum or the average of sparse tensors. They are gathered, so only elements that some rank has travel."""
    check_sum(op, "sparse tensors")
    own = tensor.detach().coalesce()
    indices, values = own.indices().t().contiguous().cpu(), own.values().contiguous().cpu()
    count, shape, device = process_set.size(), tensor.shape, tensor.device

    def call(comm: Any, known: str | None) -> list[Any]:
        named = [known and f"{known}.{part}" for part in ("indices", "values")]
        return [comm.allgather(part, name=one) for part, one in zip((indices, values), named)]

    def result(results: list[Any]) -> Any:
        at, elements = results
        if op == Average:
            elements = elements / count
        return torch.sparse_coo_tensor(at.t(), elements, shape, device=device).coalesce()

    return begin("sparse_allreduce", name, process_set, call, result)
