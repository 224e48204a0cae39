"""An operation of a process group under way.

- Its results belong to the work, and to its future once that is done. Nothing else keeps them.
- The first thread that waits for it brings the results where they belong; others that wait stand behind it.
  An error is kept, and raised by each wait for this work, and by nothing else.
- A future, which only who asks for one gets, is completed once, on a thread of its own.
- C++ may hold work without its Python half, which is what waits. So :class:`Begun` holds every work until
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
    """Brings nothing anywhere: the results are where they belong."""


class Work(_c10d.Work):  # type: ignore[misc]
    """Operations under way, and the copies that follow them. :func:`torch.distributed.all_reduce` returns it
    with ``async_op``."""

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
        #: None when it is settled: the results are where they belong, or `_error` says why not.
        self._operations: Sequence[Operation[Any]] | None = operations
        self._deliver = deliver
        self._error: Exception | None = None
        self._future: Any = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: B008
        """Waits for the results. Raises what kept them from coming, also a timeout: this one, or else the
        call's or the group's."""
        limit = timeout.total_seconds()
        self._settle(limit if limit > 0 else self._limit)
        if self._error is not None:
            raise same(self._error) from None
        self._order.follow()
        return True

    synchronize = wait

    def _settle(self, limit: float | None) -> None:
        """Returns when it is settled. Raises only what leaves it under way, for another call to wait for."""
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
                    "  hint: find out what the other ranks do meanwhile, "
                    "or give init_process_group, new_group or the call a longer timeout"
                )
            ) from None

    def _turn(self, limit: float) -> bool:
        """Waits for another thread that waits for the same."""
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
        """Settles it if it is done; True if it is settled. Does not count as a wait, which would end a
        sequence that goes on without messages."""
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
        """Lets go of the results, which nobody can ask for."""
        self._results, self._future = [], None

    def is_success(self) -> bool:
        """Returns True if it was done without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """The error that ended it, if any."""
        if self.is_completed():
            self._settle(None)
            self._order.follow()
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
        with _making:
            if self._future is not None:
                return self._future
            given: Any = torch.futures.Future(devices=self._order.devices or None)
            # An exception that Python sets is a value to C++; what a callback raises is an error there.
            self._future = given.then(lambda done: done.value())
            _last[:] = [weakref.ref(given)]
        # Whoever asks for a future waits for it. That the ranks know now, and not when a thread comes to it.
        self.is_completed()
        threads.run(lambda: self._complete(given))
        return self._future

    def _complete(self, given: Any) -> None:
        try:
            self.wait()
        except Exception as error:
            # Without the frames that it has passed, and their tensors.
            error = error.with_traceback(None)
            _raised[:] = [error]
            given.set_exception(error)
            return
        given.set_result(self._results)


#: The last error that PyTorch was given, which raises its text.
_raised: list[BaseException] = []
uncaught.knows(lambda: _raised[-1] if _raised else None)

_making = threading.Lock()
#: The last future that was asked for, until it is done: once DistributedDataParallel has asked for all of a
#: backward pass, it waits there for them.
_last: list[weakref.ref[Any]] = []


def _waits(function: str) -> bool:
    """Whether a thread in that function of PyTorch's waits for results: the backward pass has computed everything."""
    return function == "backward" and any(found is not None and not found.done() for found in [last() for last in _last])


waits_in("torch", _waits)
#: Where a thread waits in this package, but not in an operation.
waits_in("ringpull", {threads.IDLE, Work._turn.__name__}.__contains__)


#: As many works that nobody waits for have their results held.
_UNWAITED = 64
#: As many more are held without results.
_FORGOTTEN = 10_000
#: As many of those held are looked at when another one comes. Two may leave for each that comes.
_LOOKED_AT = 2


def _oldest(works: collections.OrderedDict[int, Any]) -> tuple[int, int, Any]:
    """Takes out what is held longest: the number of references to it in Python, its name and itself."""
    name, work = works.popitem(last=False)
    return sys.getrefcount(work), name, work


#: The references to a work that nobody else has, which differ from one Python to another.
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
        """Lets go of a work that is settled."""
        self._works.pop(id(work), None)

    def clear(self) -> None:
        """Lets go of all."""
        self._works.clear()
        self._forgotten.clear()

    def _forget_oldest(self) -> None:
        """Settles the oldest work if it is done and nobody in Python has it, and lets go of its results: C++
        asks for none later. Other works come to their turn again."""
        try:
            count, name, work = _oldest(self._works)
        except KeyError:
            # Another thread has taken the last.
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
            # Another thread has waited for it meanwhile.
            self.discard(work)
