"""The names under which MXNet finds our stores."""

from __future__ import annotations

import difflib
import os
from typing import Any

from mxnet import gluon, kvstore

from .. import _native
from ..errors import UnavailableError, UnknownKindError
from ..worker import warn_of_separate_models
from .store import MXNetKVStore, as_mxnet_error

#: Kinds of ours whose names MXNet uses for its own stores.
_NATIVE = ("local", "device", "dist_sync", "dist_async", "dist_sync_device", "dist_async_device")

#: Other names of MXNet's own stores in its documentation and examples.
_NATIVE_TOO = (
    "dist",
    "dist_device_sync",
    "dist_device_async",
    "local_update_cpu",
    "local_allreduce_cpu",
    "local_allreduce_device",
    "nccl",
)


def _class(name: str, kind: str) -> type[MXNetKVStore]:
    """A class ``name`` of stores of ``kind``. MXNet registers classes by their names, and calls them without arguments."""
    return type(name, (MXNetKVStore,), {"kind": kind, "__doc__": f"The store ``{kind}`` of ringpull."})


def _register(name: str, kind: str) -> None:
    registry = kvstore.KVStoreBase.kv_registry
    if name not in registry:
        registry[name] = _class(name, kind)


def register() -> None:
    """Registers every kind, and makes an unknown name an error. MXNet would create a local store for it, or a worker of a job with servers."""
    for kind in _native.KINDS:
        _register(f"ringpull_{kind}" if kind in _NATIVE else kind, kind)
    if getattr(kvstore.create, "_of_ringpull", False):
        return
    original = kvstore.create

    def create(name: str = "local") -> Any:
        if isinstance(name, str) and name.lower() not in kvstore.KVStoreBase.kv_registry:
            _check_native(name)
        return original(name)

    create.__doc__ = original.__doc__
    create._of_ringpull = True  # type: ignore[attr-defined]
    setattr(kvstore, "create", create)
    setattr(kvstore.base, "create", create)
    _name_keys_of_trainers()


def _name_keys_of_trainers() -> None:
    """Makes each Trainer tell our stores the names of its parameters, whose keys are numbers."""
    original = gluon.Trainer._init_kvstore

    def init_kvstore(self: Any) -> None:
        original(self)
        if isinstance(self._kvstore, MXNetKVStore):
            self._kvstore.name_keys({self._param2idx[param.name]: param.name for param in self._params})

    gluon.Trainer._init_kvstore = init_kvstore


def _check_native(given: str) -> None:
    """Checks a name that is not registered.

    Raises if MXNet has no store of this name, or if the store needs servers and the job has none. Warns if MXNet's store would be of this
    process alone.
    """
    name, registry = given.lower(), kvstore.KVStoreBase.kv_registry
    if name not in _NATIVE and name not in _NATIVE_TOO:
        ours = [known for known, klass in registry.items() if issubclass(klass, MXNetKVStore)]
        known = [*registry, *(native for native in (*_NATIVE, *_NATIVE_TOO) if native not in registry)]
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        text = f"unknown kind of store {given!r}\n  hint: {meant}ringpull's kinds are {', '.join(ours)}; MXNet's own are {', '.join(_NATIVE)}"
        raise as_mxnet_error(UnknownKindError(text))
    if "dist" not in name:
        warn_of_separate_models(name)
    elif not os.environ.get("DMLC_PS_ROOT_URI"):
        text = (
            f"store kind {given} is not available: it needs servers, and this job has none (DMLC_PS_ROOT_URI is not set)\n"
            "  hint: ask for dist_sync_mpi, which needs none; or start servers: `ringpull launch -n 4 -s 4 -- CMD`"
        )
        raise as_mxnet_error(UnavailableError(text))


def serve_native_names() -> None:
    """Registers our kinds under MXNet's names of distributed kinds: ``dist_sync``, ``dist_async``, and their device forms."""
    for kind in _NATIVE:
        if kind.startswith("dist"):
            _register(kind, kind)
    for name, kind in (("dist", "dist_sync"), ("dist_device_sync", "dist_sync_device"), ("dist_device_async", "dist_async_device")):
        _register(name, kind)
