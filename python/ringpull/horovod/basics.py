"""The functions that every front end has: the job, ranks, reductions, and the features of this build."""

from __future__ import annotations

import os
import socket
from typing import Any

from .. import _native
from ..errors import KVStoreError
from . import process_sets as sets
from .exceptions import as_horovod_error
from .process_sets import ProcessSet, add_process_set, get_process_sets, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_sets",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]

#: Reductions.
Average, Sum, Adasum, Min, Max, Product = range(6)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job. A later call makes no new process sets: it looks up ``process_sets`` among the known sets.

    ``comm`` is a list of ranks or a communicator of mpi4py, if not all ranks take part. ``process_sets`` is a list, whose items are each
    a :class:`ProcessSet`, a list of ranks or a communicator. It may also be ``"dynamic"``, which changes nothing: sets can always be added
    later. A set that is given twice, or has all ranks, is a ``ValueError``. ``init`` also sets the variables that Horovod's launcher sets
    (``HOROVOD_RANK``, ``HOROVOD_SIZE`` and so on, and ``HOROVOD_HOSTNAME``), unless they are set already.
    """
    sets.begin(comm, process_sets)
    numbers = [rank, size, local_rank, local_size, cross_rank, cross_size]
    found = {number.__name__: str(number()) for number in numbers} | {"hostname": socket.gethostname()}
    for name, value in found.items():
        os.environ.setdefault(f"HOROVOD_{name.upper()}", value)


def shutdown() -> None:
    """Ends the use of Horovod's functions until the next ``init``. The process leaves its job only when the process ends."""
    sets.end()


def is_initialized() -> bool:
    """Returns True if ``init`` was called, and ``shutdown`` was not called after it."""
    return sets.global_process_set._comm is not None


def rank() -> int:
    """This process's rank, from 0."""
    return int(sets.job().rank)


def size() -> int:
    """The number of processes."""
    return int(sets.job().size)


def local_rank() -> int:
    """This process's rank among those of its host."""
    return int(sets.job().local_rank)


def local_size() -> int:
    """The number of processes on this host."""
    return int(sets.job().local_size)


def cross_rank() -> int:
    """This host's number among the hosts that have a process of this local rank."""
    return int(sets.job().cross_rank)


def cross_size() -> int:
    """The number of hosts that have a process of this local rank."""
    return int(sets.job().cross_size)


def is_homogeneous() -> bool:
    """Returns True if every host has the same number of processes."""
    job = sets.job()
    return int(job.local_size) * int(job.cross_size) == int(job.size)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every process of the set has called it."""
    try:
        process_set.comm().barrier()
    except KVStoreError as error:
        raise as_horovod_error(error) from None


def join(device: int = -1) -> int:
    """Adds zeros to the other processes' reductions, until every process has called it. Call it on a process that has no data left.

    Returns the rank that called it last. ``device`` is accepted for Horovod's sake, and changes nothing.
    """
    try:
        return int(sets.job().join())
    except KVStoreError as error:
        raise as_horovod_error(error) from None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts to record the times of this rank's work, as ``RINGPULL_TIMELINE=file_path`` does from the start. Each rank has its own file.

    ``mark_cycles`` is accepted for Horovod's sake, and changes nothing: there are no cycles to mark. A process can record only one file.
    """
    if not _native.start_timeline(file_path, rank(), size()):
        raise ValueError(f"start_timeline({file_path!r}): this process records another file\n  hint: give the same file each time")


def stop_timeline() -> None:
    """Writes the records to the file, and records no more until :func:`start_timeline` is called again."""
    _native.stop_timeline()


def mpi_built() -> bool:
    """Returns True if this build has MPI."""
    return "dist_sync_mpi" in _native.KINDS


def mpi_enabled() -> bool:
    """Returns True if messages go over MPI."""
    return mpi_built()


def mpi_threads_supported() -> bool:
    """Returns True if a program may also call MPI itself, as with mpi4py. It always may, since MPI is initialised for several threads."""
    sets.job()
    return True


def _not_here() -> bool:
    return False


def nccl_built() -> int:
    """Returns 0 always; Horovod with NCCL returns a version number. Use GPUs through :func:`ringpull.create`."""
    return 0


gloo_built = gloo_enabled = ddl_built = ccl_built = cuda_built = rocm_built = sycl_built = _not_here
