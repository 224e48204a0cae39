"""The job and its process sets: the processes that take part in an operation."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy

import ringpull

from ..elastic.in_place import followers
from ..errors import KVStoreError
from . import variables
from .exceptions import HorovodInternalError, NotInitializedError, as_horovod_error

__all__ = ["ProcessSet", "add_process_set", "get_process_sets", "global_process_set", "remove_process_set"]


class ProcessSet:
    """Some of the job's processes, given by their ranks or as a communicator of mpi4py.

    ``init(process_sets=[...])`` or :func:`add_process_set` makes a set known. A set cannot be used before it is known.
    """

    #: The set's number; None while the set is not known.
    process_set_id: int | None = None
    #: The ranks of the set's processes, ascending; None while the ranks are not known.
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        #: The communicator over the set's processes; None on other processes.
        self._comm: Any = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = sorted({int(rank) for rank in ranks_or_comm})

    def size(self) -> int:
        """The number of processes of the set."""
        return len(self._known())

    def rank(self) -> int:
        """This process's rank in the set."""
        ranks, own = self._known(), job().rank
        if own not in ranks:
            raise ValueError(f"rank {own} has no rank in {self}\n  hint: ask included() first")
        return ranks.index(own)

    def included(self) -> bool:
        """Returns True if this process is in the set."""
        return job().rank in self._known()

    def comm(self) -> Any:
        """The communicator over the set's processes. Raises on a process that is not in the set."""
        self._known()
        if self._comm is None:
            raise HorovodInternalError(
                f"rank {job().rank} is not in {self}, but called an operation of this set\n  hint: call it only where process_set.included() is True"
            )
        return self._comm

    def _known(self) -> list[int]:
        job()
        if self.process_set_id is None or self.ranks is None:
            raise ValueError(f"{self} is not known\n  hint: give it to hvd.init(process_sets=...), or call hvd.add_process_set")
        return self.ranks

    def _resolve(self) -> list[int]:
        """The set's ranks. Computes them first if the set is given by a communicator of mpi4py."""
        if self.mpi_comm is not None:
            from mpi4py import MPI

            group = self.mpi_comm.Get_group()
            self.ranks = sorted(group.Translate_ranks(list(range(group.size)), MPI.COMM_WORLD.Get_group()))
        assert self.ranks is not None
        return self.ranks

    def __reduce__(self) -> Any:
        return _unpickled, (None if self is global_process_set else self._resolve(),)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


#: All processes of the job.
global_process_set = ProcessSet([])
global_process_set.ranks = None

_sets: dict[int, ProcessSet] = {}


def _unpickled(ranks: list[int] | None) -> ProcessSet:
    """The known process set of these ranks, or else a new one that is not yet known. For None, the global set."""
    known = (one for one in _sets.values() if one.ranks == ranks)
    return global_process_set if ranks is None else next(known, ProcessSet(ranks))


def job() -> Any:
    """The communicator over all processes. Raises before ``init``."""
    if global_process_set._comm is None:
        raise NotInitializedError("a call of Horovod's")
    return global_process_set._comm


def begin(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job, and makes process sets known. If the job has been joined before, looks up each given set among the known ones."""
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"process_sets={process_sets!r}\n  hint: give 'dynamic', or a list of process sets")
    given = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    sets = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in given]
    if global_process_set._comm is None:
        _join_job(comm)
        _make_known(sets)
    for one in sets:
        if not _find(one):
            raise ValueError(f"{one} is not known, and a later call of init() makes no set known\n  hint: call hvd.add_process_set")
    # All ranks have made the same sets known before any rank raises, so init can be called again.
    seen = {0}
    for one in sets:
        if one.process_set_id in seen:
            raise ValueError(f"{one} is given twice to init(), or has all ranks\n  hint: give each set once")
        seen.add(one.process_set_id or 0)


def _join_job(comm: Any) -> None:
    variables.translate()
    try:
        whole: Any = ringpull.communicator()
        if comm is not None:
            ranks = ProcessSet(comm)._resolve()
            whole = whole if ranks == list(range(whole.size)) else whole.split(ranks)
            if whole is None:
                raise ValueError(f"init(comm={ranks}) on a rank that is not among them\n  hint: call it on these ranks alone with a communicator of their own")
    except KVStoreError as error:
        raise as_horovod_error(error) from None
    global_process_set._comm = whole
    global_process_set.ranks = list(range(whole.size))
    global_process_set.process_set_id = 0
    global_process_set.mpi_comm = comm if hasattr(comm, "Get_group") else None
    _sets[0] = global_process_set


def _make_known(sets: list[ProcessSet]) -> None:
    if any(one.mpi_comm is not None for one in sets):
        # Communicators may differ between ranks, and every rank has to know the sets of all of them.
        mine = [one._resolve() for one in sets]
        everybodys = gather_objects(job(), mine)
        for at, one in enumerate(sets):
            for group in sorted({tuple(lists[at]) for lists in everybodys}):
                _add(one if list(group) == one.ranks else ProcessSet(group))
    else:
        for one in sets:
            _add(one)


def end() -> None:
    """Forgets the process sets. The job goes on, because a process can initialise MPI only once."""
    for one in _sets.values():
        one.process_set_id = one._comm = None
    _sets.clear()
    global_process_set.mpi_comm = None


def _find(process_set: ProcessSet) -> bool:
    """Gives a set the number and the communicator of the known set with the same ranks. Returns True if there is one."""
    ranks = process_set._resolve()
    for one in _sets.values():
        if one.ranks == ranks:
            process_set.process_set_id, process_set._comm = one.process_set_id, one._comm
            return True
    return False


def _add(process_set: ProcessSet) -> bool:
    """Makes a set known. If a set of the same ranks is known, shares its number and communicator instead. Returns True if the set was new."""
    ranks = process_set._resolve()
    whole = job()
    if not ranks or not 0 <= ranks[0] <= ranks[-1] < whole.size:
        raise ValueError(f"{process_set}: the job has ranks 0 to {whole.size - 1}")
    if _find(process_set):
        return False
    try:
        process_set._comm = whole.split(ranks)
    except KVStoreError as error:
        raise as_horovod_error(error) from None
    process_set.process_set_id = next(number for number in itertools.count(1) if number not in _sets)
    _sets[process_set.process_set_id] = process_set
    return True


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set known while the program runs. Collective: all processes must add the same sets in the same order."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if not _add(made):
        raise ValueError(f"there is already a process set of ranks {made.ranks}: number {made.process_set_id}")
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a process set. Returns False if the set was not known, or is the set of all processes. Collective."""
    number = process_set.process_set_id
    if number is None or number == 0 or number not in _sets:
        return False
    job().barrier()
    del _sets[number]
    process_set.process_set_id = process_set._comm = None
    return True


def get_process_sets() -> dict[int, list[int]]:
    """The ranks of each known process set, by its number."""
    job()
    return {number: list(one.ranks or ()) for number, one in _sets.items()}


#: The operations that nobody has waited for yet, by their communicator and name.
names: dict[tuple[Any, str], Any] = {}


class _Renewed:
    """Renews the job after a loss of ranks: the global set has the surviving ranks, and no other set and no operation remains."""

    order = 0

    def follow(self) -> None:
        names.clear()
        if global_process_set._comm is None:
            return
        for one in _sets.values():
            if one is not global_process_set:
                one.process_set_id = one._comm = None
        _sets.clear()
        _sets[0] = global_process_set
        global_process_set.ranks = list(range(global_process_set._comm.size))


_renewed = _Renewed()
followers.add(_renewed)


def gather_objects(comm: Any, value: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in the order of the ranks."""
    packed = numpy.frombuffer(pickle.dumps(value), numpy.uint8)
    try:
        lengths = numpy.asarray(comm.allgather(numpy.array([len(packed)], numpy.int64), name=name and f"{name}.lengths").wait())
        joined = numpy.asarray(comm.allgather(packed, name=name).wait()).tobytes()
    except KVStoreError as error:
        raise as_horovod_error(error) from None
    ends = numpy.cumsum(lengths).tolist()
    return [pickle.loads(joined[stop - length : stop]) for stop, length in zip(ends, lengths.tolist())]


def broadcast_object(comm: Any, value: Any, root: int, name: str | None = None) -> Any:
    """The object of the rank `root` of `comm`."""
    is_root = comm.rank == root
    packed = numpy.frombuffer(pickle.dumps(value), numpy.uint8) if is_root else numpy.empty(0, numpy.uint8)
    try:
        length = numpy.asarray(comm.broadcast(numpy.array([len(packed)], numpy.int64), root, name=name and f"{name}.length").wait())
        if not is_root:
            packed = numpy.empty(int(length[0]), numpy.uint8)
        got = comm.broadcast(packed, root, name=name).wait()
    except KVStoreError as error:
        raise as_horovod_error(error) from None
    return value if is_root else pickle.loads(numpy.asarray(got).tobytes())
