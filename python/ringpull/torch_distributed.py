"""The backend ``ringpull`` of ``torch.distributed``: its collectives on ours, in host memory.

    # mpirun -n 4 python train.py
    torch.distributed.init_process_group("ringpull")
    model = torch.nn.parallel.DistributedDataParallel(model)

Where the package is installed, PyTorch 2.5 and later know the backend by themselves; ``import ringpull.torch_distributed`` registers it, too.

A process group is a communicator of ours: that of the job, or a process set. Calls go together in their order in each group; groups work
beside each other. A tensor that is contiguous and of a type that we sum is used where it is, others through a copy. Errors are
:class:`ringpull.KVStoreError` and ``torch.distributed.DistBackendError`` at once, on every rank.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import importlib
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import numpy
import torch
import torch.distributed

from ringpull_torch import register

from .collectives import Communicator, Operation, communicator
from .errors import ArgumentError, KVStoreError, StalledError, UnsupportedError
from .torch import _Waiter, _waiters

__all__ = ["ProcessGroup"]

# What it has differs from version to version.
_distributed: Any = torch.distributed
_c10d: Any = importlib.import_module("torch._C._distributed_c10d")
#: PyTorch before 2.0 has no class of its own.
_BackendError: type[Exception] = getattr(torch.distributed, "DistBackendError", RuntimeError)

#: The types that communicators have; others travel as bytes, and are reduced as another type.
_NATIVE = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64}
#: In which type others are reduced, with the same result.
_WIDER = {torch.int16: torch.int32, getattr(torch, "uint16", None): torch.int32, getattr(torch, "uint32", None): torch.int64}

_REDUCTIONS = {
    "SUM": "sum",
    "AVG": "average",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "PREMUL_SUM": "sum",
}
_BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
#: The reductions of truth values, as those of bytes that are 0 or 1.
_OF_TRUTH = {"SUM": "max", "MAX": "max", "BOR": "max", "PRODUCT": "min", "MIN": "min", "BAND": "min"}

#: How much work of a group is kept for C++.
_KEPT = 256
#: The references to work that a group has alone: its own, and that of who counts.
_HELD_HERE = 2

_classes: dict[type[KVStoreError], type[Any]] = {}


def _raised(error: KVStoreError) -> KVStoreError:
    """The same error, which ``except torch.distributed.DistBackendError`` catches too, unless it is a wrong argument."""
    kind = type(error)
    if isinstance(error, (ArgumentError, _BackendError)):
        return error
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (kind, _BackendError), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    found = cast("KVStoreError", _classes[kind](*error.args))
    found.__dict__.update(error.__dict__)
    return found


def _nothing() -> None:
    pass


class Work(_c10d.Work):  # type: ignore[misc]
    """Operations under way, and what is left to be done when they are there. What :func:`torch.distributed.all_reduce` returns with ``async_op``."""

    def __init__(
        self,
        group: ProcessGroup,
        name: str,
        operations: Sequence[Operation[Any]],
        results: list[torch.Tensor],
        deliver: Callable[[], None] = _nothing,
        limit: float | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._name, self._limit, self._source = name, limit, source
        self._group, self._results = group, results
        self._operations: Sequence[Operation[Any]] | None = operations
        self._deliver = deliver
        self._error: KVStoreError | None = None
        self._future: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        """Waits for the results. Raises what kept them from coming, also where that takes longer than the group's timeout or this one."""
        limit = timeout.total_seconds()
        self._settle(limit if limit > 0 else self._limit)
        return True

    def _settle(self, limit: float | None) -> None:
        if self._error is not None:
            raise self._error
        operations = self._operations
        if operations is None:
            return
        end = None if limit is None else time.monotonic() + limit
        try:
            for operation in operations:
                operation.wait(None if end is None else max(0.0, end - time.monotonic()))
            with torch.no_grad():
                self._deliver()
        except KVStoreError as error:
            self._error = _raised(error)
            raise self._error from None
        except TimeoutError:
            # It goes on: another call may wait for it.
            who = f"{self._name} of {self._group!r}"
            raise _raised(
                StalledError(
                    f"{who} was not done within its timeout of {limit:g} s\n"
                    "  hint: find out what the other ranks do meanwhile, or give init_process_group, new_group or the call a longer timeout"
                )
            ) from None
        self._operations, self._deliver = None, _nothing

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return self._error is not None or all(operation.done() for operation in self._operations or ())

    def _is_over(self) -> bool:
        """Whether it is done, and settled if it is. Who asks does not wait: what repeats itself goes on without messages."""
        if self._operations is None or self._error is not None:
            return True
        if not all([operation._take() for operation in self._operations]):
            return False
        with contextlib.suppress(KVStoreError):
            # It has what it waits for.
            self._settle(None)
        return True

    def is_success(self) -> bool:
        """Whether it was done without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> KVStoreError | None:
        """What kept it from being done."""
        if self._error is None and self.is_completed():
            try:
                self._settle(None)
            except KVStoreError:
                pass
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results, when they are there."""
        self.wait()
        return self._results

    def source_rank(self) -> int:
        """The rank whose message was received."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the results, which DistributedDataParallel and functional collectives wait for."""
        if self._future is None:
            waiter = self._group._waiting()
            given = waiter.add(cast("Any", self), lambda: self._results, torch.device("cpu"))
            # What a future of Python was given as an exception is a value to C++; what a callback raises is an error there.
            self._future = given.then(lambda done: done.value())
            waiter.last = given
        return self._future


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row: the tensor's own memory if it is contiguous, else a copy."""
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f'a tensor on {tensor.device} for the backend "ringpull", which works in host memory\n'
            "  hint: give tensors on the CPU, or another backend for that device"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"a tensor of layout {tensor.layout}\n  hint: give a dense one; of sparse ones there is all_reduce by SUM and AVG")
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat: torch.Tensor = tensor.contiguous().view(-1)
    return flat


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """As :func:`_flat`, of a type that travels."""
    flat = _flat(tensor)
    return flat if flat.dtype in _NATIVE else flat.view(torch.uint8)


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory is that the tensor is a part of."""
    return int(getattr(tensor, "untyped_storage", tensor.storage)().data_ptr())


def _back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Brings elements where they belong, unless they are there."""
    if flat.data_ptr() == tensor.data_ptr() and tensor.is_contiguous() or not flat.numel():
        return
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if flat.dtype == torch.uint8 and tensor.dtype not in _NATIVE:
        flat = flat.view(tensor.dtype)
    tensor.copy_(flat.view(tensor.shape))


def _row(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Tensors that lie one behind the other in one memory, as one; None if they do not."""
    first = tensors[0]
    start = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != start or tensor.dtype != first.dtype or not tensor.is_contiguous() or _memory(tensor) != _memory(first):
            return None
        start += tensor.numel() * tensor.element_size()
    count = sum(tensor.numel() for tensor in tensors)
    row: torch.Tensor = first.detach().as_strided((count,), (1,), first.storage_offset())
    return row


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors in a row, of a type that travels: in place if they lie so."""
    found = None if any(tensor.is_complex() or tensor.layout != torch.strided for tensor in tensors) else _row(tensors)
    return _moved(found) if found is not None else torch.cat([_moved(tensor) for tensor in tensors])


def _lengths(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How many elements of each travel."""
    def width(tensor: torch.Tensor) -> int:
        if tensor.is_complex():
            return 2
        return 1 if tensor.dtype in _NATIVE else tensor.element_size()

    return [tensor.numel() * width(tensor) for tensor in tensors]


def _one(tensors: Any) -> torch.Tensor:
    """The one tensor of a call: PyTorch gives lists, of one for each device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"{len(tensors)} tensors where one belongs\n  hint: give one tensor on each rank")
    return cast("torch.Tensor", tensors[0])


def _op(options: Any) -> tuple[str, float | torch.Tensor]:
    """The name of a reduction, and the factor on each rank's elements."""
    op = getattr(options, "reduceOp", options)
    if op is None:
        return "SUM", 1.0
    for name in (*_REDUCTIONS, *_BITWISE):
        known = getattr(_distributed.ReduceOp, name, None)
        if known is not None and op == known:
            if name != "PREMUL_SUM":
                return name, 1.0
            return name, op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    raise UnsupportedError(f"a reduction by {op}\n  hint: give one of {', '.join((*_REDUCTIONS, *_BITWISE))}")


def _limit(options: Any) -> float | None:
    """The timeout of a call, if it has one."""
    timeout = getattr(options, "timeout", None)
    return timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None


class _Sum:
    """How a tensor is reduced: its elements in a type that can be, by which reduction."""

    def __init__(self, tensor: torch.Tensor, options: Any) -> None:
        name, factor = _op(options)
        self.flat, self.prescale = _flat(tensor), 1.0
        dtype = tensor.dtype
        if tensor.is_complex() and name not in ("SUM", "AVG", "PREMUL_SUM"):
            raise self._refused(name, dtype, "SUM and AVG")
        if dtype == torch.bool:
            if name not in _OF_TRUTH:
                raise self._refused(name, dtype, ", ".join(_OF_TRUTH))
            self.reduction, self.flat = _OF_TRUTH[name], self.flat.view(torch.uint8)
            return
        if name in _BITWISE:
            raise self._refused(name, dtype, ", ".join(_REDUCTIONS))
        self.reduction = _REDUCTIONS[name]
        if self.flat.dtype in _WIDER:
            self.flat = self.flat.to(_WIDER[self.flat.dtype])
        if self.flat.dtype not in _NATIVE:
            raise self._refused(name, dtype, "none: cast it to a type that has more bits")
        if isinstance(factor, torch.Tensor) and factor.numel() != 1:
            self.flat = self.flat * factor.to(self.flat.dtype)
        else:
            self.prescale = float(factor)

    @staticmethod
    def _refused(name: str, dtype: torch.dtype, known: str) -> KVStoreError:
        return UnsupportedError(f"a reduction of {dtype} by {name}\n  hint: reductions of it are {known}")

    def back(self, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        """Brings the result where it belongs."""
        if tensor.dtype in _WIDER:
            flat = flat.to(tensor.dtype)
        _back(tensor, flat)


class ProcessGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives are those of a communicator. Made by ``init_process_group`` and ``new_group``."""

    def __init__(self, comm: Communicator, limit: float | None) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm, self._limit = comm, limit
        #: C++ may hold work without its Python half, which is what waits. So that is kept: with its tensors as long as it is under way or
        #: somebody in Python has it, and without them for some time after.
        self._begun: collections.deque[Work] = collections.deque()
        self._over: collections.deque[Work] = collections.deque(maxlen=_KEPT)
        #: What is called between `_start_coalescing` and `_end_coalescing`.
        self._together: list[Work] | None = None
        self._waiter: _Waiter | None = None

    def _waiting(self) -> _Waiter:
        if self._waiter is None:
            self._waiter = _Waiter()
            _waiters.append(self._waiter)
        return self._waiter

    def _work(
        self,
        name: str,
        call: Callable[[], Sequence[Operation[Any]]],
        results: list[torch.Tensor],
        deliver: Callable[[], None] = _nothing,
        options: Any = None,
        source: int = -1,
    ) -> Work:
        try:
            operations = call()
        except KVStoreError as error:
            raise _raised(error) from None
        work = Work(self, name, operations, results, deliver, _limit(options) or self._limit, source)
        self._let_go()
        self._begun.append(work)
        if self._together is not None:
            self._together.append(work)
        return work

    def _let_go(self) -> None:
        """Lets go of the tensors of what is over."""
        while self._begun:
            if len(self._begun) > _KEPT:
                self._begun.popleft()
            elif self._begun[0]._is_over() and sys.getrefcount(self._begun[0]) <= _HELD_HERE:
                work = self._begun.popleft()
                work._results = []
                self._over.append(work)
            else:
                return

    # What PyTorch asks of a group.

    def getBackendName(self) -> str:  # noqa: N802
        """``ringpull``."""
        return "ringpull"

    #: PyTorch keeps a group's name and description with what it has for each device: this has nothing there.
    _name, _desc = "", "undefined"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """PyTorch's name of the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """PyTorch's name of the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """What the group is for."""
        self._desc = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the group is for."""
        return self._desc

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    #: `batch_isend_irecv` asks; our messages go beside each other as they are.
    supports_coalescing = False
    supports_splitting = False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._limit = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def shutdown(self) -> None:
        """Nothing: the process leaves its job when it ends."""

    def abort(self) -> None:
        """Nothing: a fault ends the operations of every rank."""

    def _start_coalescing(self, device: Any = None) -> None:
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Work:
        together, self._together = self._together or [], None
        return self._all("coalesced operations", together)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def _all(self, name: str, works: Sequence[Work]) -> Work:
        """Several works as one."""

        def deliver() -> None:
            for work in works:
                work.wait()

        operations = [operation for work in works for operation in work._operations or ()]
        return self._work(name, lambda: operations, [result for work in works for result in work._results], deliver)

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """The reduction of all ranks' tensors, in place."""
        tensor = _one(tensors)
        if tensor.layout == torch.sparse_coo:
            return self._sparse_allreduce(tensor, opts)
        return self._allreduce("all_reduce", tensor, opts, is_result=True)

    def _allreduce(self, name: str, tensor: torch.Tensor, opts: Any, is_result: bool) -> Work:
        op, _ = _op(opts)
        if op in _BITWISE and tensor.dtype != torch.bool or op == "BXOR":
            return self._bitwise(name, tensor, opts, is_result)
        how = _Sum(tensor, opts)
        if is_result:
            flat, deliver = how.flat, lambda: how.back(tensor, how.flat)
        else:
            flat, deliver = torch.empty_like(how.flat), _nothing
        return self._work(
            name,
            lambda: [self._comm.allreduce(how.flat, how.reduction, out=flat, prescale=how.prescale)],
            [tensor],
            deliver,
            opts,
        )

    def _bitwise(self, name: str, tensor: torch.Tensor, opts: Any, is_result: bool) -> Work:
        """Every rank's elements on every rank, which are then combined in the order of the ranks."""
        op, _ = _op(opts)
        if tensor.is_floating_point() or tensor.is_complex():
            raise _Sum._refused(op, tensor.dtype, "SUM, AVG, PRODUCT, MIN and MAX")
        flat = _moved(tensor)
        rows = flat.new_empty(self._comm.size, flat.numel())

        def deliver() -> None:
            combined = rows[0]
            for row in rows[1:]:
                combined = _BITWISE[op](combined, row)
            if is_result:
                _back(tensor, combined)

        lengths = [flat.numel()] * self._comm.size
        return self._work(name, lambda: [self._comm.allgather(flat, lengths=lengths, out=rows.view(-1))], [tensor], deliver, opts)

    def _sparse_allreduce(self, tensor: torch.Tensor, opts: Any) -> Work:
        """The sum of sparse tensors: every rank's indices and values on every rank."""
        op, _ = _op(opts)
        if op not in ("SUM", "AVG"):
            raise _Sum._refused(op, tensor.dtype, "SUM and AVG, as it is sparse")
        own = tensor.detach().coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()

        called: list[Operation[Any]] = []

        def begin() -> list[Operation[Any]]:
            called.extend([self._comm.allgather(indices), self._comm.allgather(values)])
            return called

        def deliver() -> None:
            places, parts = (operation.wait() for operation in called)
            found = torch.sparse_coo_tensor(places.t(), parts, tensor.shape).coalesce()
            tensor.copy_(found / self._comm.size if op == "AVG" else found)

        return self._work("all_reduce", begin, [tensor], deliver, opts)

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """:meth:`allreduce` of each."""
        return self._all("all_reduce", [self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors: Any, opts: Any) -> Work:
        """As :meth:`allreduce`, for rank ``opts.rootRank``; the tensors of others stay as they are."""
        return self._allreduce("reduce", _one(tensors), opts, is_result=opts.rootRank == self._comm.rank)

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        """The tensor of rank ``opts.rootRank`` on every rank."""
        tensor = _one(tensors)
        flat = _moved(tensor)
        root = opts if isinstance(opts, int) else opts.rootRank
        deliver = _nothing if root == self._comm.rank else lambda: _back(tensor, flat)
        return self._work("broadcast", lambda: [self._comm.broadcast(flat, root, out=flat)], [tensor], deliver, opts)

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Work:
        """Every rank's tensor on every rank; shapes may differ as the outputs' do."""
        outputs = list(_one_list(output_lists))
        return self._gathered("all_gather", outputs, _one(inputs), opts)

    def _gathered(self, name: str, outputs: list[torch.Tensor], tensor: torch.Tensor, opts: Any) -> Work:
        flat, lengths = _moved(tensor), _lengths(outputs)
        _check_types(name, outputs, tensor)
        row, whole = self._outputs(outputs)
        if _memory(flat) == _memory(row):
            flat = flat.clone()
        return self._work(name, lambda: [self._comm.allgather(flat, lengths=lengths, out=row)], outputs, whole, opts)

    @staticmethod
    def _outputs(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        """Memory for what the outputs receive, one behind the other, and what brings it there."""
        found = None if any(output.is_complex() for output in outputs) else _row(outputs)
        if found is not None:
            return _moved(found), _nothing
        lengths = _lengths(outputs)
        row = _moved(outputs[0]).new_empty(sum(lengths))

        def deliver() -> None:
            for output, part in zip(outputs, row.split(lengths)):
                _back(output, part)

        return row, deliver

    def allgather_coalesced(self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """:meth:`allgather` of several tensors; ``output_lists`` has a list for each rank."""
        works = [self.allgather([[outputs[at] for outputs in output_lists]], [tensor], opts) for at, tensor in enumerate(inputs)]
        return self._all("all_gather", works)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Every rank's tensor on every rank, one behind the other in ``output``."""
        _check_types("all_gather_into_tensor", [output], tensor)
        flat, out = _moved(tensor), _moved(output)
        if _memory(flat) == _memory(out):
            flat = flat.clone()
        lengths = [flat.numel()] * self._comm.size
        return self._work(
            "all_gather_into_tensor",
            lambda: [self._comm.allgather(flat, lengths=lengths, out=out)],
            [output],
            lambda: _back(output, out),
            opts,
        )

    def all_gather_single_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """:meth:`all_gather_single` of each."""
        works = [self.all_gather_single(output, tensor, opts) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._all("all_gather_into_tensor", works)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Work:
        """This rank's tensor of the reduction of all ranks' lists; shapes may differ."""
        inputs = list(_one_list(input_lists))
        output = _one(outputs)
        found = None if any(tensor.is_complex() for tensor in inputs) else _row(inputs)
        whole = found if found is not None else torch.cat([_flat(tensor) for tensor in inputs])
        parts = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in inputs]
        return self._scattered("reduce_scatter", output, whole, parts, opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """This rank's part, of equal ones, of the reduction of all ranks' tensors."""
        return self._scattered("reduce_scatter_tensor", output, tensor, [_flat(output).numel()] * self._comm.size, opts)

    def _scattered(self, name: str, output: torch.Tensor, whole: torch.Tensor, lengths: list[int], opts: Any) -> Work:
        _check_types(name, [output], whole if not output.is_complex() else output)
        how = _Sum(whole, opts)
        # The output itself if the sum can be written there.
        mine = _flat(output)
        if mine.dtype == torch.bool:
            mine = mine.view(torch.uint8)
        if mine.dtype != how.flat.dtype or _memory(mine) == _memory(how.flat):
            mine = torch.empty_like(mine, dtype=how.flat.dtype)
        return self._work(
            name,
            lambda: [self._comm.reduce_scatter(how.flat, how.reduction, lengths, out=mine, prescale=how.prescale)],
            [output],
            lambda: how.back(output, mine),
            opts,
        )

    def reduce_scatter_single_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """:meth:`reduce_scatter_single` of each."""
        works = [self.reduce_scatter_single(output, tensor, opts) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._all("reduce_scatter_tensor", works)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _exchanged(self, name: str, row: torch.Tensor, given: list[int], out: torch.Tensor, taken: list[int], *more: Any) -> Work:
        if _memory(row) == _memory(out) and row.numel():
            row = row.clone()
        results, deliver, opts = more
        return self._work(name, lambda: [self._comm.alltoall(row, given, received_splits=taken, out=out)], results, deliver, opts)

    def gather(self, output_lists: Any, inputs: Any, opts: Any) -> Work:
        """Every rank's tensor on rank ``opts.rootRank``."""
        tensor, root, size = _one(inputs), opts.rootRank, self._comm.size
        flat = _moved(tensor)
        given = [flat.numel() if rank == root else 0 for rank in range(size)]
        if root != self._comm.rank:
            return self._exchanged("gather", flat, given, flat.new_empty(0), [0] * size, [], _nothing, opts)
        outputs = list(_one_list(output_lists))
        _check_types("gather", outputs, tensor)
        out, deliver = self._outputs(outputs)
        return self._exchanged("gather", flat, given, out, _lengths(outputs), outputs, deliver, opts)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """Every rank's tensor on rank ``opts.rootRank``, one behind the other in ``output``."""
        is_root = opts.rootRank == self._comm.rank
        return self.gather([list(output.chunk(self._comm.size))] if is_root else [], [tensor], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Work:
        """Rank ``opts.rootRank``'s tensor for each rank."""
        output, root, size = _one(outputs), opts.rootRank, self._comm.size
        out = _moved(output)
        taken = [out.numel() if rank == root else 0 for rank in range(size)]
        if root == self._comm.rank:
            inputs = list(_one_list(input_lists))
            _check_types("scatter", inputs, output)
            row, given = _joined(inputs), _lengths(inputs)
        else:
            row, given = out.new_empty(0), [0] * size
        return self._exchanged("scatter", row, given, out, taken, [output], lambda: _back(output, out), opts)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """A tensor for each rank, and one from each."""
        outputs = list(outputs)
        out, deliver = self._outputs(outputs)
        return self._exchanged("all_to_all", _joined(inputs), _lengths(inputs), out, _lengths(outputs), outputs, deliver, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        """So many rows for each rank, and from each: as many if nothing is said."""
        _check_types("all_to_all_single", [output], tensor)
        row, out = _moved(tensor), _moved(output)
        given, taken = self._rows(tensor, row, input_splits), self._rows(output, out, output_splits)
        return self._exchanged("all_to_all_single", row, given, out, taken, [output], lambda: _back(output, out), opts)

    alltoall_base = all_to_all_single

    def _rows(self, tensor: torch.Tensor, flat: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """The elements for each rank."""
        count, size = (tensor.size(0) if tensor.dim() else 1), self._comm.size
        if not splits:
            if count % size:
                raise ArgumentError(f"all_to_all_single of {count} rows between {size} ranks\n  hint: give split sizes, or as many rows for each")
            splits = [count // size] * size
        elif sum(splits) != count or len(splits) != size:
            raise ArgumentError(f"all_to_all_single of {count} rows in parts of {list(splits)} between {size} ranks\n  hint: give all rows, to every rank")
        width = flat.numel() // count if count else 0
        return [rows * width for rows in splits]

    def barrier(self, opts: Any = None) -> Work:
        """Done when every rank of the group has called it."""
        return self._work("barrier", lambda: [self._comm.barrier_async()], [], options=opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """:meth:`barrier` that returns when every rank has called it, or raises after ``timeout``."""
        self.barrier().wait(timeout or timedelta(0))

    # Between two ranks.

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank, which receives it."""
        flat = _moved(_one(tensors))
        return self._work("send", lambda: [self._comm.send(flat, to, tag)], [])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receives a tensor from a rank."""
        tensor = _one(tensors)
        flat = _moved(tensor)
        return self._work("recv", lambda: [self._comm.recv(flat, source, tag)], [tensor], lambda: _back(tensor, flat), source=source)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Not to be had: whose message it is, is agreed on before it travels."""
        raise UnsupportedError("recv from any rank\n  hint: name the rank: recv(tensor, src=RANK)")

    recvAnysource = recv_anysource  # noqa: N815

    def __repr__(self) -> str:
        return f"<ringpull.torch_distributed.ProcessGroup rank {self._comm.rank} of ranks {self._comm.ranks}>"


def _one_list(lists: Any) -> Sequence[torch.Tensor]:
    """The list of tensors of a call: PyTorch gives one for each device."""
    if len(lists) != 1:
        raise ArgumentError(f"{len(lists)} lists of tensors where one belongs\n  hint: give one list on each rank")
    return cast("Sequence[torch.Tensor]", lists[0])


def _check_types(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            raise ArgumentError(f"{name} with tensors of {tensor.dtype} and {like.dtype}\n  hint: give tensors of one dtype")


def _seconds(timeout: timedelta | None) -> float | None:
    """A timeout that takes the place of ``RINGPULL_TIMEOUT``, unless that is set."""
    return None if timeout is None or os.environ.get("RINGPULL_TIMEOUT") else timeout.total_seconds()


#: The communicator of all ranks, and how long the job waits for a live rank.
_job: Communicator | None = None
_job_limit = 0.0


def create(options: Any) -> ProcessGroup:
    """The process group that PyTorch asks for."""
    global _job, _job_limit
    ranks, seconds = list(options.global_ranks_in_group), options.timeout.total_seconds()
    try:
        if _job is None:
            _job_limit = float(os.environ.get("RINGPULL_TIMEOUT") or seconds)
        if not ranks or _job is None or len(ranks) == _job.size:
            comm = communicator(timeout=_seconds(options.timeout))
            _job = comm
        else:
            comm = _job.subset(ranks)
    except KVStoreError as error:
        raise _raised(error) from None
    if (comm.rank, comm.size) != (options.group_rank, options.group_size):
        raise ArgumentError(
            f"a process group of {options.group_size} ranks with this as rank {options.group_rank}, which is rank {comm.rank} of {comm.size} by MPI\n"
            "  hint: give init_process_group no rank and world_size, and start the program by mpirun"
        )
    return ProcessGroup(comm, seconds if _job_limit == 0 or seconds < _job_limit else None)


def _addresses() -> Iterator[str]:
    """The IPv4 addresses of this host's interfaces."""
    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
            except OSError:
                # It has none.
                continue
            yield socket.inet_ntoa(found[20:24])


#: The longest address of a store that goes through MPI.
_ADDRESS_BYTES = 1024
#: How long an address may take to answer.
_ANSWER_S = 2.0


def _answering(addresses: Sequence[str], port: int) -> str:
    """The first address at which the port answers."""
    for address in addresses:
        try:
            socket.create_connection((address, port), timeout=_ANSWER_S).close()
        except OSError:
            continue
        return address
    raise KVStoreError(
        f"the store of rank 0 cannot be reached at port {port} of {', '.join(addresses)}\n"
        "  hint: open the ports between the hosts, or set MASTER_ADDR and MASTER_PORT"
    )


def meet(timeout: timedelta | None = None) -> tuple[Any, int, int]:
    """A store on rank 0 that every rank can use, this rank, and how many there are."""
    timeout = timeout or _distributed.distributed_c10d.default_pg_timeout
    try:
        comm = communicator(timeout=_seconds(timeout))
        is_local = comm.local_size == comm.size
        text, store = b"", None
        if comm.rank == 0:
            store = _distributed.TCPStore("127.0.0.1", 0, comm.size, True, timeout, wait_for_workers=False)
            hosts = ["127.0.0.1"] if is_local else [address for address in _addresses() if not address.startswith("127.")]
            text = " ".join([str(store.port), *hosts]).encode()[:_ADDRESS_BYTES]
        shared = numpy.zeros(_ADDRESS_BYTES, numpy.uint8)
        shared[: len(text)] = numpy.frombuffer(text, numpy.uint8)
        port, *addresses = comm.broadcast(shared, 0, out=shared).wait().tobytes().rstrip(b"\0").decode().split()
        if store is None:
            host = _answering(addresses, int(port))
            store = _distributed.TCPStore(host, int(port), comm.size, False, timeout, wait_for_workers=False)
    except KVStoreError as error:
        raise _raised(error) from None
    return store, comm.rank, comm.size


register()
