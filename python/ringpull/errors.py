"""The errors of a store. Every class is a :class:`KVStoreError`. The message names the rank, the key, the operation
and a remedy.

If an error has these facts, attributes hold them as data: ``rank`` (the rank that reports), ``key``, ``operation``,
``missing`` (ranks that did not call), ``expected`` and ``got``, ``peer`` and its ``ranks``.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = [
    "ArgumentError",
    "DeadlockError",
    "DisagreementError",
    "DtypeMismatchError",
    "DuplicateKeyError",
    "FileError",
    "InheritedError",
    "KVStoreError",
    "LibraryError",
    "MismatchError",
    "MixedKeyTypesError",
    "NotFiniteError",
    "OutOfMemoryError",
    "PeerLostError",
    "ProtocolError",
    "ReplicasDifferError",
    "ShapeMismatchError",
    "StalledError",
    "UnavailableError",
    "UnknownKeyError",
    "UnknownKindError",
    "UnsupportedError",
    "UpdaterError",
]


class KVStoreError(RuntimeError):
    """Any error of a store."""

    rank: int | None = None
    key: int | str | None = None
    operation: str | None = None
    #: The native error as JSON. None if Python found the error.
    _fields: str | None = None


class ArgumentError(KVStoreError, ValueError):
    """An argument or an environment variable cannot be used. Nothing was changed."""


class UnknownKindError(ArgumentError):
    """No kind of store has this name; the message lists those that exist."""


class UnavailableError(KVStoreError):
    """The kind exists, but this build, machine or process cannot have it. Or the store belongs to the process that forked this one."""


class InheritedError(UnavailableError):
    """This process was started by a rank of MPI, and cannot take that rank's part in the job."""


class UnsupportedError(KVStoreError, NotImplementedError):
    """The operation exists, but not for this kind of store."""


class MixedKeyTypesError(ArgumentError):
    """A store has either integer keys or string keys; its first call decides which."""


class UnknownKeyError(KVStoreError):
    """A key was used before ``init`` or ``broadcast``."""


class DuplicateKeyError(KVStoreError):
    """A key was initialised twice."""


class MismatchError(ArgumentError):
    """A value does not have the shape or dtype that ``init`` fixed for its key."""

    expected: Any = None
    got: Any = None


class ShapeMismatchError(MismatchError):
    """A value's shape differs from its key's."""


class DtypeMismatchError(MismatchError):
    """A value's dtype differs from its key's."""


class DisagreementError(KVStoreError):
    """The ranks called one operation with arguments that do not fit together. Raised on every rank."""


class StalledError(KVStoreError, TimeoutError):
    """Other ranks live, but have not called the operation that this rank waits for. ``missing`` lists them."""

    missing: list[int] = []


class DeadlockError(StalledError):
    """Every rank waits for a call that another rank has not made. ``waits`` has a line for each rank."""

    waits: list[str] = []


class PeerLostError(KVStoreError, ConnectionError):
    """A process of the job is gone. ``peer`` names it, and ``ranks`` has its rank, or all ranks that it may be."""

    peer: str | None = None
    ranks: list[int] = []


class OutOfMemoryError(KVStoreError, MemoryError):
    """The system gave no memory for a call. Nothing was changed."""


class ProtocolError(KVStoreError):
    """Bytes arrived that do not fit the protocol; they were not applied."""


class LibraryError(KVStoreError):
    """A call of MPI or another library failed. The message has that library's error code and text."""


class FileError(KVStoreError, OSError):
    """A file or socket could not be used."""


class NotFiniteError(KVStoreError, ArithmeticError):
    """``RINGPULL_CHECK_NAN=1`` found a pushed NaN or Inf."""


class ReplicasDifferError(KVStoreError):
    """``RINGPULL_CHECK_REPLICAS`` found that, after update ``update``, the value of ``key`` on ``ranks`` differs from that on ``others``."""

    update: int | None = None
    ranks: list[int] = []
    others: list[int] = []


class UpdaterError(KVStoreError):
    """The updater raised ``cause`` on ``rank``, for ``key``. That rank has printed the traceback."""

    cause: str | None = None


_CLASSES: dict[str, type[KVStoreError]] = {
    "UnknownKind": UnknownKindError,
    "KindUnavailable": UnavailableError,
    "Unsupported": UnsupportedError,
    "MixedKeyTypes": MixedKeyTypesError,
    "NotInitialized": UnknownKeyError,
    "AlreadyInitialized": DuplicateKeyError,
    "ShapeMismatch": ShapeMismatchError,
    "DtypeMismatch": DtypeMismatchError,
    "Disagreement": DisagreementError,
    "InvalidArgument": ArgumentError,
    "Stalled": StalledError,
    "Deadlock": DeadlockError,
    "Incomplete": StalledError,
    "PeerLost": PeerLostError,
    "Finished": PeerLostError,
    "Protocol": ProtocolError,
    "Library": LibraryError,
    "Io": FileError,
    "NotFinite": NotFiniteError,
    "ReplicasDiffer": ReplicasDifferError,
    "UpdaterFailed": UpdaterError,
    "Environment": ArgumentError,
    "JobMismatch": DisagreementError,
    "LimitExceeded": KVStoreError,
    "OutOfMemory": OutOfMemoryError,
    "Elsewhere": KVStoreError,
    "Bug": KVStoreError,
    "Inherited": InheritedError,
    "Forked": UnavailableError,
    "Interrupted": KVStoreError,
    "Stopped": KVStoreError,
    "ThreadEnded": KVStoreError,
}


def _exception(text: str, fields: str) -> KVStoreError:
    """The exception for a native error. The arguments are its message, and its fields as JSON: ``{variant: {field: value}}``."""
    ((variant, values),) = json.loads(fields).items()
    error = _CLASSES.get(variant, KVStoreError)(text)
    error._fields = fields
    for name, value in values.items():
        if name in ("key", "first"):
            (value,) = value.values()
        elif name == "waits":
            value = [f"rank {rank} waits{what}" for rank, what in value]
        setattr(error, name, value)
    return error
