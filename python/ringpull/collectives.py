"""Collectives without keys: of all ranks of a job, or of a process set."""

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
    """A collective under way. Its input may not be changed, nor its output touched, until :meth:`wait` has returned.

    It goes on if nobody waits for it.
    """

    def __init__(self, called: _native.Called, finish: Callable[[Any, list[int] | None], T]) -> None:
        self._called, self._finish = called, finish
        self._lock = threading.Lock()
        self._result: list[T] = []
        self._raised: BaseException | None = None

    def wait(self, timeout: float | None = None) -> T:
        """The result, when it is there.

        Raises what kept it from coming, and ``TimeoutError`` if that takes longer than ``timeout`` seconds. Another thread may run Python
        meanwhile, and Ctrl-C ends it.
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
        """Returns True if the result is there; then :meth:`wait` returns it. Does not count as a wait, which would
        end a sequence that goes on without messages."""
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
    """A receive under way. Its result is the array that it received into."""

    def __init__(self, called: _native.Called, out: Array) -> None:
        super().__init__(called, self._received)
        self._out, self._source = out, -1

    def _received(self, _made: Any, senders: list[int] | None) -> Array:
        (self._source,) = senders or [-1]
        return self._out

    def source(self) -> int:
        """The rank of the communicator whose message it is, when it is there."""
        self.wait()
        return self._source


class _Group(Operation[list[T]]):
    """Several operations as one."""

    def __init__(self, members: Sequence[Operation[T]]) -> None:
        self._members = members

    def wait(self, timeout: float | None = None) -> list[T]:
        # Each is waited for, also behind one that fails.
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


#: The types of PyTorch that every version of it can say to other libraries.
_OF_DLPACK = {"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "complex32", "complex64", "complex128"}


def _travels(array: Array, is_written: bool = False) -> Array:
    """The array as stores take it: without its history, and under its own name where its library cannot say its
    element type to others."""
    if _is_torch(array):
        import torch

        array = array.detach()
        if not is_written:
            array = array.resolve_conj().resolve_neg()
        name = str(array.dtype).partition(".")[2]
        if name in _OF_DLPACK:
            return array
        # An error for a type that does not travel.
        _native.Named(array, name)
        same_length = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return _native.Named(array.view(same_length[array.element_size()]), name)
    return array


def _like(array: Array, made: _native.Array | None) -> Array:
    """A result as an array of the library and the element type of ``array``. Elements of a type that the buffer
    protocol does not have, or stores do not, came as several of another in one more dimension."""
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
    """The ranks of a job, or some of them, and what they can do together. Made by :func:`communicator` and by :meth:`split`.

    Every method but :meth:`send` and :meth:`recv` is collective: all ranks of the communicator call it, with arguments that fit. Calls with
    a ``name`` go together by it, in whichever order each rank makes them; calls without one go together in the order of the calls. They
    return an :class:`Operation` at once.

    Arrays are anything with the buffer protocol or DLPack in host memory, contiguous: NumPy arrays, torch tensors, JAX arrays as
    inputs. They are borrowed, not copied. Without ``out`` the result is a new array: a torch tensor for a torch tensor, else NumPy's.

    Element types are ``float32``, ``float64``, ``float16``, ``bfloat16``, ``int8``, ``uint8``, ``int32`` and ``int64``, by every reduction.
    ``complex32``, ``complex64`` and ``complex128`` have sums and averages; ``uint32`` and ``uint64`` sums and products, without factors; ``bool``
    has ``max``, which is or, and ``min`` and ``product``, which are and. ``int16``, ``uint16`` and the kinds of ``float8`` only travel: cast
    them to be reduced.

    ``wait`` raises :class:`ringpull.DisagreementError` on every rank of the communicator if the ranks' calls
    of an operation differ, once all have called it; the job goes on. It is an error of the whole job in a
    sequence that has repeated itself and goes on without messages. So is a rank that is lost, or late for too
    long.
    """

    def __init__(self, native: _native.Communicator) -> None:
        self._native = native

    @property
    def rank(self) -> int:
        """This rank's number among those of the communicator, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of its ranks."""
        return self._native.size

    @property
    def ranks(self) -> list[int]:
        """Its ranks by their numbers in the job."""
        return self._native.ranks

    @property
    def local_rank(self) -> int:
        """This rank's number among those of the communicator on its host."""
        return self._native.local[0]

    @property
    def local_size(self) -> int:
        """The number of ranks of the communicator on this host."""
        return self._native.local[1]

    @property
    def cross_rank(self) -> int:
        """This host's number among those that have a rank with this local rank."""
        return self._native.cross[0]

    @property
    def cross_size(self) -> int:
        """The number of hosts that have a rank with this local rank."""
        return self._native.cross[1]

    def split(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of some of its ranks, a process set, numbered there in this order; None on a rank that is not one of them.

        Collective: every rank gives the same. Process sets work beside each other and beside the whole job. Ranks make the sets that they are in
        in one order. Blocks.
        """
        native = self._native.split(list(ranks))
        return None if native is None else Communicator(native)

    def subset(self, ranks: Sequence[int]) -> Communicator:
        """As :meth:`split`, but called by the ranks of the set alone."""
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
        """The ``sum``, ``average``, ``min``, ``max`` or ``product`` of all ranks' arrays, the same bits on each.

        All have one shape and dtype. ``out`` may be the array itself. Inputs are multiplied by ``prescale`` first and the result by
        ``postscale``. An average of integers is rounded towards zero. A higher ``priority`` leaves earlier.
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
        """:meth:`allreduce` of several arrays as one operation, whose result is a list. With a name each has that name and its number.

        An output may be another's input, which is copied first; outputs that share memory are an error.
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
        """This rank's rows of what :meth:`allreduce` would give, without the rest.

        The first dimension is divided: ``lengths[r]`` rows for rank ``r``, the same list on every rank. By default all are as equal as they can
        be, and the first ranks have one row more.
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
        """All ranks' arrays, one behind the other along the first dimension, on every rank.

        First dimensions may differ; the others and the dtype may not. A scalar is one row. ``lengths``, the rows of each rank and the same list on
        every rank, saves a round; only with it there may be an ``out``.
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
        """Gives ``splits[r]`` rows of the array to rank ``r``. The result is what the others have for this rank, in their order, and how many rows
        came from each.

        Without ``splits`` all are equal. ``received_splits`` saves a round where each rank knows what comes: every rank gives it, or none does.
        Without ``splits`` or with ``received_splits`` there may be an ``out``.
        """
        called = self._native.alltoall(
            _travels(array), _list(splits), _list(received_splits), _out(out), _options(name, priority)
        )
        return Operation(called, lambda made, taken: (_result(array, out, made), taken or []))

    def broadcast(
        self, array: Array, root: int, name: str | int | None = None, out: Array = None, priority: int = 0
    ) -> Operation[Any]:
        """The array of rank ``root`` on every rank; with ``out=array`` in place. All have one shape and dtype."""
        options = _options(name, priority)
        return _alike(array, out, self._native.broadcast(_travels(array), root, _out(out), options))

    def barrier(self) -> None:
        """Returns when every rank of the communicator has called it."""
        self._native.barrier()

    def barrier_async(self) -> Operation[None]:
        """A barrier whose :meth:`Operation.wait` returns when every rank has called it. Calls of :meth:`barrier_async`
        go together with each other only."""
        return Operation(self._native.begin_barrier(), lambda _made, _taken: None)

    def send(self, array: Array, to: int, tag: int = 0) -> Operation[None]:
        """Sends the array to rank ``to``, which receives it. Messages of one rank to another with one tag are
        received in the order of the calls."""
        return Operation(self._native.send(_travels(array), to, tag), lambda _made, _taken: None)

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> Receive:
        """Receives into ``out`` what rank ``source`` sends, or, without one, what any rank sends to this one with the tag: as many elements of its dtype.

        Receives take messages in the order of the calls, those from any rank too. Of several ranks that have sent, the one whose message is taken
        is that which rank 0 of the job heard of first.
        """
        return Receive(self._native.recv(_out(out), source, tag), out)

    def join(self) -> int:
        """To be called by a rank that has no data left: until every rank of the job has joined it adds zeros to the sums and averages of others.

        Returns the rank that joined last. Other calls that the other ranks make meanwhile raise on them. Only the
        communicator of the whole job has it. Blocks.
        """
        return self._native.join()

    # What the end of a program asks of it.

    def finish(self) -> None:
        """Does nothing: nothing is left to be done before the program ends."""

    def report_failure(self, why: str) -> None:
        """Tells the other ranks why this one is about to end. Those that wait for it raise an error with the first line of it."""
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
    """An operation whose result has the array's shape."""

    def result(made: Any, _taken: Any) -> Any:
        found = _result(array, out, made)
        shape = getattr(array, "shape", None)
        # A scalar of several elements came as a row.
        return found.reshape(shape) if out is None and shape == () and found.shape != () else found

    return Operation(called, result)


def communicator(timeout: float | None = None) -> Communicator:
    """All ranks of this process's MPI job; without ``mpirun`` it is a job of one.

    The first call, or the first ``dist_sync_mpi`` store, initialises MPI. Collective: it blocks until every
    rank has called it. If it initialises MPI, ``timeout``, in seconds, takes the place of
    ``RINGPULL_TIMEOUT``.
    """
    found = Communicator(inherited.made(lambda: _native.Communicator(timeout)))
    leave_at_exit(found)
    _of_all_ranks.add(found)
    return found


#: Those of all ranks.
_of_all_ranks: weakref.WeakSet[Communicator] = weakref.WeakSet()


def renew() -> None:
    """Gives the communicators of all ranks the ranks that are left of a job that goes on without some. Collective; blocks."""
    native = _native.Communicator(None)
    for found in _of_all_ranks:
        found._native = native
