"""An operation of a process group under way.

- The results belong to the work, and to its future when that is done. Nothing else keeps them.
- The first thread that waits for the work writes the results to their tensors. Other threads that wait for it wait for this thread.
  An error is kept. Each wait for this work raises it, and no other call does.
- A future is made only if a caller asks for it. It is completed once, on a thread of its own.
- C++ may hold a work without its Python part, which does the waiting. So :class:`Begun` holds every work until
  somebody has waited for it.
"""

from __future__ import annotations

import collections
import importlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from .. import uncaught
from ..collectives import Operation, Receive
from ..errors import KVStoreError, StalledError
from ..place import waits_in
from . import threads
from .faults import raised, same
from .order import Order

if TYPE_CHECKING:
    from .group import Collectives

__all__ = ["Begun", "Work", "nothing"]

_c10d: Any = importlib.import_module("torch._C._distributed_c10d")


def nothing() -> None:
    """Does nothing: the results are in their tensors already."""


class Work(_c10d.Work):  # type: ignore[misc]
    """Operations under way, and the copies that follow them. :func:`torch.distributed.all_reduce` returns a work if ``async_op`` is given."""

    def __init__(
        self,
        group: Collectives,
        name: str,
        operations: Sequence[Operation[Any]],
        results: list[torch.Tensor],
        deliver: Callable[[], None] = nothing,
        limit: float | None = None,
    ) -> None:
        super().__init__()
        self._group, self._name, self._limit = group, name, limit
        #: The rank whose message was received.
        self._source = -1
        self._results = results
        self._order = Order(results)
        #: None when the work is settled: the results are in their tensors, or `_error` is the reason why they are not.
        self._operations: Sequence[Operation[Any]] | None = operations
        self._deliver = deliver
        self._error: Exception | None = None
        self._future: Any = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        """Waits for the results. Raises the error if the work has failed. Also raises after a timeout: the one given here, or else that of the
        call or of the group."""
        limit = timeout.total_seconds()
        self._settle(limit if limit > 0 else self._limit)
        if self._error is not None:
            raise same(self._error) from None
        self._order.follow()
        return True

    synchronize = wait

    def _settle(self, limit: float | None) -> None:
        """Returns when the work is settled. Raises only errors after which the work is still under way, so that another call can wait for it."""
        if self._operations is None:
            return
        end = None if limit is None else time.monotonic() + limit
        try:
            if not self._turn(-1 if limit is None else limit):
                raise TimeoutError
            try:
                self._settle_here(end)
            finally:
                self._lock.release()
        except TimeoutError:
            who = f"{self._name} of {self._group!r}"
            raise raised(
                StalledError(
                    f"{who} was not done within its timeout of {limit:g} s\n"
                    "  hint: find out what the other ranks are doing, "
                    "or give init_process_group, new_group or the call a longer timeout"
                )
            ) from None

    def _turn(self, limit: float) -> bool:
        """Waits for another thread that waits for this work."""
        return self._lock.acquire(timeout=limit)

    def _settle_here(self, end: float | None) -> None:
        if self._operations is None:
            return
        error: Exception | None = None
        try:
            for operation in self._operations:
                operation.wait(None if end is None else max(0.0, end - time.monotonic()))
                if isinstance(operation, Receive):
                    self._source = operation.source()
            with torch.no_grad(), self._order:
                self._deliver()
        except KVStoreError as fault:
            error = same(raised(fault))
        except TimeoutError:
            raise
        except Exception as fault:
            error = same(fault)
        self._error = error
        self._operations, self._deliver = None, nothing
        self._group.begun.discard(self)

    def is_completed(self) -> bool:
        """Returns True if :meth:`wait` would return or raise at once."""
        return all(operation.done() for operation in self._operations or ())

    def settle_if_done(self) -> bool:
        """Settles the work if it is done. Returns True if it is settled. Unlike a wait, this does not end a sequence of calls that runs without
        messages."""
        if self._operations is not None and self._lock.acquire(blocking=False):
            try:
                if all([operation._take() for operation in self._operations or ()]):
                    self._settle_here(None)
            finally:
                self._lock.release()
        return self.is_settled()

    def is_settled(self) -> bool:
        """Returns True if somebody has waited for it to the end."""
        return self._operations is None

    def forget(self) -> None:
        """Releases the results, for which nobody can ask any more."""
        self._results, self._future = [], None

    def is_success(self) -> bool:
        """Returns True if the work was done without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """The error that ended the work, if any."""
        if self.is_completed():
            self._settle(None)
            self._order.follow()
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Waits for the results, and returns the tensors that hold them."""
        self.wait()
        return self._results

    def source_rank(self) -> int:
        """The rank whose message was received."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the results, which DistributedDataParallel and functional collectives wait for."""
        with _making:
            if self._future is not None:
                return self._future
            given: Any = torch.futures.Future(devices=self._order.devices or None)
            # If Python set an exception on the future, C++ would treat it as a value. An exception that a callback raises is an error in C++.
            self._future = given.then(lambda done: done.value())
            _last[:] = [weakref.ref(given)]
        # A caller who asks for a future waits for it. So this counts as a wait now, and not only when a thread begins to wait.
        self.is_completed()
        threads.run(lambda: self._complete(given))
        return self._future

    def _complete(self, given: Any) -> None:
        try:
            self.wait()
        except Exception as error:
            # The traceback is dropped, because it would keep frames and their tensors.
            error = error.with_traceback(None)
            _raised[:] = [error]
            given.set_exception(error)
            return
        given.set_result(self._results)


#: The last error that PyTorch was given. PyTorch raises only the error's text.
_raised: list[BaseException] = []
uncaught.knows(lambda: _raised[-1] if _raised else None)

_making = threading.Lock()
#: The last future that a caller asked for, until it is done. DistributedDataParallel asks for all futures of a backward pass, and then waits
#: for them inside the pass.
_last: list[weakref.ref[Any]] = []


def _waits(function: str) -> bool:
    """Returns True if a thread in this function of PyTorch waits for results, because the backward pass has computed everything."""
    return function == "backward" and any(found is not None and not found.done() for found in [last() for last in _last])


waits_in("torch", _waits)
# In these functions of this package a thread waits, but not for an operation.
waits_in("ringpull", {threads.IDLE, Work._turn.__name__}.__contains__)


#: The maximum number of works for which nobody waits and whose results are held.
_UNWAITED = 64
#: The maximum number of further works that are held without their results.
_FORGOTTEN = 10_000
#: The number of held works that are examined when a new work comes. So for each new work two may be released.
_LOOKED_AT = 2


def _oldest(works: collections.OrderedDict[int, Any]) -> tuple[int, int, Any]:
    """Takes out the work that has been held longest. Returns the number of references to it in Python, its key and the work."""
    name, work = works.popitem(last=False)
    return sys.getrefcount(work), name, work


#: The number of references to a work that nobody else holds. It differs between versions of Python.
_HELD_HERE = _oldest(collections.OrderedDict({0: object()}))[0]


class Begun:
    """The works of a group that nobody has waited for."""

    def __init__(self) -> None:
        self._works: collections.OrderedDict[int, Work] = collections.OrderedDict()
        self._forgotten: collections.deque[Work] = collections.deque(maxlen=_FORGOTTEN)

    def add(self, work: Work) -> None:
        """Holds a work until it is settled."""
        self._works[id(work)] = work
        for _ in range(min(_LOOKED_AT, len(self._works) - _UNWAITED)):
            self._forget_oldest()

    def discard(self, work: Work) -> None:
        """Releases a work that is settled."""
        self._works.pop(id(work), None)

    def clear(self) -> None:
        """Releases all works."""
        self._works.clear()
        self._forgotten.clear()

    def _forget_oldest(self) -> None:
        """Settles the oldest work if it is done and nobody in Python holds it, and releases its results, because C++ does not ask for them
        later. Other works are examined again in their turn."""
        try:
            count, name, work = _oldest(self._works)
        except KeyError:
            # Another thread has taken the last work.
            return
        is_over = False
        try:
            is_over = count <= _HELD_HERE and work.settle_if_done()
        finally:
            if not is_over:
                self._works[name] = work
        if is_over:
            work.forget()
            self._forgotten.append(work)
        elif work.is_settled():
            # Another thread has waited for the work meanwhile.
            self.discard(work)
