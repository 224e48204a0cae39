"""Stores for MXNet 1.9: after ``import ringpull.mxnet``, ``mx.kv.create('dist_sync_mpi')`` makes one of our stores.

``gluon.Trainer(..., kvstore='dist_sync_mpi')`` and ``Module.fit(kvstore='dist_sync_mpi')`` use our store too. No file of MXNet is changed
or rebuilt. The other kinds are ``ringpull_local``, ``ringpull_dist_sync`` and ``ringpull_dist_async``. To run a script that knows nothing
of this package, use ``python -m ringpull.mxnet SCRIPT ARGS...``.

In a process that ``ringpull launch`` started as a server or as the scheduler, the import of this package serves the job, and does not
return. Import it before MXNet there: the import of MXNet would start MXNet's own server.
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
