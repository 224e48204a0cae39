"""The errors of a store. Every class is a :class:`KVStoreError`; the message names rank, key and operation,
and a remedy.

Attributes hold the same as data, where an error has them: ``rank`` (the rank that reports), ``key``, ``operation``,
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
    #: The native error, as JSON; none of an error that Python found.
    _fields: str | None = None


class ArgumentError(KVStoreError, ValueError):
    """An argument or an environment variable cannot be used. Nothing was changed."""


class UnknownKindError(ArgumentError):
    """No kind of store has this name; the message lists those that exist."""


class UnavailableError(KVStoreError):
    """The kind exists, but this build, machine or process cannot have it; or the store is that of the process that forked this one."""


class InheritedError(UnavailableError):
    """This process was started by a rank of MPI, whose place in the job it cannot take."""


class UnsupportedError(KVStoreError, NotImplementedError):
    """The operation exists, but not for this kind of store."""


class MixedKeyTypesError(ArgumentError):
    """One store holds integer keys or string keys, as its first call decided."""


class UnknownKeyError(KVStoreError):
    """A key was used before ``init`` or ``broadcast``."""


class DuplicateKeyError(KVStoreError):
    """A key was initialised twice."""


class MismatchError(ArgumentError):
    """A value does not fit what ``init`` fixed for its key."""

    expected: Any = None
    got: Any = None


class ShapeMismatchError(MismatchError):
    """A value's shape is not its key's."""


class DtypeMismatchError(MismatchError):
    """A value's dtype is not its key's."""


class DisagreementError(KVStoreError):
    """The ranks called one operation with arguments that do not fit together. Raised on every rank."""


class StalledError(KVStoreError, TimeoutError):
    """Other ranks live but have not called what this one waits for; ``missing`` lists them."""

    missing: list[int] = []


class DeadlockError(StalledError):
    """Every rank waits for a call that another has not made; ``waits`` has a line for each."""

    waits: list[str] = []


class PeerLostError(KVStoreError, ConnectionError):
    """A process of the job is gone; ``peer`` names it, and ``ranks`` has its rank, or all that it may be one of."""

    peer: str | None = None
    ranks: list[int] = []


class OutOfMemoryError(KVStoreError, MemoryError):
    """The system gave no memory for what a call needs. Nothing was changed."""


class ProtocolError(KVStoreError):
    """Bytes arrived that do not fit the protocol; they were not applied."""


class LibraryError(KVStoreError):
    """A call of MPI or another library failed; its own code and words are in the message."""


class FileError(KVStoreError, OSError):
    """A file or socket could not be used."""


class NotFiniteError(KVStoreError, ArithmeticError):
    """``RINGPULL_CHECK_NAN=1`` found a pushed NaN or Inf."""


class ReplicasDifferError(KVStoreError):
    """``RINGPULL_CHECK_REPLICAS`` found ``ranks`` whose value of ``key`` is not that of ``others``, after update ``update``."""

    update: int | None = None
    ranks: list[int] = []
    others: list[int] = []


class UpdaterError(KVStoreError):
    """The updater raised on ``rank``, for ``key``; ``cause`` is what it raised, whose traceback that rank has printed."""

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
    """The exception of a native error, which comes as its message and as JSON: ``{variant: {field: value}}``."""
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
