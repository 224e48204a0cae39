"""The state of an elastic job, its commits, and the restart from them."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from .. import _native
from ..collectives import Communicator, communicator
from ..errors import ArgumentError, FileError
from .in_place import Survivors
from .packing import packed, unpacked
from .snapshots import Key, Snapshots

__all__ = ["HostsUpdatedInterrupt", "State", "generation", "run"]

T = TypeVar("T")

#: Pairs of methods by which objects write a file and read it again: stores, Gluon's trainers, Gluon's blocks.
_FILES = (("save_optimizer_states", "load_optimizer_states"), ("save_states", "load_states"), ("save_parameters", "load_parameters"))


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed, so the job must be started again. :meth:`State.commit` raises it on
    every rank; :func:`run` handles it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of this elastic job have changed, and it is to be started again\n  hint: let ringpull.elastic.run call the function that commits")
        self.skip_sync = skip_sync


def generation() -> int:
    """The number of earlier starts of this elastic job; 0 in a job that is not elastic."""
    found = _native.elastic()
    return 0 if found is None else found[1]


#: The survivors of each call of :func:`run` that is under way.
_running: list[Survivors] = []


def _ranks() -> Communicator:
    """The ranks of the job. Inside :func:`run` they are the ranks that it saw last. So after a loss all calls
    of a rank fail until it is back in :func:`run`."""
    return _running[-1].whole if _running else communicator()


def place() -> tuple[int, int]:
    """This rank and the number of ranks."""
    whole = _ranks()
    return whole.rank, whole.size


#: The state that owns the job's snapshots.
_owner: list[State] = []


class State:
    """The state that a program needs to go on: objects by name, which become attributes.

    Give it the objects that are the same on every rank: weights, optimizer states, step counts, a
    :class:`Sampler`. An object with ``state_dict`` and ``load_state_dict`` is saved by these methods, Gluon's
    blocks and trainers by their own files. Of a :class:`ringpull.KVStore` only the optimizer's states are
    saved; call ``init`` for its values again. Arrays of NumPy, MXNet and PyTorch are restored in place.
    Everything else is pickled, and restored by setting the attribute.
    """

    #: The state that :meth:`restore` uses if there is no snapshot.
    _kept: bytes | memoryview | None = None
    _snapshots: Snapshots | None = None
    #: The difference between the numbers of the next commit and the last one.
    _stride = 1

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """One of the state's objects, by its name."""

    def __init__(self, **objects: Any) -> None:
        taken = [name for name in objects if name.startswith("_") or hasattr(State, name)]
        if taken:
            raise ArgumentError(f"a state has an object named {taken[0]}\n  hint: give it another name")
        self._names = list(objects)
        self._callbacks: list[Callable[[], Any]] = []
        #: The number of the last commit.
        self._key: Key = (generation(), 0)
        for name, value in objects.items():
            setattr(self, name, value)
        found = _native.elastic()
        if found is not None:
            if _owner:
                raise ArgumentError("an elastic job has one State, but this program has two\n  hint: give one State all objects")
            self._snapshots = Snapshots(*found)
            _owner.append(self)

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Makes :func:`run` call these functions after a restart, when the state has been loaded. They adapt everything
        that depends on the number of ranks."""
        self._callbacks += callbacks

    def commit(self) -> None:
        """Saves the state. Raises :class:`HostsUpdatedInterrupt` on every rank if the hosts have changed.

        In an elastic job it is collective, and all ranks must have done the same steps. It returns when the
        state is in the memory of every host. After a later loss the job goes on from here.
        """
        self.save()
        self.check_host_updates()

    def save(self) -> None:
        """Saves the state like :meth:`commit`, but does not check the hosts. Collective in an elastic job."""
        if self._snapshots is None:
            self._kept = b"".join(packed(self._saved()))
            return
        whole = _ranks()
        key = (self._snapshots.generation, self._key[1] + self._stride)
        values = self._saved()
        if whole.local_rank == 0:
            self._snapshots.prepare()
            self._snapshots.write(key, packed(values))
        # No rank may be two commits ahead of a rank that has not written.
        whole.barrier()
        self._key, self._kept, self._stride = key, None, 1

    def check_host_updates(self) -> None:
        """Raises :class:`HostsUpdatedInterrupt` on every rank if the hosts have changed. Collective in an
        elastic job."""
        if self._snapshots is None:
            return
        whole = _ranks()
        changed = numpy.array([whole.rank == 0 and self._snapshots.has_changed()], numpy.int32)
        whole.broadcast(changed, 0, name="ringpull.elastic.changed", out=changed).wait()
        if changed[0]:
            # The job is to be started again, however the program ends now.
            if whole.rank == 0:
                self._snapshots.ask_for_restart()
            raise HostsUpdatedInterrupt

    def _rewind(self) -> None:
        """Restores the state like :meth:`restore`, if it is kept in this process."""
        if self._kept is not None:
            self._load(unpacked(self._kept))

    def restore(self) -> None:
        """Restores the state of this process's last commit or :meth:`sync`. Does nothing if there was
        neither."""
        content = self._kept
        if content is None and self._snapshots is not None and self._key[1] > 0:
            content = self._snapshots.read(self._key)
            if content is None:
                raise FileError(f"the snapshot of the last commit is gone from {self._snapshots.folder}, or damaged\n  hint: end the process; the job goes on from the commit before")
        if content is not None:
            self._load(unpacked(content))

    def sync(self) -> None:
        """Gives every rank the state of rank 0, and keeps it for :meth:`restore` until the first commit.
        Collective."""
        whole = _ranks()
        self._kept = _broadcast(whole, b"".join(packed(self._saved())) if whole.rank == 0 else None, 0)
        # Rank 0 loads the state too, because a sampler divides the remaining samples when it is loaded.
        self._load(unpacked(self._kept))

    def resume(self) -> bool:
        """Gives every rank the state of the job's newest commit, whichever host has it. Collective.

        Returns True if there was a commit. If there was none, every rank gets the state of rank 0.
        """
        if self._snapshots is None:
            self.sync()
            return False
        whole, own = _ranks(), (-1, -1)
        content: bytes | memoryview | None = None
        for own in self._snapshots.keys():
            content = self._snapshots.read(own)
            if content is not None:
                break
        have = numpy.array([own if content is not None else (-1, -1)], numpy.int64)
        every = whole.allgather(have, name="ringpull.elastic.newest", lengths=[1] * whole.size).wait()
        keys: list[Key] = [(int(made), int(number)) for made, number in every]
        newest = max(keys)
        if newest[0] < 0:
            self.sync()
            return False
        if any(key != newest for key in keys):
            content = _broadcast(whole, content, keys.index(newest))
            if whole.local_rank == 0 and own != newest:
                self._snapshots.prepare()
                self._snapshots.write(newest, [content])
        assert content is not None
        # No rank replaces the file before the other ranks of its host have read it.
        whole.barrier()
        self._key, self._kept = newest, None
        self._load(unpacked(content))
        return True

    # The objects.

    def _saved(self) -> dict[str, Any]:
        return {name: _saved(getattr(self, name)) for name in self._names}

    def _load(self, values: dict[str, Any]) -> None:
        for name in self._names:
            if name in values:
                self._load_one(name, values[name])

    def _load_one(self, name: str, value: Any) -> None:
        own = getattr(self, name)
        files = _files(own)
        if hasattr(own, "load_state_dict"):
            own.load_state_dict(value)
        elif files is not None:
            with tempfile.TemporaryDirectory(prefix="ringpull-") as folder:
                file = pathlib.Path(folder, "state")
                file.write_bytes(value)
                getattr(own, files[1])(os.fspath(file))
        elif type(own).__module__.startswith("mxnet.") and hasattr(own, "shape") and own.shape == value.shape:
            own[:] = value
        elif type(own).__module__.startswith("torch") and hasattr(own, "copy_") and own.shape == value.shape and own.dtype == value.dtype:
            # The tensor is written in place, because models and optimizers hold it. It may be a leaf of an
            # autograd graph.
            own.data.copy_(value)
        elif isinstance(own, numpy.ndarray) and isinstance(value, numpy.ndarray) and own.flags.writeable and (own.shape, own.dtype) == (value.shape, value.dtype):
            own[...] = value
        else:
            setattr(self, name, value)


def _files(value: Any) -> tuple[str, str] | None:
    """The names of the methods by which an object writes a file and reads it."""
    return next((pair for pair in _FILES if all(callable(getattr(value, name, None)) for name in pair)), None)


def _saved(value: Any) -> Any:
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    files = _files(value)
    if files is None:
        return value
    with tempfile.TemporaryDirectory(prefix="ringpull-") as folder:
        file = pathlib.Path(folder, "state")
        getattr(value, files[0])(os.fspath(file))
        return file.read_bytes()


def _broadcast(whole: Communicator, content: bytes | memoryview | None, root: int) -> bytes | memoryview:
    """Sends the bytes that rank ``root`` has to every rank, and returns them."""
    length = numpy.array([0 if content is None else len(content)], numpy.int64)
    whole.broadcast(length, root, name="ringpull.elastic.length", out=length).wait()
    if whole.rank == root and content is not None:
        whole.broadcast(numpy.frombuffer(content, numpy.uint8), root, name="ringpull.elastic.state").wait()
        return content
    got = numpy.empty(int(length[0]), numpy.uint8)
    whole.broadcast(got, root, name="ringpull.elastic.state", out=got).wait()
    return got.data


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes a function, whose first argument is a :class:`State`, go on from the newest commit when the job
    is started again.

    First it loads the newest commit. If there is none, it gives every rank the state of rank 0. After a
    restart it calls the callbacks of :meth:`State.register_reset_callbacks`. After a change of hosts it ends
    the process at the next commit, and the launcher starts the job again. Other errors are raised unchanged.
    They end the ranks, and the launcher starts the job again too.

    With ``ringpull launch --elastic --in-place`` it does all these steps again after a loss, in the same process.
    Communicators of all ranks then have only the surviving ranks. A rank whose function raises an error
    of its own leaves the job. If the process has a store, the loss is an error, and the job starts again.
    """

    @functools.wraps(func)
    def called(state: State, *arguments: Any, **options: Any) -> T:
        survivors, has_begun = Survivors(), generation() > 0
        _running.append(survivors)
        try:
            while True:
                try:
                    state.resume()
                    if has_begun:
                        for callback in state._callbacks:
                            callback()
                    return func(state, *arguments, **options)
                except HostsUpdatedInterrupt:
                    raise SystemExit(0) from None
                except Exception:
                    # Errors of any class are caught, because the program may have raised its own error from
                    # that of a loss.
                    if not survivors.go_on():
                        survivors.leave()
                        raise
                    # This matters without a snapshot: rank 0 may be in the middle of a step since its last
                    # commit.
                    state._rewind()
                    # A lost rank may have written the next commit, which no other rank has.
                    state._stride = 2
                has_begun = True
        finally:
            _running.pop()

    return called
