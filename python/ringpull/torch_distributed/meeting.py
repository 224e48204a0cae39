"""Makes a process group of ours for PyTorch, and the store by which ranks that MPI's launcher has started find each other."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import itertools
import os
import secrets
import socket
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed

from ..collectives import Communicator, communicator
from ..errors import ArgumentError, KVStoreError
from . import buckets
from .backend import Backend, answer, is_derived
from .faults import raised
from .group import ProcessGroup

__all__ = ["create", "meet"]

#: Untyped, because the attributes of PyTorch differ from version to version.
_distributed: Any = torch.distributed


def _seconds(timeout: timedelta | None) -> float | None:
    """The timeout in seconds, to replace ``RINGPULL_TIMEOUT``. None if that variable is set."""
    return None if timeout is None or os.environ.get("RINGPULL_TIMEOUT") else timeout.total_seconds()


#: The communicator of all ranks, and the time for which the job waits for a live rank.
_job: Communicator | None = None
_job_limit = 0.0


def _communicator(ranks: list[int], timeout: timedelta) -> Communicator:
    """The communicator of the job, or of some of its ranks. Only these ranks call it."""
    global _job, _job_limit
    try:
        if _job is None:
            _job_limit = float(os.environ.get("RINGPULL_TIMEOUT") or timeout.total_seconds())
        if _job is None or ranks in ([], list(range(_job.size))):
            comm = communicator(timeout=_seconds(timeout))
            _job = comm
            return comm
        return _job.subset(ranks)
    except KVStoreError as error:
        raise raised(error) from None


def _limit(timeout: timedelta) -> float | None:
    seconds = timeout.total_seconds()
    return seconds if _job_limit == 0 or seconds < _job_limit else None


def _split(store: Any, ranks: list[int], options: Any) -> Backend:
    timeout = options._timeout
    return Backend(_communicator(ranks, timeout), _limit(timeout), store, options, _split)


def _check_others(backends: str) -> None:
    """Raises if our backend, or another backend of the group, would get no calls."""
    others = {word.rpartition(":")[2] for word in backends.split(",")} - {"ringpull", ""}
    why, remedy = "one group cannot have", " or take PyTorch 2.14 or later"
    if is_derived():
        # PyTorch has only one slot for all backends that are not its own.
        types = _distributed.Backend.backend_type_map
        others = {name for name in others if types.get(name) == types["ringpull"]}
        why, remedy = "one group cannot have, as neither is PyTorch's own", " or take one of PyTorch's own beside ours"
    if others:
        raise ArgumentError(
            f'"{backends}" has ringpull and {", ".join(sorted(others))}, which {why} with PyTorch {torch.__version__}\n'
            f"  hint: make a group for each,{remedy}"
        )


def _check_place(comm: Communicator, rank: int, size: int) -> None:
    """Raises if the program's rank or its number of ranks differs from MPI's."""
    if (comm.rank, comm.size) != (rank, size):
        raise ArgumentError(
            f"this process is rank {rank} of {size} by init_process_group, but rank {comm.rank} of {comm.size} by MPI\n"
            f"  hint: start the program's number of ranks: ringpull launch -n {size}. It sets RANK and WORLD_SIZE, "
            "by which frameworks find their ranks; under mpirun Lightning needs mpi4py for that"
        )


def create(options: Any, backends: str) -> Any:
    """Makes the backend, or the whole group, for which PyTorch asks. ``backends`` are the backends of the group."""
    _check_others(backends)
    comm = _communicator(list(options.global_ranks_in_group), options.timeout)
    _check_place(comm, options.group_rank, options.group_size)
    buckets.share()
    if not is_derived():
        return ProcessGroup(comm, _limit(options.timeout))
    answer()
    given = _distributed.distributed_c10d.C10DBackend.Options("ringpull", timeout=options.timeout)
    backend = Backend(comm, _limit(options.timeout), options.store, given, _split)
    # The finalizer keeps the backend alive: at the debug level DETAIL only C++ holds it, and not its Python part.
    weakref.finalize(options.process_group, id, backend).atexit = False
    return backend


def _addresses() -> Iterator[str]:
    """The addresses of this host's interfaces that other hosts may reach; IPv4 addresses come first."""
    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
            except OSError:
                # The interface has no IPv4 address.
                continue
            address = ipaddress.ip_address(found[20:24])
            if not address.is_loopback:
                yield str(address)
    try:
        six = Path("/proc/net/if_inet6").read_text()
    except OSError:
        # This host has no IPv6.
        return
    for line in six.splitlines():
        address = ipaddress.ip_address(bytes.fromhex(line.split()[0]))
        # A link-local address is valid on one link only.
        if not (address.is_loopback or address.is_link_local):
            yield str(address)


#: The maximum length in bytes of the addresses of a store that are sent through MPI.
_ADDRESS_BYTES = 1024
#: The time that an address has to answer: in the first round, and in the second round, which a busy host may need.
_ANSWERS_S = (2.0, 30.0)


#: The key of a store that has the proof: a word that rank 0 also sends to the others through MPI.
_PROOF = "ringpull"


def _answer(host: str, port: int, size: int, answer_s: float) -> tuple[Any, bytes] | None:
    """The store at an address, with its proof, if it answers in time. If another program listens there and sends nothing, PyTorch 2.15
    waits without end: then the thread is left behind."""
    found: list[tuple[Any, bytes]] = []

    def ask() -> None:
        # A store that does not answer in time raises a RuntimeError.
        with contextlib.suppress(OSError, RuntimeError):
            socket.create_connection((host, port), timeout=answer_s).close()
            answer = timedelta(seconds=answer_s)
            store = _distributed.TCPStore(host, port, size, False, answer, wait_for_workers=False)
            found.append((store, store.get(_PROOF)))

    asking = threading.Thread(target=ask, name="ringpull-store", daemon=True)
    asking.start()
    asking.join(2 * answer_s)
    return next(iter(found), None)


def _joined(places: Sequence[tuple[str, int]], proof: bytes, size: int, timeout: timedelta) -> Any:
    """The store at the first of these addresses and ports that has this proof. Several hosts may have the same address, as on their own
    docker0 interfaces, and another program may listen there."""
    for answer_s, (host, port) in itertools.product(_ANSWERS_S, places):
        found = _answer(host, port, size, answer_s)
        if found and found[1] == proof:
            found[0].set_timeout(timeout)
            return found[0]
    raise KVStoreError(
        f"the store of rank 0 cannot be reached at {', '.join(f'{host} port {port}' for host, port in places)}\n"
        "  hint: open the ports between the hosts, or set MASTER_ADDR and MASTER_PORT"
    )


def meet(timeout: timedelta | None = None, rank: int = -1, size: int = -1) -> tuple[Any, int, int]:
    """Returns a store on rank 0 that every rank can use, this rank, and the number of ranks. If the program has given a ``rank`` or a ``size``,
    these must be MPI's."""
    limit: timedelta = timeout or _distributed.distributed_c10d.default_pg_timeout
    try:
        comm = communicator(timeout=_seconds(limit))
        _check_place(comm, rank if rank >= 0 else comm.rank, size if size >= 0 else comm.size)
        is_local = comm.local_size == comm.size
        text, store = b"", None
        if comm.rank == 0:
            store = _distributed.TCPStore("127.0.0.1", 0, comm.size, True, limit, wait_for_workers=False)
            proof = secrets.token_hex(16)
            store.set(_PROOF, proof)
            text = " ".join([str(store.port), proof, *(["127.0.0.1"] if is_local else _addresses())]).encode()
        shared = numpy.zeros(_ADDRESS_BYTES, numpy.uint8)
        text = text[:_ADDRESS_BYTES].rsplit(b" ", 1)[0] if len(text) > _ADDRESS_BYTES else text
        shared[: len(text)] = numpy.frombuffer(text, numpy.uint8)
        port, proof, *addresses = comm.broadcast(shared, 0, out=shared).wait().tobytes().rstrip(b"\0").decode().split()
        if store is None:
            store = _joined([(host, int(port)) for host in addresses], proof.encode(), comm.size, limit)
    except KVStoreError as error:
        raise raised(error) from None
    return store, comm.rank, comm.size
