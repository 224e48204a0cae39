"""Horovod's classes of errors, with our texts and attributes."""

from __future__ import annotations

from typing import Any, cast

from ..elastic import HostsUpdatedInterrupt
from ..errors import KVStoreError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "NotInitializedError", "SplitsError", "as_horovod_error"]


class HorovodInternalError(RuntimeError):
    """An operation failed on some rank. The error has the text and the attributes of a :class:`ringpull.KVStoreError`."""


class SplitsError(HorovodInternalError, ValueError):
    """Splits of an alltoall that do not fit the tensor. It is a ``ValueError`` and a ``RuntimeError``: ``horovod.torch`` raises the first,
    ``horovod.mxnet`` the second."""


class NotInitializedError(ValueError):
    """A call before ``init()``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} before init()\n  hint: call hvd.init() first")


_classes: dict[type[KVStoreError], type[Any]] = {}


def as_horovod_error(error: KVStoreError) -> KVStoreError:
    """The error in a form that ``except HorovodInternalError`` catches too."""
    kind = type(error)
    if issubclass(kind, HorovodInternalError):
        return error
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (kind, HorovodInternalError), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    raised = cast("KVStoreError", _classes[kind](*error.args))
    raised.__dict__.update(error.__dict__)
    return raised
