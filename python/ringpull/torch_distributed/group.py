"""The collectives that PyTorch asks for, on a communicator.

- :class:`Collectives` has all collectives.
- ``backend`` has them for the devices that a group of PyTorch gives it.
- :class:`ProcessGroup` is a whole group, for PyTorch before 2.14: Python cannot derive from the ``Backend`` of these versions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from ..collectives import Communicator, Operation
from ..errors import ArgumentError, KVStoreError
from .faults import raised
from .reductions import BITWISE, Sum, op_of, refused
from .tensors import (
    apart,
    back,
    check_outputs,
    check_types,
    flat_of,
    joined,
    lengths_of,
    one_list_of,
    one_of,
    outputs_of,
    share_memory,
    whole_of,
)
from .work import Begun, Work, nothing

__all__ = ["Collectives", "ProcessGroup"]

_c10d: Any = importlib.import_module("torch._C._distributed_c10d")


def _limit(options: Any) -> float | None:
    """The timeout of a call in seconds, if it has a timeout."""
    timeout = getattr(options, "timeout", None)
    return timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None


class Collectives:
    """The collectives of a communicator, by PyTorch's names.

    A tensor that is contiguous, in host memory and of a type that we sum is used in place. Any other tensor is
    copied. A tensor on a GPU travels through pinned host memory: a call waits until the content is in this memory, and
    the result comes back in the order of the stream that was current at the call. An error is both a
    :class:`ringpull.KVStoreError` and a ``torch.distributed.DistBackendError``. It is raised at once, on every rank.
    """

    _comm: Communicator
    #: The number of seconds that an operation may take.
    _limit: float | None
    #: The works that nobody has waited for.
    begun: Begun
    _is_down = False
    #: The works between `_start_coalescing` and `_end_coalescing`.
    _together: list[Work] | None = None

    def _work(
        self,
        name: str,
        call: Callable[[], Sequence[Operation[Any]]],
        results: list[torch.Tensor],
        deliver: Callable[[], None] = nothing,
        options: Any = None,
    ) -> Work:
        check_outputs(name, results)
        if self._is_down:
            raise ArgumentError(f"{name} of {self!r} comes too late: the group was shut down\n  hint: call destroy_process_group last")
        try:
            operations = call()
        except KVStoreError as error:
            raise raised(error) from None
        work = Work(self, name, operations, results, deliver, _limit(options) or self._limit)
        self.begun.add(work)
        if self._together is not None:
            self._together.append(work)
        return work

    # Properties and states that PyTorch reads.

    def getBackendName(self) -> str:  # noqa: N802
        """The backend's name, ``ringpull``."""
        return "ringpull"

    #: `batch_isend_irecv` reads this. Our messages are sent at the same time without coalescing.
    supports_coalescing = False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._limit = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def shutdown(self) -> None:
        """Makes later calls errors. Operations under way go on. The process leaves its job when the process ends."""
        self._is_down = True
        self.begun.clear()

    #: A fault ends the operations of every rank by itself.
    abort = shutdown

    def _start_coalescing(self, device: Any = None) -> None:
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Work:
        together, self._together = self._together or [], None
        return self._all("coalesced operations", together)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def _all(self, name: str, works: Sequence[Work]) -> Work:
        """Makes one work of several."""

        def deliver() -> None:
            for work in works:
                work.wait()

        operations = [operation for work in works for operation in work._operations or ()]
        return self._work(name, lambda: operations, [result for work in works for result in work._results], deliver)

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """The reduction of all ranks' tensors, in place."""
        tensor = one_of(tensors)
        if tensor.layout == torch.sparse_coo:
            return self._sparse_allreduce(tensor, opts)
        return self._allreduce("all_reduce", tensor, opts, is_result=True)

    def _allreduce(self, name: str, tensor: torch.Tensor, opts: Any, is_result: bool) -> Work:
        op, _ = op_of(opts)
        if op in BITWISE and tensor.dtype != torch.bool or op == "BXOR":
            return self._bitwise(name, tensor, opts, is_result)
        how = Sum(tensor, opts)
        if is_result:
            flat, deliver = how.flat, lambda: how.back(tensor, how.flat)
        else:
            flat, deliver = torch.empty_like(how.flat), nothing
        return self._work(
            name,
            lambda: [self._comm.allreduce(how.flat, how.reduction, out=flat, prescale=how.prescale)],
            [tensor],
            deliver,
            opts,
        )

    def _bitwise(self, name: str, tensor: torch.Tensor, opts: Any, is_result: bool) -> Work:
        """Gathers every rank's elements on every rank, and combines them there in the order of the ranks."""
        op, _ = op_of(opts)
        if tensor.is_floating_point() or tensor.is_complex():
            raise refused(op, tensor.dtype, "SUM, AVG, PRODUCT, MIN and MAX")
        flat = flat_of(tensor)
        rows = flat.new_empty(self._comm.size, flat.numel())

        def deliver() -> None:
            combined = rows[0]
            for row in rows[1:]:
                combined = BITWISE[op](combined, row)
            if is_result:
                back(tensor, combined)

        return self._gathered(name, flat, rows.view(-1), [flat.numel()] * self._comm.size, [tensor], deliver, opts)

    def _sparse_allreduce(self, tensor: torch.Tensor, opts: Any) -> Work:
        """The sum of sparse tensors. It gathers every rank's indices and values on every rank."""
        op, _ = op_of(opts)
        if op not in ("SUM", "AVG"):
            raise refused(op, tensor.dtype, "SUM and AVG, as the tensor is sparse")
        own = tensor.detach().cpu().coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()

        called: list[Operation[Any]] = []

        def begin() -> list[Operation[Any]]:
            called.extend([self._comm.allgather(indices), self._comm.allgather(values)])
            return called

        def deliver() -> None:
            places, parts = (operation.wait() for operation in called)
            found = torch.sparse_coo_tensor(places.t(), parts, tensor.shape).coalesce()
            found = found.to(tensor.device)
            tensor.copy_(found / self._comm.size if op == "AVG" else found)

        return self._work("all_reduce", begin, [tensor], deliver, opts)

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """:meth:`allreduce` of each tensor."""
        return self._all("all_reduce", [self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors: Any, opts: Any) -> Work:
        """Does as :meth:`allreduce`, but only rank ``opts.rootRank`` gets the result. The tensors of other ranks do not change."""
        return self._allreduce("reduce", one_of(tensors), opts, is_result=opts.rootRank == self._comm.rank)

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        """The tensor of rank ``opts.rootRank`` on every rank."""
        tensor = one_of(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        flat = flat_of(tensor, is_read=root == self._comm.rank)
        deliver = nothing if root == self._comm.rank else lambda: back(tensor, flat)
        return self._work("broadcast", lambda: [self._comm.broadcast(flat, root, out=flat)], [tensor], deliver, opts)

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> Work:
        """Every rank's tensor, on every rank. Shapes may differ between ranks, if the outputs have these shapes."""
        outputs, tensor = list(one_list_of(output_lists)), one_of(inputs)
        check_types("all_gather", outputs, tensor)
        row, deliver = outputs_of(outputs)
        return self._gathered("all_gather", flat_of(tensor), row, lengths_of(outputs), outputs, deliver, opts)

    def _gathered(self, name: str, flat: torch.Tensor, out: torch.Tensor, lengths: list[int], *more: Any) -> Work:
        flat, (results, deliver, opts) = apart(flat, out), more
        return self._work(name, lambda: [self._comm.allgather(flat, lengths=lengths, out=out)], results, deliver, opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """:meth:`allgather` of several tensors; ``output_lists`` has a list for each rank."""
        works = [
            self.allgather([[outputs[at] for outputs in output_lists]], [tensor], opts)
            for at, tensor in enumerate(inputs)
        ]
        return self._all("all_gather", works)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Every rank's tensor, on every rank, concatenated in ``output``."""
        name = "all_gather_into_tensor"
        check_types(name, [output], tensor)
        flat, out = flat_of(tensor), flat_of(output, is_read=False)
        lengths = [flat.numel()] * self._comm.size
        return self._gathered(name, flat, out, lengths, [output], lambda: back(output, out), opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """:meth:`all_gather_single` of each tensor."""
        works = [self.all_gather_single(output, tensor, opts) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._all("all_gather_into_tensor", works)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> Work:
        """The reduction of the tensors that all ranks' lists have for this rank. The shapes in a list may differ."""
        inputs, output = list(one_list_of(input_lists)), one_of(outputs)
        check_types("reduce_scatter", inputs, output)
        return self._scattered("reduce_scatter", output, whole_of(inputs), [tensor.numel() for tensor in inputs], opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """This rank's part of the reduction of all ranks' tensors. All parts are equally long."""
        return self._scattered("reduce_scatter_tensor", output, tensor, [output.numel()] * self._comm.size, opts)

    def _scattered(self, name: str, output: torch.Tensor, whole: torch.Tensor, counts: list[int], opts: Any) -> Work:
        check_types(name, [output], whole)
        how = Sum(whole, opts)
        # This is the output's own memory if the sum can be written there.
        mine = flat_of(output, is_read=False)
        if mine.dtype != how.flat.dtype or share_memory(mine, how.flat):
            mine = torch.empty_like(mine, dtype=how.flat.dtype)
        return self._work(
            name,
            lambda: [self._comm.reduce_scatter(how.flat, how.reduction, counts, out=mine, prescale=how.prescale)],
            [output],
            lambda: how.back(output, mine),
            opts,
        )

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """:meth:`reduce_scatter_single` of each tensor."""
        works = [
            self.reduce_scatter_single(output, tensor, opts) for output, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._all("reduce_scatter_tensor", works)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _exchanged(
        self, name: str, row: torch.Tensor, given: list[int], out: torch.Tensor, taken: list[int], *more: Any
    ) -> Work:
        row, (results, deliver, opts) = apart(row, out), more
        return self._work(
            name, lambda: [self._comm.alltoall(row, given, received_splits=taken, out=out)], results, deliver, opts
        )

    def gather(self, output_lists: Any, inputs: Any, opts: Any) -> Work:
        """Every rank's tensor, on rank ``opts.rootRank``."""
        tensor, root, size = one_of(inputs), opts.rootRank, self._comm.size
        flat = flat_of(tensor)
        given = [flat.numel() if rank == root else 0 for rank in range(size)]
        if root != self._comm.rank:
            return self._exchanged("gather", flat, given, flat.new_empty(0), [0] * size, [], nothing, opts)
        outputs = list(one_list_of(output_lists))
        check_types("gather", outputs, tensor)
        out, deliver = outputs_of(outputs)
        return self._exchanged("gather", flat, given, out, lengths_of(outputs), outputs, deliver, opts)

    def gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """Every rank's tensor, on rank ``opts.rootRank``, concatenated in ``output``."""
        is_root = opts.rootRank == self._comm.rank
        return self.gather([list(output.chunk(self._comm.size))] if is_root else [], [tensor], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, input_lists: Any, opts: Any) -> Work:
        """The tensor that rank ``opts.rootRank`` has for this rank."""
        output, root, size = one_of(outputs), opts.rootRank, self._comm.size
        out = flat_of(output, is_read=False)
        taken = [out.numel() if rank == root else 0 for rank in range(size)]
        if root == self._comm.rank:
            inputs = list(one_list_of(input_lists))
            check_types("scatter", inputs, output)
            row, given = joined(inputs), lengths_of(inputs)
        else:
            row, given = out.new_empty(0), [0] * size
        return self._exchanged("scatter", row, given, out, taken, [output], lambda: back(output, out), opts)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Sends a tensor to each rank, and receives a tensor from each."""
        outputs, inputs = list(outputs), list(inputs)
        check_types("all_to_all", [*outputs, *inputs], outputs[0])
        (out, deliver), row = outputs_of(outputs), joined(inputs)
        given, taken = lengths_of(inputs), lengths_of(outputs)
        return self._exchanged("all_to_all", row, given, out, taken, outputs, deliver, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        """Sends ``input_splits[r]`` rows to each rank r, and receives ``output_splits[r]`` rows from it. Without splits all numbers of rows are
        equal."""
        check_types("all_to_all_single", [output], tensor)
        row, out = flat_of(tensor), flat_of(output, is_read=False)
        given, taken = self._rows(tensor, row, input_splits), self._rows(output, out, output_splits)
        return self._exchanged("all_to_all_single", row, given, out, taken, [output], lambda: back(output, out), opts)

    alltoall_base = all_to_all_single

    def _rows(self, tensor: torch.Tensor, flat: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """The number of elements for each rank."""
        count, size = (tensor.size(0) if tensor.dim() else 1), self._comm.size
        if not splits:
            if count % size:
                raise ArgumentError(
                    f"all_to_all_single of {count} rows: they cannot be divided equally over {size} ranks\n"
                    "  hint: give split sizes, or the same number of rows for each rank"
                )
            splits = [count // size] * size
        elif sum(splits) != count or len(splits) != size:
            raise ArgumentError(
                f"all_to_all_single of {count} rows: split sizes {list(splits)} do not fit {size} ranks\n"
                f"  hint: give a number of rows for each rank, {count} rows together"
            )
        width = flat.numel() // count if count else 0
        return [rows * width for rows in splits]

    def barrier(self, opts: Any = None) -> Work:
        """A barrier. The work is done when every rank of the group has called it."""
        return self._work("barrier", lambda: [self._comm.barrier_async()], [], options=opts)

    # Between two ranks.

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank, which has to receive it."""
        flat = flat_of(one_of(tensors))
        return self._work("send", lambda: [self._comm.send(flat, to, tag)], [])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receives a tensor from a rank."""
        return self._received(tensors, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives a tensor from any rank. The work's :meth:`~Work.source_rank` is the rank that sent it."""
        return self._received(tensors, None, tag)

    def _received(self, tensors: Any, source: int | None, tag: int) -> Work:
        tensor = one_of(tensors)
        flat = flat_of(tensor, is_read=False)
        return self._work("recv", lambda: [self._comm.recv(flat, source, tag)], [tensor], lambda: back(tensor, flat))

    recvAnysource = recv_anysource  # noqa: N815

    def __repr__(self) -> str:
        name = f"ringpull.torch_distributed.{type(self).__name__}"
        return f"<{name} rank {self._comm.rank} of ranks {self._comm.ranks}>"


class ProcessGroup(Collectives, _c10d.ProcessGroup):  # type: ignore[misc]
    """A whole process group on a communicator. Made by ``init_process_group`` and ``new_group`` if Python cannot derive from PyTorch's
    ``Backend``."""

    def __init__(self, comm: Communicator, limit: float | None) -> None:
        _c10d.ProcessGroup.__init__(self, comm.rank, comm.size)
        self._comm, self._limit, self.begun = comm, limit, Begun()

    #: PyTorch keeps a group's name and description in the group's backends. Such a group has no backends, so they are here.
    _name, _desc = "", "undefined"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """PyTorch's name of the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """PyTorch's name of the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets the purpose of the group."""
        self._desc = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """The purpose of the group."""
        return self._desc

    supports_splitting = False

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self
