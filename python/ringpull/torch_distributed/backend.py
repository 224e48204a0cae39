"""Collectives for the devices that a process group of PyTorch gives us. Other devices of the group may have other backends.

The group is PyTorch's own. So its dispatcher, profiler, flight recorder and debug level see each call. If a backend in Python returns a
work, C++ gives callers in Python a stand-in for it, which can only wait and has a future. :func:`answer` gives callers the work itself.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from ..collectives import Communicator
from ..errors import StalledError
from .faults import raised
from .group import Collectives
from .work import Begun, Work

__all__ = ["Backend", "answer", "is_derived", "is_ours"]

_c10d: Any = importlib.import_module("torch._C._distributed_c10d")
_distributed: Any = torch.distributed


#: PyTorch 1.13 has no such class.
_Base: Any = getattr(_c10d, "Backend", object)


@functools.cache
def is_derived() -> bool:
    """Returns True if Python can derive from PyTorch's ``Backend``: since 2.14."""
    try:
        type("Probe", (_Base,), {})(0, 1)
    except TypeError:
        return False
    return True


class _Call(threading.local):
    """This thread's call that returns our work, and the work that the call has begun."""

    is_answered = False
    work: Work | None = None


_call = _Call()
#: Calls that only some ranks of a group make.
_OF_PAIRS = ("send", "recv", "coalesced operations")


class Backend(Collectives, _Base):  # type: ignore[misc]
    """The collectives of a communicator for the devices that a group gives it. Made by ``init_process_group``,
    ``new_group`` and ``split_group``."""

    def __init__(self, comm: Communicator, limit: float | None, store: Any, options: Any, split: Callable[..., Any]) -> None:
        _Base.__init__(self, comm.rank, comm.size)
        self._comm, self._limit, self.begun = comm, limit, Begun()
        self._store, self.options, self._split = store, options, split
        #: The number of calls that every rank makes, and the number of monitored barriers among them.
        self._calls = self._monitored = 0

    #: It replaces PyTorch's property, which would look for the value in C++ again.
    options: Any = None
    supports_splitting = True

    def _work(self, name: str, *arguments: Any, **keywords: Any) -> Work:
        work = super()._work(name, *arguments, **keywords)
        self._calls += name not in _OF_PAIRS
        if _call.is_answered:
            _call.work = work
        return work

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: each rank begins with 0."""

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> Backend:
        """The backend of some of this backend's ranks, in the given order. Other ranks get a backend that nobody uses, because PyTorch does
        not accept None."""
        ranks = list(ranks)
        if self._comm.rank not in ranks:
            return Backend(self._comm, self._limit, store, options, self._split)
        found: Backend = self._split(store, [self._comm.ranks[rank] for rank in ranks], options)
        return found

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing: only the ranks of a group take part in making it."""

    def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> None:
        """Returns when every rank has called it. If a rank has not called it within the timeout, counted from rank 0's call, it raises on
        each rank. The error on rank 0 names one missing rank, or all. A rank that hears nothing from rank 0 raises after twice the timeout."""
        limit: timedelta = options.timeout
        end = time.monotonic() + limit.total_seconds()
        self._monitored += 1
        name = f"monitored_barrier/{self._monitored}"
        who = f"monitored_barrier of {self!r}"
        if self._comm.rank != 0:
            self._store.set(f"{name}/{self._comm.rank}", "")
            try:
                # Rank 0 may need its whole timeout to find the missing ranks.
                self._store.wait([name], 2 * limit)
                error = self._store.get(name).decode()
            except _distributed.DistStoreError:
                error = f"rank 0 has not ended it within {2 * limit.total_seconds():g} s"
            if error:
                words = f"Rank {self._comm.rank} successfully reached monitoredBarrier, but received errors"
                raise raised(StalledError(f"{who}: {words} while waiting for send/recv from rank 0: {error}"))
            return
        missing: list[int] = []
        for rank in range(1, self._comm.size):
            try:
                left = timedelta(seconds=end - time.monotonic())
                self._store.wait([f"{name}/{rank}"], max(left, timedelta(milliseconds=1)))
            except _distributed.DistStoreError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        names = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        error = f"{names} failed to pass monitoredBarrier in {limit.total_seconds() * 1000:.0f} ms" if missing else ""
        self._store.set(name, error)
        if missing:
            raise raised(StalledError(f"{who}: {error}\n  hint: find out what the missing ranks are doing, or give a longer timeout"))


def is_ours(group: Any) -> bool:
    """Returns True if a process group is ours, or has a backend of ours."""
    if isinstance(group, Collectives):
        return True
    if not is_derived() or not isinstance(group, _c10d.ProcessGroup):
        return False
    found = [group._get_backend(device) for device in group._device_types]
    # At the debug level DETAIL there is a wrapper around the backend.
    return any(isinstance(getattr(backend, "wrapped_pg", backend), Backend) for backend in found)


def _begins_work(name: str, method: Any) -> bool:
    return getattr(method, "__annotations__", {}).get("return") == "Work" and hasattr(_c10d.ProcessGroup, name)


def _answering(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def answers(*arguments: Any, **keywords: Any) -> Any:
        before, _call.is_answered = _call.is_answered, True
        try:
            given = call(*arguments, **keywords)
            return given if _call.work is None else _call.work
        finally:
            _call.is_answered, _call.work = before, None

    return answers


@functools.cache
def answer() -> None:
    """Makes calls of process groups return our work itself from now on, if our backend has begun it."""
    for name in [name for name, method in vars(Collectives).items() if _begins_work(name, method)]:
        setattr(_c10d.ProcessGroup, name, _answering(getattr(_c10d.ProcessGroup, name)))
    split = _c10d.ProcessGroup.split_group

    @functools.wraps(split)
    def split_group(group: Any, ranks: Sequence[int], *arguments: Any, **keywords: Any) -> Any:
        found = split(group, ranks, *arguments, **keywords)
        return found if group.rank() in ranks or not is_ours(group) else None

    _c10d.ProcessGroup.split_group = split_group
