"""``horovod.mxnet`` on our collectives: ``import ringpull.horovod.mxnet as hvd``."""

import sys

import numpy

if "mxnet" not in sys.modules:
    # MXNet 1.9.1 needs names that later versions of numpy removed; if they exist nothing changes.
    for _name, _stand_in in (("bool", bool), ("object", object)):
        if _name not in vars(numpy):
            setattr(numpy, _name, _stand_in)

from .. import basics
from ..basics import *  # noqa: F403
from ..exceptions import HorovodInternalError
from . import mpi_ops, training
from .mpi_ops import *  # noqa: F403
from .training import *  # noqa: F403

__all__ = ["HorovodInternalError"]
__all__ += basics.__all__ + mpi_ops.__all__ + training.__all__
