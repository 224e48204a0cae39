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
from .kvstore import Handle, KVStore, create
from .place import waits_in
from .worker import after_stores

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
    with torch.no_grad():
        for index, named in enumerate(parameters):
            parameter = _unnamed(f"{prefix}.{index}", named)
            value = parameter.detach().contiguous()
            store.broadcast(f"{prefix}.{index}", value, value)
            parameter.copy_(value)


#: The last error that PyTorch was given, which raises its text.
_raised: list[BaseException] = []
uncaught.knows(lambda: _raised[-1] if _raised else None)

#: How long the end of a program waits for a thread that has stores' results to pass on: none can come any more.
_LAST_RESULT_S = 5.0


class _Waiter:
    """A thread that waits for operations in the order in which they were called, and passes on their results."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Handle, Callable[[], Any], Any, torch.futures.Future[Any]] | None] = queue.SimpleQueue()
        #: The last result of a backward pass: DistributedDataParallel waits in the pass for its results once it has all of them.
        self.last: torch.futures.Future[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="ringpull-torch", daemon=True)
        self._thread.start()
        after_stores(self._end)

    def _end(self) -> None:
        # Whoever waited for the last result goes on while this thread is still on its way out of PyTorch, where the end of the
        # interpreter would be the end of the process.
        self._queue.put(None)
        self._thread.join(_LAST_RESULT_S)

    def add(self, handle: Handle, result: Callable[[], Any], device: torch.device) -> torch.futures.Future[Any]:
        """A future of `result`, called when the operation on `device` is done; on a GPU in the order of the stream that is current now."""
        on_gpu = device.type == "cuda"
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if on_gpu else None)
        ordered: Any = torch.cuda.stream(torch.cuda.current_stream(device)) if on_gpu else contextlib.nullcontext()
        self._queue.put((handle, result, ordered, future))
        return future

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            handle, result, ordered, future = item
            try:
                handle.wait()
                with ordered:
                    future.set_result(result())
            except Exception as error:
                _raised[:] = [error]
                future.set_exception(error)


#: One for each hook.
_waiters: list[_Waiter] = []


def _waits(function: str) -> bool:
    """Whether a thread in that function of PyTorch's waits for a hook's results: the backward pass has computed everything."""
    return function == "backward" and any(waiter.last is not None and not waiter.last.done() for waiter in _waiters)


waits_in("torch", _waits)


def _opened(store: KVStore | str) -> KVStore:
    return create(store) if isinstance(store, str) else store


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
        # DistributedDataParallel wants a process group, which moves the first parameters only; the host is that of rank 0.
        where = "tcp://127.0.0.1:29500"
        torch.distributed.init_process_group("gloo", init_method=where, rank=store.rank, world_size=store.num_workers)
        model = DistributedDataParallel(model)
        model.register_comm_hook(None, ringpull.torch.ddp_hook(store))
    """
    opened = _opened(store)
    waiter = _Waiter()
    _waiters.append(waiter)
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
            waiter.last = future
        return future

    return hook


def _names_of(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, torch.Tensor]]:
    """What an optimizer of PyTorch 2.6 or later calls its parameters, if it was told."""
    for group in optimizer.param_groups:
        yield from zip(group.get("param_names", ()), group["params"])


class DistributedOptimizer:
    """An optimizer whose ``step`` first averages the gradients over the ranks of ``store``, a store or a kind; all else is the optimizer's own.

        optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "dist_sync_mpi")

    The store is its ``store``. Errors name parameters as ``named_parameters=model.named_parameters()`` does, or an optimizer that was
    made with them. Parameters begin as those of rank 0. A gradient leaves as soon as the backward pass has accumulated it. A
    parameter without a gradient on some rank counts as zero there.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, store: KVStore | str, prefix: str = "parameter", named_parameters: Iterable[tuple[str, torch.Tensor]] = ()) -> None:
        self.optimizer = optimizer
        self.store = _opened(store)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._keys = {parameter: f"{prefix}.{index}" for index, parameter in enumerate(self._parameters)}
        self._handles: dict[torch.Tensor, Handle | None] = {}
        for name, parameter in (*_names_of(optimizer), *named_parameters):
            if parameter in self._keys:
                _native.name_key(self._keys[parameter], name)
        broadcast_parameters(self.store, self._parameters, prefix)
        #: Set to False while gradients of several backward passes add up; the last pass before `step` needs it True.
        self.communicates = True
        for parameter in self._parameters:
            self._watch(parameter)

    # PyTorch's types know too little of what is called here.
    def _watch(self, parameter: Any) -> None:
        def ready(*_: Any) -> None:
            if self.communicates:
                self._send(parameter)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            parameter.register_post_accumulate_grad_hook(ready)
            return
        # Before PyTorch 2.1: the node that accumulates the gradient, which lives as long as somebody holds it.
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(ready)
        self._nodes = [*getattr(self, "_nodes", []), node]

    def _send(self, parameter: torch.Tensor) -> None:
        if parameter in self._handles:
            raise RuntimeError(
                "a second backward pass before step\n  hint: set communicates = False for all but the last backward pass of a step"
            )
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        key, (before, _) = self._keys[parameter], _divisors(parameter.grad.dtype, self.store)
        _divide(parameter.grad, before)
        self._handles[parameter] = self.store.pushpull(key, parameter.grad, wait=False, keep=False)

    def synchronize(self) -> None:
        """Waits until every gradient is the average over the ranks; ``step`` does so by itself. For clipping, say."""
        for parameter in self._parameters:
            if parameter not in self._handles:
                self._send(parameter)
        for parameter in self._parameters:
            handle = self._handles[parameter]
            if handle is not None:
                handle.wait()
                assert parameter.grad is not None
                _divide(parameter.grad, _divisors(parameter.grad.dtype, self.store)[1])
                self._handles[parameter] = None

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Averages the gradients, then takes the optimizer's step."""
        self.synchronize()
        self._handles.clear()
        return self.optimizer.step(closure) if closure is not None else self.optimizer.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)
