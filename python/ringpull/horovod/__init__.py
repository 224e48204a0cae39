"""Horovod's names and their meaning, on our collectives: a script changes one import.

    import ringpull.horovod.torch as hvd      # was: import horovod.torch as hvd

``python -m ringpull.horovod SCRIPT ARGS...`` runs a script that is not changed at all. ``ringpull.horovod.torch`` is for PyTorch,
``ringpull.horovod.mxnet`` for MXNet, ``ringpull.horovod.keras`` for Keras 2 and 3. ``__version__`` is the version of Horovod that has
these names.
"""

import sys

# This import is the first: its finder must see the imports of all other modules.
from .names import VERSION as __version__, explain

from .exceptions import HorovodInternalError, HostsUpdatedInterrupt
from .running import run

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "__version__", "run"]

explain(sys.modules[__name__])
