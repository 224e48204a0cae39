"""The names under which MXNet finds our stores."""

from __future__ import annotations

from typing import Any

import mxnet

from .. import _native
from ..errors import UnknownKindError
from .store import MXNetKVStore, as_mxnet_error

#: Kinds whose names MXNet uses for stores of its own.
_NATIVE = ("local", "device", "dist_sync", "dist_async", "dist_sync_device", "dist_async_device")


def _class(name: str, kind: str) -> type[MXNetKVStore]:
    """A store of ``kind`` whose type is ``name``; MXNet registers classes by their names and makes them without arguments."""
    return type(name, (MXNetKVStore,), {"kind": kind, "__doc__": f"The store ``{kind}`` of ringpull."})


def _register(name: str, kind: str) -> None:
    registry = mxnet.kvstore.KVStoreBase.kv_registry
    if name not in registry:
        registry[name] = _class(name, kind)


def register() -> None:
    """Registers every kind, and makes a misspelt name of ours an error; MXNet would take it for a local store."""
    for kind in _native.KINDS:
        _register(f"ringpull_{kind}" if kind in _NATIVE else kind, kind)
    if getattr(mxnet.kvstore.create, "_of_ringpull", False):
        return
    original = mxnet.kvstore.create

    def create(name: str = "local") -> Any:
        registry = mxnet.kvstore.KVStoreBase.kv_registry
        if isinstance(name, str) and name.lower() not in registry and ("mpi" in name.lower() or "ringpull" in name.lower()):
            ours = ", ".join(known for known, klass in registry.items() if issubclass(klass, MXNetKVStore))
            raise as_mxnet_error(UnknownKindError(f"unknown kind of store {name!r}\n  hint: ringpull's kinds are {ours}"))
        return original(name)

    create.__doc__ = original.__doc__
    create._of_ringpull = True  # type: ignore[attr-defined]
    mxnet.kvstore.create = mxnet.kvstore.base.create = create


def serve_native_names() -> None:
    """Makes MXNet's names of distributed kinds ours: ``dist_sync``, ``dist_async``, and their device forms."""
    for kind in _NATIVE:
        if kind.startswith("dist"):
            _register(kind, kind)
    for name, kind in (("dist", "dist_sync"), ("dist_device_sync", "dist_sync_device"), ("dist_device_async", "dist_async_device")):
        _register(name, kind)
