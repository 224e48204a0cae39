"""The base of every store: one worker's part in a job, which it leaves when the program ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from . import _native, uncaught
from .errors import ArgumentError

__all__ = ["Worker", "leave_at_exit", "warn_of_separate_models"]


class Worker:
    """One worker's part in the job. The base class of every store."""

    _native: _native.Store
    #: The name of the compression with which ``float32`` gradients travel.
    _codec = "none"

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self._native.rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._native.num_workers

    @property
    def local_rank(self) -> int:
        """This worker's number among the workers of its host, from its launcher. 0 if no launcher gives it."""
        return self._native.local_rank

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns True if the store has the capability. The only known capability is ``"optimizer"``, and every kind has it."""
        if capability.lower() == "optimizer":
            return True
        raise ValueError(f"Unknown capability: {capability}")

    def stats(self) -> dict[str, int]:
        """Counts of the store's work: ``pushes``, ``pulls``, ``sent_bytes``, ``received_bytes``,
        ``control_messages``."""
        return self._native.stats()

    def set_shares(self, work_load_list: Sequence[float]) -> None:
        """Sets each worker's share of a batch, for example its number of rows. Give the same list on every worker.

        From now on floating-point values that this worker pushes are multiplied by its share divided by the mean share. So if each worker
        pushes the mean gradient of its part of a batch (see :func:`ringpull.split`), sums are the same as with equal parts, and averages are
        those of the whole batch. Integers are not changed. Gradients that are sums over examples need no shares. Not for stores on devices.
        """
        self._native.set_shares([float(weight) for weight in work_load_list])

    def report_failure(self, why: str) -> None:
        """Reports to the other workers the reason why this worker is about to end, such as data that cannot be read, or a loss that is NaN.

        After this worker has ended, workers that wait for it raise an error with the first line of ``why``. If a later call of a
        store succeeds, the report is withdrawn. An exception that ends the program, or leaves a ``with`` of the store, is reported
        without this call. Does not wait. Not collective. Does nothing after a fault, or in a job of one worker.
        """
        self._native.report_failure(why)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Does ``init`` with the value, then ``pull`` into the outputs: these become rank 0's value."""
        self.init(key, value)
        self.pull(key, out, priority)

    def init(self, key: Any, value: Any) -> None:
        """Gives keys their first values."""
        raise NotImplementedError

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies keys' values into outputs."""
        raise NotImplementedError

    def _compress(self, params: Mapping[str, Any] | str) -> None:
        if isinstance(params, str):
            self._native.set_gradient_compression(params)
            self._codec = params.partition(":")[0]
        elif isinstance(params, Mapping):
            self._native.set_gradient_compression([(str(name), str(value)) for name, value in params.items()])
            self._codec = str(params.get("type"))
        else:
            raise ArgumentError(
                f"gradient compression cannot be set by a {type(params).__name__}\n"
                "  hint: give {'type': '2bit', 'threshold': 0.5} or '2bit:0.5'; the types are fp16, bf16, 2bit, 1bit, topk and none"
            )


class Leaving(Protocol):
    """An object that must finish before the program ends."""

    def finish(self) -> None:
        """Waits for the work that must be done before the program ends."""

    def report_failure(self, why: str) -> None:
        """Tells the other workers the reason why this worker ends."""

    def close(self) -> None:
        """Leaves the job."""


def in_words(raised: BaseException) -> str:
    """The text by which an exception is reported to other workers."""
    known = uncaught.ours(raised)
    return str(known) if known is not None else f"{type(raised).__name__}: {raised}"


#: The open stores, each with the process that opened it. A forked child does not touch the stores of its parent.
_open: weakref.WeakKeyDictionary[Leaving, int] = weakref.WeakKeyDictionary()


def leave_at_exit(store: Leaving) -> None:
    """Makes a store leave its job when the program ends, if it is still open."""
    _open[store] = os.getpid()


def has_left(store: Leaving) -> None:
    """Records that the owner of a store has closed it."""
    _open.pop(store, None)


def leave(store: Leaving, raised: BaseException | None = None) -> None:
    """Ends a store, unless it is closed already or belongs to the process that forked this one. Called at the end of the program, which an
    exception may have ended, or when nothing refers to the store any more."""
    if _open.pop(store, None) != os.getpid():
        return
    try:
        if raised is not None:
            store.report_failure(in_words(raised))
        elif threading.current_thread() is threading.main_thread() and sys.exc_info()[0] is None:
            # Otherwise, as after an error, one cannot know whether the work would ever end.
            store.finish()
    except RuntimeError as error:
        if not uncaught.is_said(error):
            known = uncaught.ours(error)
            said = f"ringpull: at the end of a store: {error}\n" if known is None else uncaught.say(known)
            print(said, end="", file=sys.stderr, flush=True)
    finally:
        store.close()


_after: list[tuple[int, Callable[[], None]]] = []


def after_stores(end: Callable[[], None]) -> None:
    """Calls ``end`` when the program ends and every store has left its job. It is for threads that wait for operations."""
    _after.append((os.getpid(), end))


@atexit.register
def close_stores() -> None:
    """Ends every store that is still open, once. Without it servers would count this worker as lost. It must run while Python still works,
    because an updater needs Python to apply the last pushes."""
    for store in list(_open):
        leave(store, getattr(sys, "last_value", None))
    for pid, end in _after:
        if pid == os.getpid():
            end()


_warned = False


def warn_of_separate_models(kind: str) -> None:
    """Warns once in a job, on its first rank, that the stores of its processes are not connected."""
    global _warned
    told = _native.first_of_several()
    if told is None or _warned:
        return
    _warned = True
    variable, processes = told
    instead = "ringpull_dist_sync" if variable == "DMLC_NUM_WORKER" else "dist_sync_mpi"
    print(
        f"warning: store kind {kind} is for one process, but this is one of {processes} ({variable}): each trains a model of its own\n"
        f"  hint: ask for {instead}, in our examples with --kv-store {instead}; or start one process",
        file=sys.stderr,
        flush=True,
    )
