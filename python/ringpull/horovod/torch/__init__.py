"""``horovod.torch`` on our collectives: ``import ringpull.horovod.torch as hvd``."""

from ..basics import *  # noqa: F403
from ..exceptions import HorovodInternalError, HostsUpdatedInterrupt
from .compression import Compression
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm
from .. import basics
from . import elastic, mpi_ops

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
]
__all__ += basics.__all__ + mpi_ops.__all__
