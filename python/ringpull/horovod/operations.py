"""Operations under way, for all frameworks: names, handles and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import KVStoreError
from .basics import Adasum, Average, Max, Min, Product, Sum
from .exceptions import SplitsError, as_horovod_error
from .process_sets import ProcessSet, names

__all__ = ["OPS", "Operation", "begin", "check_sum", "index_of_root", "op_of", "splits_of"]

#: A communicator's names of Horovod's reductions.
OPS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}


def op_of(op: int | None, average: bool | None) -> int:
    """The reduction that is asked for by ``op``, or by ``average`` as in Horovod before 0.19."""
    if op is not None and average is not None:
        raise ValueError("both op and average are given\n  hint: give op alone")
    if op is None:
        return Average if average is None or average else Sum
    if op not in (*OPS, Adasum):
        raise ValueError(f"unknown op={op!r}\n  hint: give hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum")
    return op


def check_sum(op: int, what: str) -> None:
    """Raises if the reduction is neither the sum nor the average."""
    if op not in (Average, Sum):
        raise NotImplementedError(f"op={op!r} is not supported for {what}\n  hint: give hvd.Average or hvd.Sum")


def index_of_root(root_rank: int, process_set: ProcessSet) -> int:
    """The rank that `root_rank`, a rank of the job, has in the process set."""
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"broadcast: root_rank={root_rank} is not in {process_set}\n  hint: name one of its ranks")
    return ranks.index(root_rank)


def splits_of(splits: Iterable[Any] | None, rows: int, count: int) -> list[int]:
    """The number of rows of an alltoall that go to each of ``count`` ranks. Without ``splits`` each rank gets the same number."""
    if splits is None:
        if rows % count:
            raise SplitsError(
                f"alltoall of {rows} rows: they cannot be divided equally over {count} ranks\n  hint: give splits, the number of rows for each rank"
            )
        return [rows // count] * count
    wanted = [int(split) for split in splits]
    if len(wanted) != count or min(wanted) < 0 or sum(wanted) != rows:
        raise SplitsError(
            f"splits={wanted} do not fit {rows} rows and {count} ranks\n"
            "  hint: give one number for each rank; their sum must be the number of rows"
        )
    return wanted


_numbers = itertools.count()


class Operation:
    """An operation under way: the handle that ``synchronize`` and ``poll`` take."""

    def __init__(self, handles: list[Any], result: Callable[[list[Any]], Any], name: tuple[Any, str] | None) -> None:
        self._handles = handles
        self._result = result
        self._name = name
        self.number = next(_numbers)

    def done(self) -> bool:
        """Returns True if :meth:`wait` would return at once."""
        done = all(handle.done() for handle in self._handles)
        if done:
            self._forget()
        return done

    def wait(self) -> Any:
        """Waits for the result and returns it."""
        try:
            results = [handle.wait() for handle in self._handles]
        except KVStoreError as error:
            raise as_horovod_error(error) from None
        finally:
            self._forget()
        return self._result(results)

    def __call__(self) -> Any:
        """Does as :meth:`wait`: with Horovod a program calls the handle of a sparse sum as a function."""
        return self.wait()

    def _forget(self) -> None:
        if self._name is not None and names.get(self._name) is self:
            del names[self._name]


def begin(
    kind: str, name: str | None, process_set: ProcessSet, call: Callable[[Any, str | None], list[Any]], result: Callable[[list[Any]], Any]
) -> Operation:
    """Starts an operation. ``call`` gets the set's communicator and the operation's name on it, and returns handles; ``result`` makes the
    operation's result from the handles' results.

    A name that is already under way is an error: one could not know which of the two operations another rank means.
    """
    comm = process_set.comm()
    known = None if name is None else f"{kind}.{name}"
    # The key has the communicator and not the number of the set, since another set may get this number later.
    key = None if known is None else (comm, known)
    if key is not None and key in names:
        raise ValueError(f"{kind} of name {name!r} is under way already\n  hint: synchronize its handle first, or give another name")
    try:
        operation = Operation(call(comm, known), result, key)
    except KVStoreError as error:
        raise as_horovod_error(error) from None
    if key is not None:
        names[key] = operation
    return operation
