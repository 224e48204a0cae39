"""Operations on tensors of PyTorch. Those that return a tensor can be differentiated; those that end in ``_`` work in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..basics import Adasum, Average, Sum
from ..operations import OPS, Operation, begin, op_of
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

#: Types that only travel here, as bytes.
_AS_BYTES = (torch.int16, torch.bool)


def _given(tensor: Any) -> Any:
    """The tensor's memory as a communicator takes it: on the host, contiguous, apart from the graph."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"a {type(tensor).__name__}\n  hint: give a torch.Tensor")
    return tensor.detach().cpu().contiguous()


def _into(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copies results to where they belong, unless they were written there."""
    for result, memory, tensor in zip(results, given, tensors):
        if result.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            with torch.no_grad():
                tensor.copy_(result if result is not memory else memory)


def _is_integral(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point()


def _scaled(tensor: Any, factor: float) -> Any:
    """Integers times a factor, rounded towards zero."""
    return tensor if factor == 1.0 else (tensor.double() * factor).to(tensor.dtype)


# Reductions.


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
    """Starts the reduction of tensors, into `outs` if these are given."""
    if not tensors:
        raise ValueError("grouped_allreduce of no tensors\n  hint: give one at least")
    given = [_given(tensor) for tensor in tensors]
    if op == Adasum:
        return _adasum_async(given, outs, name, prescale, postscale, process_set, is_single)
    if any(tensor.dtype == torch.bool for tensor in given):
        raise ValueError("a reduction of bool\n  hint: give a tensor of numbers")
    # The arithmetic of integers is PyTorch's own: a quotient is rounded as it rounds one.
    integral = _is_integral(given[0])
    if any(_is_integral(tensor) != integral for tensor in given):
        raise ValueError("a group of integers and floating-point numbers\n  hint: reduce them apart")
    addends, kind = given, OPS[op]
    if integral:
        if op == Average:
            kind = OPS[Sum]
        addends = [_scaled(tensor.to(torch.int32) if tensor.dtype == torch.int16 else tensor, prescale) for tensor in given]

    def call(comm: Any, known: str | None) -> list[Any]:
        scales = {} if integral else {"prescale": prescale, "postscale": postscale}
        in_place = outs is not None and not integral
        # What is given is written where it may be; a copy of ours always may.
        if is_single:
            return [comm.allreduce(addends[0], op=kind, name=known, out=addends[0] if in_place else None, **scales)]
        return [comm.grouped_allreduce(addends, op=kind, name=known, outs=addends if in_place else None, **scales)]

    count = process_set.size()

    def result(results: list[Any]) -> Any:
        done = results if is_single else results[0]
        if integral:
            if op == Average:
                done = [tensor.floor_divide(count) for tensor in done]
            done = [_scaled(tensor, postscale).to(own.dtype) for tensor, own in zip(done, given)]
        return _delivered(done, given, tensors, outs, is_single)

    return begin("allreduce" if is_single else "grouped_allreduce", name, process_set, call, result)


def _delivered(
    done: Sequence[torch.Tensor], given: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor] | None, is_single: bool
) -> Any:
    """Results as the caller has them: in the tensors that it gave for them, or new ones where the tensors are."""
    if outs is not None:
        _into(done, given, outs)
        results = list(outs)
    else:
        results = [result.reshape(tensor.shape).to(tensor.device) for result, tensor in zip(done, tensors)]
    return results[0] if is_single else results


def _adasum_async(
    given: list[torch.Tensor],
    outs: Sequence[torch.Tensor] | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    is_single: bool,
) -> Operation:
    """Every rank gathers all ranks' tensors and combines them alike, in pairs, in pairs of pairs, and so on."""
    count = process_set.size()
    if count & (count - 1):
        raise NotImplementedError(f"Adasum over {count} ranks\n  hint: it is defined for a power of two")
    if any(_is_integral(tensor) for tensor in given):
        raise ValueError("Adasum of integers\n  hint: give floating-point numbers")

    def call(comm: Any, known: str | None) -> list[Any]:
        return [
            comm.allgather(tensor.reshape(1, -1), name=known and f"{known}.{at}", lengths=[1] * count)
            for at, tensor in enumerate(given)
        ]

    def result(results: list[Any]) -> Any:
        done = [_adasum(rows, prescale, postscale).reshape(tensor.shape) for rows, tensor in zip(results, given)]
        return _delivered(done, given, given, outs, is_single)

    return begin("adasum", name, process_set, call, result)


def _adasum(rows: Any, prescale: float, postscale: float) -> Any:
    """The ranks' gradients, one a row: of two, what they share counts once, and what is orthogonal adds up."""
    values = [row.double() * prescale for row in rows]
    while len(values) > 1:
        pairs = []
        for one, other in zip(values[::2], values[1::2]):
            product = torch.dot(one, other)
            of_one, of_other = torch.dot(one, one), torch.dot(other, other)
            pairs.append(
                (1 - product / (2 * of_one) if of_one else 1) * one + (1 - product / (2 * of_other) if of_other else 1) * other
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
    """Starts :func:`allreduce`; the tensor may not be changed until :func:`synchronize` has returned its result."""
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
    return _reduce_async([tensor], [tensor], name, op_of(op, average), prescale_factor, postscale_factor, process_set, True)


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
    return _reduce_async(list(tensors), None, name, op_of(op, average), prescale_factor, postscale_factor, process_set, False)


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
    return _reduce_async(tensors, tensors, name, op_of(op, average), prescale_factor, postscale_factor, process_set, False)


def _function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A function that autograd knows: `forward` of the tensors, and `backward` of the results' gradients, which gets the tensors' too."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            ctx.tensors = [tensor.shape for tensor in tensors]
            result = forward(*tensors)
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return backward(*gradients)

    return Function.apply


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
        return synchronize(_reduce_async([value], None, name, chosen, prescale_factor, postscale_factor, process_set, True))

    reduced = _function(lambda value: reduce(value, name), reduce)(compressed)
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
    done: torch.Tensor = synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))
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
        return synchronize(_reduce_async(list(values), None, name, chosen, prescale_factor, postscale_factor, process_set, False))

    def backward(*gradients: torch.Tensor) -> Any:
        return tuple(reduce(*gradients))

    reduced = _function(lambda *values: reduce(*values, name=name), backward)(*(value for value, _ in compressed))
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
    done: list[torch.Tensor] = synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))
    return done


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts the sum or the average of sparse tensors, which are gathered: only elements that some rank has travel."""
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r} of sparse tensors\n  hint: give hvd.Average or hvd.Sum")
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
    tensors: list[torch.Tensor], name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float, is_single: bool
) -> Operation:
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r} of reducescatter\n  hint: give hvd.Average or hvd.Sum")
    given = [_given(tensor) for tensor in tensors]
    if any(tensor.dim() == 0 for tensor in given):
        raise ValueError("reducescatter of a scalar\n  hint: its first dimension is divided over the ranks, so give one that has any")
    count = process_set.size()

    def call(comm: Any, known: str | None) -> list[Any]:
        handles = []
        for at, tensor in enumerate(given):
            integral = _is_integral(tensor)
            if integral:
                tensor = _scaled(tensor.to(torch.int32) if tensor.dtype == torch.int16 else tensor, prescale)
            scales = {} if integral else {"prescale": prescale, "postscale": postscale}
            kind = OPS[Sum] if integral else OPS[op]
            handles.append(comm.reduce_scatter(tensor, op=kind, name=known and f"{known}.{at}", **scales))
        return handles

    def result(results: list[Any]) -> Any:
        done = []
        for part, tensor, own in zip(results, given, tensors):
            if _is_integral(tensor):
                part = _scaled(part.floor_divide(count) if op == Average else part, postscale)
            done.append(part.to(own.dtype).to(own.device))
        return done[0] if is_single else done

    return begin("reducescatter", name, process_set, call, result)


def _scatter(tensors: Sequence[torch.Tensor], name: str | None, op: int, process_set: ProcessSet, prescale: float, postscale: float, is_single: bool) -> Any:
    def forward(*values: torch.Tensor) -> Any:
        return synchronize(_scatter_async(list(values), name, op, process_set, prescale, postscale, is_single))

    def backward(*gradients: torch.Tensor) -> Any:
        factor = (process_set.size() if op == Sum else 1) * prescale * postscale
        gathered = [synchronize(allgather_async(gradient, process_set=process_set)) for gradient in gradients]
        gathered = [gradient if factor == 1 else gradient * factor for gradient in gathered]
        return gathered[0] if is_single else tuple(gathered)

    done = _function(forward, backward)(*tensors)
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
    """This rank's part of the reduction: the first dimension is divided over the ranks, the first of which have one more if need be."""
    compressed, context = compression.compress(tensor)
    return compression.decompress(_scatter([compressed], name, op, process_set, prescale_factor, postscale_factor, True), context)


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
    parts = _scatter([value for value, _ in compressed], name, op, process_set, prescale_factor, postscale_factor, False)
    return [compression.decompress(part, context) for part, (_, context) in zip(parts, compressed)]


# What only travels.


def _as_rows(tensor: Any) -> Any:
    """Rows of bytes, if a communicator does not know the type."""
    if tensor.dtype not in _AS_BYTES:
        return tensor
    rows = tensor.shape[0] if tensor.dim() else 1
    # An empty tensor has no last dimension to view otherwise.
    width = tensor.numel() // rows if rows else int(torch.Size(tensor.shape[1:]).numel())
    return tensor.reshape(rows, width).view(torch.uint8)


def _from_rows(rows: Any, like: Any) -> Any:
    """Rows of what `like` is a part of."""
    if like.dtype in _AS_BYTES:
        rows = rows.view(like.dtype)
    return rows.reshape(-1, *like.shape[1:]).to(like.device)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Operation:
    """Starts :func:`allgather`."""
    return _gather_async([tensor], name, process_set, True)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set) -> Operation:
    """Starts :func:`grouped_allgather`."""
    return _gather_async(list(tensors), name, process_set, False)


def _gather_async(tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet, is_single: bool) -> Operation:
    given = [_given(tensor) for tensor in tensors]

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.allgather(_as_rows(tensor), name=known and f"{known}.{at}") for at, tensor in enumerate(given)]

    def result(results: list[Any]) -> Any:
        done = [_from_rows(rows, tensor) for rows, tensor in zip(results, tensors)]
        return done[0] if is_single else done

    return begin("allgather", name, process_set, call, result)


def _gather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, is_single: bool) -> Any:
    def forward(*values: torch.Tensor) -> Any:
        return synchronize(_gather_async(list(values), name, process_set, is_single))

    def backward(*gradients: torch.Tensor) -> Any:
        parts = []
        for gradient, tensor in zip(gradients, tensors):
            rows = tensor.shape[0] if tensor.dim() else 1
            reduced = synchronize(allreduce_async(gradient, op=Average, process_set=process_set))
            counts = synchronize(allgather_async(torch.tensor([rows]), process_set=process_set))
            begin_at = int(counts[: process_set.rank()].sum())
            parts.append(reduced[begin_at : begin_at + rows].reshape(tensor.shape))
        return parts[0] if is_single else tuple(parts)

    done = _function(forward, backward)(*tensors)
    return done if is_single else list(done)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """All ranks' tensors, one behind the other along the first dimension, in which they may differ."""
    done: torch.Tensor = _gather([tensor], name, process_set, True)
    return done


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """:func:`allgather` of several tensors, as one operation."""
    done: list[torch.Tensor] = _gather(list(tensors), name, process_set, False)
    return done


def _broadcast_async(tensor: torch.Tensor, out: torch.Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet) -> Operation:
    given = _given(tensor)
    if out is None and given.data_ptr() == tensor.data_ptr():
        given = given.clone()

    def call(comm: Any, known: str | None) -> list[Any]:
        ranks = process_set.ranks or []
        if root_rank not in ranks:
            raise ValueError(f"broadcast from root_rank={root_rank} in {process_set}\n  hint: name one of its ranks")
        rows = _as_rows(given)
        return [comm.broadcast(rows, ranks.index(root_rank), name=known, out=rows)]

    def result(results: list[Any]) -> Any:
        done = (results[0].view(given.dtype) if given.dtype in _AS_BYTES else results[0]).reshape(given.shape)
        if out is None:
            return done.to(tensor.device)
        _into([done], [given], [out])
        return out

    return begin("broadcast", name, process_set, call, result)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Operation:
    """Starts :func:`broadcast`."""
    return _broadcast_async(tensor, None, root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Operation:
    """Starts :func:`broadcast_`."""
    return _broadcast_async(tensor, tensor, root_rank, name, process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensor of ``root_rank``, which is a rank of the job, also in a process set."""

    def backward(gradient: torch.Tensor) -> Any:
        reduced = synchronize(allreduce_async(gradient, op=Average, process_set=process_set))
        ranks = process_set.ranks or []
        return reduced if ranks.index(root_rank) == process_set.rank() else torch.zeros_like(reduced)

    done: torch.Tensor = _function(lambda value: synchronize(broadcast_async(value, root_rank, name, process_set)), backward)(tensor)
    return done


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """:func:`broadcast` in place."""
    done: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return done


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Operation:
    """Starts :func:`alltoall`."""
    given, count = _given(tensor), process_set.size()
    if tensor.dim() == 0:
        raise ValueError("alltoall of a scalar\n  hint: its first dimension is divided over the ranks, so give one that has any")
    rows = tensor.shape[0]
    if splits is None:
        if rows % count:
            raise ValueError(f"alltoall of {rows} rows over {count} ranks\n  hint: give splits, how many rows go to each rank")
        wanted = [rows // count] * count
    else:
        if isinstance(splits, torch.Tensor) and splits.is_floating_point():
            raise ValueError(f"splits of {splits.dtype}\n  hint: give integers")
        wanted = [int(split) for split in splits]
        if len(wanted) != count or min(wanted) < 0 or sum(wanted) != rows:
            raise ValueError(f"splits={wanted} of {rows} rows over {count} ranks\n  hint: give one for each rank, which add up to the rows")

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.alltoall(_as_rows(given), splits=wanted, name=known)]

    def result(results: list[Any]) -> Any:
        collected, received = results[0]
        collected = _from_rows(collected, tensor)
        if splits is None:
            return collected
        is_tensor = isinstance(splits, torch.Tensor)
        return collected, torch.tensor([int(split) for split in received], dtype=splits.dtype if is_tensor else torch.int32, device=splits.device if is_tensor else None)

    return begin("alltoall", name, process_set, call, result)


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """What the ranks have for this one: ``splits[r]`` rows go to rank r, by default as many to each.

    With ``splits`` it returns also how many rows came from each rank.
    """
    received: list[Any] = []

    def forward(value: torch.Tensor) -> Any:
        result = synchronize(alltoall_async(value, splits, name, process_set))
        if splits is None:
            return result
        received.append(result[1])
        return result[0]

    def backward(gradient: torch.Tensor) -> Any:
        result = synchronize(alltoall_async(gradient, received[0] if received else None, process_set=process_set))
        return result[0] if received else result

    collected = _function(forward, backward)(tensor)
    return collected if splits is None else (collected, received[0])


def poll(handle: Operation) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Operation) -> Any:
    """Waits for an operation and returns its result."""
    return handle.wait()


