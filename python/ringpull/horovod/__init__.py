"""Horovod's names and their meaning, on our collectives: a script changes one import.

    import ringpull.horovod.torch as hvd      # was: import horovod.torch as hvd

``python -m ringpull.horovod SCRIPT ARGS...`` runs a script that is not changed at all. ``ringpull.horovod.torch`` is for PyTorch,
``ringpull.horovod.mxnet`` for MXNet, ``ringpull.horovod.keras`` for Keras 3.
"""

from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
