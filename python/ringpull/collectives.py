"""Collectives without keys, over all ranks of a job or over a process set."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from . import _native, inherited
from .errors import ArgumentError
from .worker import leave_at_exit

__all__ = ["Communicator", "Operation", "Receive", "communicator"]

#: An object with the buffer protocol or ``__dlpack__``: NumPy, PyTorch, JAX.
Array = Any

T = TypeVar("T")


class Operation(Generic[T]):
    """A collective under way. Do not change its input, and do not read or write its output, until :meth:`wait` has returned.

    The collective goes on even if nobody waits for it.
    """

    def __init__(self, called: _native.Called, finish: Callable[[Any, list[int] | None], T]) -> None:
        self._called, self._finish = called, finish
        self._lock = threading.Lock()
        self._result: list[T] = []
        self._raised: BaseException | None = None

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result and returns it.

        Raises the error of a collective that failed, and ``TimeoutError`` if the result takes longer than ``timeout`` seconds. Meanwhile
        other threads may run Python. Ctrl-C ends the wait.
        """
        with self._lock:
            if not self._result:
                if self._raised is not None:
                    raise self._raised
                try:
                    given = self._called.wait(timeout)
                except RuntimeError as error:
                    self._raised = error
                    raise
                if given is None:
                    raise TimeoutError(f"the collective was not done within {timeout} s")
                self._result.append(self._finish(*given))
            return self._result[0]

    def done(self) -> bool:
        """Returns True if :meth:`wait` would return or raise at once."""
        return bool(self._result) or self._raised is not None or self._called.done()

    def _take(self) -> bool:
        """Returns True if the result is there; then :meth:`wait` returns it. Unlike a wait, this does not end a sequence of calls that runs
        without messages."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._result or self._raised is not None:
                return True
            given = self._called.take()
            if given is not None:
                self._result.append(self._finish(*given))
            return given is not None
        except RuntimeError as error:
            self._raised = error
            return True
        finally:
            self._lock.release()


class Receive(Operation[Any]):
    """A receive under way. Its result is the array into which it has received."""

    def __init__(self, called: _native.Called, out: Array) -> None:
        super().__init__(called, self._received)
        self._out, self._source = out, -1

    def _received(self, _made: Any, senders: list[int] | None) -> Array:
        (self._source,) = senders or [-1]
        return self._out

    def source(self) -> int:
        """The rank, in the communicator, that sent the message. Waits for the message."""
        self.wait()
        return self._source


class _Group(Operation[list[T]]):
    """Several operations that are waited for as one."""

    def __init__(self, members: Sequence[Operation[T]]) -> None:
        self._members = members

    def wait(self, timeout: float | None = None) -> list[T]:
        # All operations are waited for, also after one of them has failed.
        raised, results = None, []
        for member in self._members:
            try:
                results.append(member.wait(timeout))
            except (RuntimeError, TimeoutError) as error:
                raised = raised or error
        if raised is not None:
            raise raised
        return results

    def done(self) -> bool:
        return all(member.done() for member in self._members)


def _is_torch(array: Array) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


#: The element types that every version of PyTorch can pass to other libraries by DLPack.
_OF_DLPACK = {"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "complex32", "complex64", "complex128"}


def _travels(array: Array, is_written: bool = False) -> Array:
    """The array in the form that stores take: detached from its graph. If its library cannot pass the element type to other libraries, the
    result carries the type's name."""
    if _is_torch(array):
        import torch

        array = array.detach()
        if not is_written:
            array = array.resolve_conj().resolve_neg()
        name = str(array.dtype).partition(".")[2]
        if name in _OF_DLPACK:
            return array
        # Raises an error if arrays of this type cannot be sent.
        _native.Named(array, name)
        same_length = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return _native.Named(array.view(same_length[array.element_size()]), name)
    return array


def _like(array: Array, made: _native.Array | None) -> Array:
    """Turns a result into an array of the library and the element type of ``array``. If the buffer protocol or the stores do not have this
    type, each element of the result is a row of elements of another type, in an extra last dimension."""
    import numpy

    found: Any = numpy.asarray(made)
    dtype: Any = getattr(array, "dtype", None)
    length = found.itemsize
    if _is_torch(array):
        import torch

        found, own_length = torch.from_numpy(found), array.element_size()
    elif isinstance(dtype, numpy.dtype):
        own_length = dtype.itemsize
    else:
        return found
    if found.dtype == dtype:
        return found
    found = found.view(dtype)
    return found if own_length == length else found.reshape(found.shape[:-1])


class Communicator:
    """The ranks of a job, or some of them, and their collectives. Made by :func:`communicator` and by :meth:`split`.

    Every method but :meth:`send` and :meth:`recv` is collective: all ranks of the communicator call it, with arguments that fit together.
    Calls with the same ``name`` belong together, even if ranks make them in different orders. Calls without a name belong together in the
    order of the calls. The calls return an :class:`Operation` at once.

    An array is any object with the buffer protocol or DLPack whose memory is contiguous and on the host: NumPy arrays, torch tensors, and
    JAX arrays as inputs. Arrays are borrowed, not copied. Without ``out`` the result is a new array: a torch tensor if the input is one,
    else a NumPy array.

    Every reduction takes the element types ``float32``, ``float64``, ``float16``, ``bfloat16``, ``int8``, ``uint8``, ``int32`` and
    ``int64``. ``complex32``, ``complex64`` and ``complex128`` have sums and averages. ``uint32`` and ``uint64`` have sums and products,
    without factors. ``bool`` has ``max``, which is logical OR, and ``min`` and ``product``, which are logical AND. ``int16``, ``uint16`` and
    the kinds of ``float8`` cannot be reduced, only sent; cast them to another type to reduce them.

    If the ranks' calls of an operation differ, ``wait`` raises :class:`ringpull.DisagreementError` on every rank of the communicator once
    all ranks have called, and the job goes on. Three faults are errors of the whole job: different calls in a sequence that has repeated
    itself and runs without messages, a rank that is lost, and a rank that is late for too long.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native

    @property
    def rank(self) -> int:
        """This rank's number in the communicator, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of ranks of the communicator."""
        return self._native.size

    @property
    def ranks(self) -> list[int]:
        """The communicator's ranks, as their numbers in the job."""
        return self._native.ranks

    @property
    def local_rank(self) -> int:
        """This rank's number among the communicator's ranks on its host."""
        return self._native.local[0]

    @property
    def local_size(self) -> int:
        """The number of ranks of the communicator on this host."""
        return self._native.local[1]

    @property
    def cross_rank(self) -> int:
        """This host's number among the hosts that have a rank with this local rank."""
        return self._native.cross[0]

    @property
    def cross_size(self) -> int:
        """The number of hosts that have a rank with this local rank."""
        return self._native.cross[1]

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of some of this one's ranks: a process set. The ranks are numbered in the given order. Returns None on a rank that
        is not in the set.

        Collective: all ranks give the same list. Process sets can work at the same time as each other and as the whole job. Ranks that are
        in several sets together must make these in the same order. Blocks.
        """
        native = self._native.split(list(ranks))
        return None if native is None else Communicator(native)

    def subset(self, ranks: Sequence[int]) -> Communicator:
        """Does as :meth:`split`, but only the ranks of the set call it."""
        return Communicator(self._native.subset(list(ranks)))

    def allreduce(
        self,
        array: Array,
        op: str = "sum",
        name: str | int | None = None,
        out: Array = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        priority: int = 0,
    ) -> Operation[Any]:
        """The ``sum``, ``average``, ``min``, ``max`` or ``product`` of all ranks' arrays. All ranks get the same bits.

        The arrays of all ranks have one shape and one dtype. ``out`` may be the array itself. Inputs are multiplied by ``prescale``, and the
        result by ``postscale``. An average of integers is rounded towards zero. Operations with a higher ``priority`` are sent earlier.
        """
        options = _options(name, priority, prescale, postscale)
        return _alike(array, out, self._native.allreduce(_travels(array), op, _out(out), options))

    def grouped_allreduce(
        self,
        arrays: Sequence[Array],
        op: str = "sum",
        name: str | int | None = None,
        outs: Sequence[Array] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        priority: int = 0,
    ) -> Operation[list[Any]]:
        """:meth:`allreduce` of several arrays as one operation, whose result is a list. If a name is given, each array's name is that name
        with the array's number.

        An output may be the input of another array; that input is then copied first. Outputs that share memory are an error.
        """
        places = [None] * len(arrays) if outs is None else list(outs)
        if len(places) != len(arrays):
            raise ArgumentError(f"grouped_allreduce of {len(arrays)} arrays with {len(places)} outputs\n  hint: give one for each")
        names = [None if name is None else f"{name}.{at}" for at in range(len(arrays))]
        options = [_options(each, priority, prescale, postscale) for each in names]
        outputs = [_out(out) for out in places]
        called = self._native.grouped_allreduce([_travels(array) for array in arrays], op, outputs, options)
        return _Group([_alike(array, out, one) for array, out, one in zip(arrays, places, called)])

    def reduce_scatter(
        self,
        array: Array,
        op: str = "sum",
        lengths: Sequence[int] | None = None,
        name: str | int | None = None,
        out: Array = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        priority: int = 0,
    ) -> Operation[Any]:
        """This rank's rows of the result that :meth:`allreduce` would give.

        The first dimension is divided over the ranks: rank ``r`` gets ``lengths[r]`` rows. The list is the same on every rank. By default the
        rows are divided equally; if this is not possible, the first ranks get one row more than the others.
        """
        options = _options(name, priority, prescale, postscale)
        return _operation(array, out, self._native.reduce_scatter(_travels(array), op, _list(lengths), _out(out), options))

    def allgather(
        self,
        array: Array,
        name: str | int | None = None,
        lengths: Sequence[int] | None = None,
        out: Array = None,
        priority: int = 0,
    ) -> Operation[Any]:
        """All ranks' arrays, concatenated along the first dimension. Every rank gets the result.

        The arrays may differ in the first dimension, but not in other dimensions or in the dtype. A scalar counts as one row. ``lengths`` is
        the list of the numbers of rows of all ranks, the same list on every rank. It saves a round of messages. ``out`` is allowed only
        with ``lengths``.
        """
        options = _options(name, priority)
        return _operation(array, out, self._native.allgather(_travels(array), _list(lengths), _out(out), options))

    def alltoall(
        self,
        array: Array,
        splits: Sequence[int] | None = None,
        name: str | int | None = None,
        received_splits: Sequence[int] | None = None,
        out: Array = None,
        priority: int = 0,
    ) -> Operation[tuple[Any, list[int]]]:
        """Sends ``splits[r]`` rows of the array to each rank ``r``. The result is a pair: the rows that the ranks have sent to this one, in the
        order of the ranks, and the number of rows from each rank.

        Without ``splits`` each rank gets the same number of rows. ``received_splits`` is the number of rows that come from each rank. It saves
        a round of messages, and is given by all ranks or by none. ``out`` is allowed without ``splits``, or with ``received_splits``.
        """
        called = self._native.alltoall(
            _travels(array), _list(splits), _list(received_splits), _out(out), _options(name, priority)
        )
        return Operation(called, lambda made, taken: (_result(array, out, made), taken or []))

    def broadcast(
        self, array: Array, root: int, name: str | int | None = None, out: Array = None, priority: int = 0
    ) -> Operation[Any]:
        """The array of rank ``root``, on every rank. With ``out=array`` it works in place. The arrays of all ranks have one shape and dtype."""
        options = _options(name, priority)
        return _alike(array, out, self._native.broadcast(_travels(array), root, _out(out), options))

    def barrier(self) -> None:
        """Returns when every rank of the communicator has called it."""
        self._native.barrier()

    def barrier_async(self) -> Operation[None]:
        """Begins a barrier. Its :meth:`Operation.wait` returns when every rank has called :meth:`barrier_async`. A call of :meth:`barrier` does
        not count as such a call."""
        return Operation(self._native.begin_barrier(), lambda _made, _taken: None)

    def send(self, array: Array, to: int, tag: int = 0) -> Operation[None]:
        """Sends the array to rank ``to``, which has to call :meth:`recv`. Messages between the same two ranks with the same tag are received in
        the order of the calls."""
        return Operation(self._native.send(_travels(array), to, tag), lambda _made, _taken: None)

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> Receive:
        """Receives a message with this tag into ``out``: from rank ``source``, or from any rank if no source is given. The message must have the
        dtype and the number of elements of ``out``.

        Receives take messages in the order of the calls; this also holds for receives from any rank. If several ranks have sent, a receive from
        any rank takes the message of which rank 0 of the job heard first.
        """
        return Receive(self._native.recv(_out(out), source, tag), out)

    def join(self) -> int:
        """Adds zeros to the other ranks' sums and averages, until every rank of the job has called this. Call it on a rank that has no data
        left.

        Returns the rank that called it last. If the other ranks call other collectives meanwhile, these raise. Only the
        communicator of the whole job has this method. Blocks.
        """
        return self._native.join()

    # The methods that are called at the end of a program.

    def finish(self) -> None:
        """Does nothing: a communicator has nothing to do before the program ends."""

    def report_failure(self, why: str) -> None:
        """Tells the other ranks the reason why this rank is about to end. Ranks that wait for it raise an error with the first line of ``why``."""
        self._native.report_failure(why)

    def close(self) -> None:
        """Does nothing: the job ends with the program."""

    def __repr__(self) -> str:
        return f"<ringpull.Communicator rank {self.rank} of {self.size}>"


def _options(
    name: str | int | None, priority: int, prescale: float = 1.0, postscale: float = 1.0
) -> dict[str, Any]:
    return {"name": name, "priority": priority, "prescale": prescale, "postscale": postscale}


def _list(lengths: Sequence[int] | None) -> list[int] | None:
    return None if lengths is None else [int(length) for length in lengths]


def _out(out: Array) -> Array:
    return None if out is None else _travels(out, is_written=True)


def _result(array: Array, out: Array, made: _native.Array | None) -> Array:
    return _like(array, made) if out is None else out


def _operation(array: Array, out: Array, called: _native.Called) -> Operation[Any]:
    return Operation(called, lambda made, _taken: _result(array, out, made))


def _alike(array: Array, out: Array, called: _native.Called) -> Operation[Any]:
    """An operation under way whose result has the array's shape."""

    def result(made: Any, _taken: Any) -> Any:
        found = _result(array, out, made)
        shape = getattr(array, "shape", None)
        # A scalar that travelled as several elements has come back as a row.
        return found.reshape(shape) if out is None and shape == () and found.shape != () else found

    return Operation(called, result)


def communicator(timeout: float | None = None) -> Communicator:
    """The communicator of all ranks of this process's MPI job. Without ``mpirun`` the job has one rank.

    The first call, or the first ``dist_sync_mpi`` store, initialises MPI. Collective: it blocks until every
    rank has called it. In the call that initialises MPI, ``timeout``, in seconds, replaces ``RINGPULL_TIMEOUT``.
    """
    found = Communicator(inherited.made(lambda: _native.Communicator(timeout)))
    leave_at_exit(found)
    _of_all_ranks.add(found)
    return found


#: The communicators of all ranks of the job.
_of_all_ranks: weakref.WeakSet[Communicator] = weakref.WeakSet()


def renew() -> None:
    """Gives the surviving ranks to the communicators of all ranks, after a job has lost ranks. Collective. Blocks."""
    native = _native.Communicator(None)
    for found in _of_all_ranks:
        found._native = native
