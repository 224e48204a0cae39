"""Stores for MXNet 1.9: ``import ringpull.mxnet`` and ``mx.kv.create('dist_sync_mpi')`` is one of ours.

So are ``gluon.Trainer(..., kvstore='dist_sync_mpi')`` and ``Module.fit(kvstore='dist_sync_mpi')``; nothing of MXNet is changed or
rebuilt. The other kinds are ``ringpull_local``, ``ringpull_dist_sync`` and ``ringpull_dist_async``. A script that knows nothing of
this package is run by ``python -m ringpull.mxnet SCRIPT ARGS...``.

In a process that ``ringpull launch`` started as a server or the scheduler, importing this package serves, and does not return.
Import it before MXNet there: MXNet's own import would start its own server.
"""

import os
import sys

import numpy

if "mxnet" not in sys.modules:
    if os.environ.get("DMLC_ROLE") in ("server", "scheduler"):
        from .. import _native

        _native.Store("dist_sync")
    # MXNet 1.9.1 needs names that later versions of numpy removed; if they exist nothing changes.
    for _name, _stand_in in (("bool", bool), ("object", object)):
        if _name not in vars(numpy):
            setattr(numpy, _name, _stand_in)

from .registry import register, serve_native_names
from .store import MXNetKVStore

__all__ = ["MXNetKVStore", "register", "serve_native_names"]

register()
