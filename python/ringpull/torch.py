"""PyTorch on our stores: a communication hook for DistributedDataParallel, and an optimizer for plain modules.

Gradients are averaged over the workers, as PyTorch's own are; the store sums, and the division is here.

``float32`` and ``float64`` are divided after the sum. A sum of halves may be too large for its type where
their average is not: two ``float16`` of 40000 would be infinite. So ``float16`` and ``bfloat16``, and
``float32`` that travels compressed to ``fp16``, are divided before the sum, as PyTorch's own hooks do, but by
a power of two, the next that is not less than the number of workers N: that is exact but for subnormal
results, which it rounds to a multiple of the smallest, 2**-24 for ``float16``. Where N is no power of two
what is missing is made up after the sum. So an average of ``float16`` by two workers is off by no more than
the rounding of its sum and 2**-24; by N, by the roundings of the sum and, where values are smaller than N *
2**-13, by N * 2**-24.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from . import _native, uncaught
from .backward import CombiningOptimizer
from .errors import ArgumentError
from .kvstore import Handle, KVStore, create
from .place import waits_in
from .worker import after_stores, warn_of_separate_models

__all__ = ["DistributedOptimizer", "broadcast_parameters", "ddp_hook"]


#: Parameters, or pairs of a name and a parameter as ``Module.named_parameters()`` gives them.
_Parameters = Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def _unnamed(key: str, parameter: Any) -> torch.Tensor:
    """The parameter, whose name, if it has one, stands in messages about ``key``."""
    if isinstance(parameter, torch.Tensor):
        return parameter
    name, parameter = parameter
    _native.name_key(key, name)
    return cast("torch.Tensor", parameter)


def broadcast_parameters(store: KVStore, parameters: _Parameters, prefix: str = "parameter") -> None:
    """Makes every rank's parameters, in their order, those of rank 0. Waits. Errors name those of ``named_parameters()``."""
    for index, named in enumerate(parameters):
        _broadcast(store, f"{prefix}.{index}", _unnamed(f"{prefix}.{index}", named))


def _broadcast(store: KVStore, key: str, parameter: torch.Tensor) -> None:
    with torch.no_grad():
        value = parameter.detach().contiguous()
        store.broadcast(key, value, value)
        parameter.copy_(value)


#: The last error that PyTorch was given, which raises its text.
_raised: list[BaseException] = []
uncaught.knows(lambda: _raised[-1] if _raised else None)


def give_up(future: torch.futures.Future[Any], error: Exception) -> None:
    """Gives a future what kept its result from coming, without the frames that it has passed, and their
    tensors."""
    error = error.with_traceback(None)
    _raised[:] = [error]
    future.set_exception(error)


#: How long the end of a program waits for a thread that has stores' results to pass on: none can come any
#: more.
_LAST_RESULT_S = 5.0


class _Waiter:
    """A thread that waits for operations in the order in which they were called, and passes on their results."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Handle, Callable[[], Any], Any, torch.futures.Future[Any]] | None] = queue.SimpleQueue()
        #: Since when the backward pass has only waited for the last result, by the timeline.
        self._since: int | None = None
        #: The last result of a backward pass: DistributedDataParallel waits in the pass for its results once
        #: it has all of them.
        self.last: torch.futures.Future[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="ringpull-torch", daemon=True)
        self._thread.start()
        after_stores(self._end)

    def _end(self) -> None:
        # Whoever waited for the last result goes on while this thread is still on its way out of PyTorch,
        # where the end of the interpreter would be the end of the process.
        self._queue.put(None)
        self._thread.join(_LAST_RESULT_S)

    def add(self, handle: Handle, result: Callable[[], Any], device: torch.device) -> torch.futures.Future[Any]:
        """A future of `result`, called when the operation on `device` is done; on a GPU in the order of the stream that is current now."""
        on_gpu = device.type == "cuda"
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if on_gpu else None)
        ordered: Any = torch.cuda.stream(torch.cuda.current_stream(device)) if on_gpu else contextlib.nullcontext()
        self._queue.put((handle, result, ordered, future))
        return future

    def is_last(self, future: torch.futures.Future[Any]) -> None:
        """The backward pass has given its last bucket."""
        self._since = _native.timeline_ns()
        self.last = future

    def is_pending(self) -> bool:
        """Whether the last result of a backward pass is not there."""
        return self.last is not None and not self.last.done()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            handle, result, ordered, future = item
            try:
                handle.wait()
                since = self._since if future is self.last else None
                with ordered:
                    future.set_result(result())
                if since is not None:
                    _native.record_wait(since)
            except Exception as error:
                give_up(future, error)


#: Whether the last result of a backward pass is not there: for each hook, and for process groups.
pending: list[Callable[[], bool]] = []


def _waits(function: str) -> bool:
    """Whether a thread in that function of PyTorch's waits for results: the backward pass has computed
    everything."""
    return function == "backward" and any(is_pending() for is_pending in pending)


waits_in("torch", _waits)


def _opened(store: KVStore | str) -> KVStore:
    opened = create(store) if isinstance(store, str) else store
    if opened.type in ("local", "device"):
        warn_of_separate_models(opened.type)
    return opened


_HALVES = (torch.float16, torch.bfloat16)


def _divisors(dtype: torch.dtype, store: KVStore) -> tuple[float, float]:
    """What values of all workers are divided by before they are summed, and what their sum is."""
    count = store.num_workers
    if dtype not in _HALVES and (dtype != torch.float32 or store._codec != "fp16"):
        return 1.0, float(count)
    power = 1 << (count - 1).bit_length()
    return float(power), count / power


def _divide(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """The values, in place. Nothing is done where that would change none."""
    return values if divisor == 1.0 else values.div_(divisor)


def ddp_hook(store: KVStore | str) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A hook that averages DistributedDataParallel's buckets over the ranks of ``store``, a store or a kind, while the backward pass goes on.

        store = ringpull.create("dist_sync_mpi")
        # DistributedDataParallel wants a process group, which moves the first parameters only; the host is
        # that of rank 0.
        where = "tcp://127.0.0.1:29500"
        torch.distributed.init_process_group("gloo", init_method=where, rank=store.rank, world_size=store.num_workers)
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, ringpull.torch.ddp_hook(store))

    Each bucket is a key of the store.
    """
    opened = _opened(store)
    waiter = _Waiter()
    pending.append(waiter.is_pending)
    known: set[str] = set()

    # DistributedDataParallel compares annotations, if there are any, with its own classes.
    def hook(_state, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer()
        # DistributedDataParallel divides its buckets anew after the first step.
        key = f"bucket.{bucket.index()}.{buffer.numel()}"
        if key not in known:
            opened.init(key, torch.zeros_like(buffer))
            known.add(key)
        before, after = _divisors(buffer.dtype, opened)
        _divide(buffer, before)
        handle = opened.pushpull(key, buffer, priority=-bucket.index(), wait=False, keep=False)
        future = waiter.add(handle, lambda: _divide(buffer, after), buffer.device)
        if bucket.is_last():
            waiter.is_last(future)
        return future

    return hook


def _names_of(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, torch.Tensor]]:
    """What an optimizer of PyTorch 2.6 or later calls its parameters, if it was told."""
    for group in optimizer.param_groups:
        yield from zip(group.get("param_names", ()), group["params"])


class DistributedOptimizer(CombiningOptimizer):
    """An optimizer whose gradients are averaged over the ranks of ``store``, a store or a kind; all else is the optimizer's own.

        optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "dist_sync_mpi")

    It is a ``torch.optim.Optimizer``, so schedulers and scalers take it. The store is its ``store``. Errors name parameters as
    ``named_parameters=model.named_parameters()`` does, or an optimizer that was made with them. Trained parameters begin as those of
    rank 0.

    A gradient leaves as soon as the backward pass has accumulated it, and ``backward()`` returns when every gradient is the average: to
    clip or to log it needs nothing else. A parameter without a gradient on some rank counts as zero there. With
    ``backward_passes_per_step=K`` the gradients of K passes add up before they travel, and inside :meth:`no_sync` until it is left.
    Without these, the gradients of each pass travel, and all ranks must make the same number of passes in a step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        store: KVStore | str,
        prefix: str = "parameter",
        named_parameters: Iterable[tuple[str, torch.Tensor]] = (),
        backward_passes_per_step: int = 1,
    ) -> None:
        self.store = _opened(store)
        self._prefix = prefix
        self._names = {parameter: name for name, parameter in (*_names_of(optimizer), *named_parameters)}
        self._keys: dict[Any, str] = {}
        #: Keys that the store has.
        self._known: set[str] = set()
        super().__init__(optimizer, backward_passes_per_step)

    def _begin(self, parameters: list[Any]) -> None:
        for parameter in parameters:
            key = self._keys[parameter] = f"{self._prefix}.{len(self._keys)}"
            if parameter in self._names:
                _native.name_key(key, self._names[parameter])
            if parameter.requires_grad:
                _broadcast(self.store, key, parameter)
                self._known.add(key)

    def _send(self, parameter: Any, again: bool) -> Handle:
        # Ranks that make different numbers of passes in a step must not add gradients of different steps.
        key = self._keys[parameter] + (".again" if again else "")
        if key not in self._known:
            if parameter in self._names:
                _native.name_key(key, self._names[parameter])
            self.store.init(key, torch.zeros_like(parameter, memory_format=torch.contiguous_format))
            self._known.add(key)
        if parameter.grad.is_sparse:
            name = self._names.get(parameter, self._keys[parameter])
            raise ArgumentError(f"the gradient of {name} is sparse, and this optimizer sends dense ones\n  hint: make the embedding without sparse=True, or use ringpull.horovod.torch")
        if not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        _divide(parameter.grad, _divisors(parameter.grad.dtype, self.store)[0])
        return self.store.pushpull(key, parameter.grad, wait=False, keep=False)

    def _finish(self, parameter: Any, handle: Handle) -> None:
        handle.wait()
        _divide(parameter.grad, _divisors(parameter.grad.dtype, self.store)[1])
