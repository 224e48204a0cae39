"""Stores in children that `multiprocessing` starts from a rank and that import the rank's script.

A child that is started by ``spawn`` or ``forkserver`` imports the script of its parent first. If the script makes a store while it is
imported, that store belongs to the rank. The child gets an object instead whose calls raise, as a store does in a forked child. So a script
that makes its store outside ``if __name__ == "__main__":`` works with every start method.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from . import _native
from .errors import InheritedError

__all__ = ["made"]


def made(make: Callable[[], Any]) -> Any:
    """The native store or communicator that ``make`` makes; in such a child, the object that replaces it."""
    try:
        return make()
    except InheritedError as error:
        if not getattr(multiprocessing.current_process(), "_inheriting", False):
            raise
        return _Absent(error)


class _Absent:
    """Replaces the parent's store. It knows the facts that the launcher has given, and its calls raise."""

    kind = "dist_sync_mpi"

    def __init__(self, error: InheritedError) -> None:
        self._error = error
        self.rank, self.size, local_rank, local_size = _native.launched() or (0, 1, 0, 1)
        self.num_workers, self.local_rank, self.local = self.size, local_rank, (local_rank, local_size)
        self.ranks = list(range(self.size))

    @property
    def cross(self) -> tuple[int, int]:
        """The host's number and the number of hosts, as the parent's ``hvd.init()`` has found them."""
        names = "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"
        if not all(name in os.environ for name in names):
            raise self._error
        rank, size = (int(os.environ[name]) for name in names)
        return rank, size

    def report_failure(self, why: str) -> None:
        """Does nothing: the job does not know of this process."""

    def close(self) -> None:
        """Does nothing: the parent stays in the job."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error
