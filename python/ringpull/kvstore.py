"""The KVStore: MXNet's methods and argument shapes over the native stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, overload

from . import _native, arguments, inherited
from .arguments import pairs
from .errors import ArgumentError
from .optimizers import Optimizer
from .worker import Worker, has_left, in_words, leave_at_exit

__all__ = ["Handle", "KVStore", "Key", "RowSparse", "create", "kinds", "zeros"]

Key = Union[int, str]

#: One key, or several.
Keys = Union[Key, Sequence[Key]]

#: An object with the buffer protocol or ``__dlpack__``: NumPy, MXNet, PyTorch, JAX.
Tensor = Any


class RowSparse:
    """Rows of a tensor of ``shape``: ``rows[i]`` belongs at row ``row_ids[i]``, the other rows are zero.

    Ids need be neither sorted nor unique; rows that are named twice add up when pushed.
    """

    def __init__(self, row_ids: Any, rows: Tensor, shape: Sequence[int]) -> None:
        self.row_ids = [int(row) for row in row_ids]
        self.rows = rows
        self.shape = tuple(shape)


class Handle:
    """Operations under way. Their tensors may not be touched until :meth:`wait` has returned."""

    def __init__(self, native: _native.Handle) -> None:
        self._native = native

    def wait(self, timeout: float | None = None) -> bool:
        """Returns True when every output holds its result, False if that takes longer than ``timeout`` seconds.

        Raises what kept an output from being written. Another thread may run Python meanwhile, and Ctrl-C ends it.
        """
        return self._native.wait(timeout)

    def done(self) -> bool:
        """Returns True if :meth:`wait` would return at once."""
        return self._native.done()


class KVStore(Worker):
    """A key-value store of tensors, shared by the workers of a job. Made by :func:`create`.

    Values pushed for a key are summed, over the list given and over all workers, never averaged. Without an optimizer or
    updater the store's value becomes that sum; with one, it is updated by it. Every worker must init every key once and push
    every key of a step once; the order of keys may differ between workers.

    A method takes one key with its value, or a list of keys with a list of values; in the place of a value may stand a list of
    values (one for each device), which are summed or all written. Tensors are anything with the buffer protocol or DLPack in
    host memory, contiguous: NumPy arrays, MXNet NDArrays, torch tensors, and JAX arrays as inputs. They are borrowed, and
    written in place; ``push`` copies its values first. With those in host memory Ctrl-C ends a call that waits.

    A store on devices takes tensors on its GPUs too, with DLPack or ``__cuda_array_interface__``; the latter are used in the order
    of the stream that they name. Those of torch and CuPy are used in the order of the stream that is
    current when they are given: what is queued there after the call, or after the handle's ``wait()``, comes after the store's work, and no call waits
    for the GPU. With tensors of other libraries the work is done when the call, or ``wait()``, has returned.

    A store belongs to the process that created it. In a forked child its calls raise :class:`ringpull.UnavailableError`, but for ``rank``,
    ``num_workers`` and ``type``. The end of the child does not affect the job.
    """

    def __init__(self, kind: str) -> None:
        self._native: _native.Store = inherited.made(lambda: _native.Store(kind))
        self._updater: Callable[..., None] | None = None
        leave_at_exit(self)

    # What the store is.

    @property
    def type(self) -> str:
        """The kind it was created as."""
        return self._native.kind

    # Values.

    def init(self, key: Keys, value: Any, row_sparse: bool = False) -> None:
        """Gives ``key`` its first value, shape and dtype. Rank 0's value wins. Every worker must init a key once, in any order.

        Copies the value. Ranks that disagree on shape or dtype all get one error from the next call that waits.

        With ``row_sparse`` the key's gradients touch few of its rows, as those of an embedding: ``dist_hybrid`` keeps it on
        the servers. Every worker must say the same.
        """
        for one, values in pairs(key, value):
            if not values:
                raise ArgumentError(f"init of key {one!r} without a value\n  hint: give one")
            self._native.init(one, values[0], row_sparse)

    def push(self, key: Keys, value: Any, priority: int = 0) -> None:
        """Adds the sum of the values to this step's gradient of ``key``. Returns at once.

        It first waits if four pushes of the key are unfinished, or if one is and all unfinished pushes of the store have
        1 GiB together: workers ahead of a slow one would otherwise fill the memory. Ctrl-C ends that wait, and nothing is pushed.

        Values are copied, so they may be changed as soon as it returns; :meth:`pushpull` borrows them. A value may be a
        :class:`RowSparse`. A higher ``priority`` may leave earlier.
        """
        for one, values in pairs(key, value):
            if any(isinstance(v, RowSparse) for v in values):
                rows = [(v.row_ids, v.rows) for v in values]
                self._native.push_rows(one, rows, list(values[0].shape), priority)
            elif values:
                self._native.push(one, values, priority)

    def pull(self, key: Keys, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies the value of ``key``, with every push that this worker has made, into each output. Waits.

        ``ignore_sparse`` is accepted for MXNet's sake: outputs are dense here, so there is nothing to ignore.
        """
        self._native.pull(arguments.outputs(key, out), priority)

    @overload
    def pushpull(
        self, key: Keys, value: Any, out: Any = None, priority: int = 0, wait: Literal[True] = True, keep: bool = True
    ) -> None: ...
    @overload
    def pushpull(
        self, key: Keys, value: Any, out: Any = None, priority: int = 0, *, wait: Literal[False], keep: bool = True
    ) -> Handle: ...
    @overload
    def pushpull(
        self, key: Keys, value: Any, out: Any = None, priority: int = 0, *, wait: bool, keep: bool = True
    ) -> Handle | None: ...
    def pushpull(
        self, key: Keys, value: Any, out: Any = None, priority: int = 0, wait: bool = True, keep: bool = True
    ) -> Handle | None:
        """:meth:`push` of the values and :meth:`pull` into the outputs in one; without ``out`` into the values.

        Waits for the result. With ``wait=False`` it returns a :class:`Handle` at once: neither values nor outputs may be
        touched until its ``wait()`` has returned. Several keys travel together: no key waits
        for the one before it. An argument that is no tensor raises before any key is sent.

        Memory that is given twice, also by views of one array, is found by its address. In one call a value that
        shares memory with another output is copied first; outputs that share some are an error that names their
        keys. A later call on memory that an unfinished one still needs waits for that, so calls on it must come in
        one order on every rank.

        The store keeps a copy of the sum, for a later :meth:`pull`. With ``keep=False`` it may keep none: then only the
        outputs have the sum, and pulling the key is an error until its next ``push``. The value of an optimizer or an
        updater is always kept. Every rank must give the same ``keep``.
        """
        outs = None if out is None else pairs(key, out)
        handle = Handle(self._native.push_pull(pairs(key, value), outs, priority, keep))
        if not wait:
            return handle
        handle.wait()
        return None

    def row_sparse_pull(self, key: Keys, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Row i of an output becomes row ``row_ids[i]`` of the key's value. Waits.

        With a list of outputs, ``row_ids`` is a list of as many.
        """
        for one, each, ids in arguments.rows(key, out, row_ids):
            self._native.pull_rows(one, [int(row) for row in ids], each, priority)

    # What a gradient does to a value.

    def set_optimizer(self, optimizer: Optimizer | str, sharded: bool = False) -> None:
        """Lets an optimizer such as ``ringpull.SGD(learning_rate=0.1)`` apply every push made from now on, on every rank alike or on
        the servers. Called again it changes the hyper-parameters and keeps the states while the rule stays the same.

        With ``sharded`` the states are divided over the ranks of ``dist_sync_mpi``: each rank has those of
        its part of every key, and updates that part for all. As many bytes travel as without it. The store
        then takes no other optimizer, and :meth:`save_optimizer_states` has to be called by every rank. Kinds
        of one process, and those with servers, are as without it.
        """
        if not isinstance(optimizer, (Optimizer, str)):
            raise ArgumentError(
                f"{optimizer!r} is not an optimizer of ringpull\n  hint: give one such as ringpull.SGD(learning_rate=0.1), or"
                " 'sgd,learning_rate=0.1'; MXNet's own optimizers work with stores of ringpull.mxnet"
            )
        if isinstance(optimizer, Optimizer):
            self._native.set_optimizer(optimizer.spec(), sharded, optimizer.lr_mult, optimizer.wd_mult)
        else:
            self._native.set_optimizer(optimizer, sharded)

    @property
    def generation(self) -> int:
        """The number of losses of workers after which the job went on, and with servers of workers that came;
        always 0 without ``RINGPULL_ELASTIC=1``. ``rank`` and ``num_workers`` are those of this generation."""
        return self._native.generation

    def on_change(self, callback: Callable[[int, int, int, list[int]], object]) -> None:
        """Lets ``callback(generation, rank, num_workers, lost)`` know of workers that were lost and that the job goes on
        without; ``lost`` has the numbers that they had until then. With servers also of workers that have come: ``lost`` is empty.

        It is called on the program's thread at the start of its next call of the store, which raises what it raises. It may call
        the store, for example to set another learning rate. Without it the job goes on silently. Sums have fewer contributions from
        then on.
        """
        self._native.on_change(callback)

    def set_updater(self, updater: Callable[[Key, Any, Any], None]) -> None:
        """Lets ``updater(key, received, stored)`` apply every push made from now on: it changes ``stored`` in place.

        Both are NumPy arrays, valid during the call. It runs on a thread of the store, must do the same on every rank, and may not
        call stores. If it raises, every rank gets a :class:`ringpull.UpdaterError`. Kinds with servers have no updaters,
        since code is never sent to a server.
        """
        if not callable(updater):
            raise ArgumentError(f"an updater cannot be a {type(updater).__name__}\n  hint: give a function updater(key, received, stored)")
        import numpy

        def call(key: Key, received: Any, stored: Any) -> None:
            updater(key, numpy.asarray(received), numpy.asarray(stored))

        self._native.set_updater(call)
        self._updater = updater

    _set_updater = set_updater

    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Switches gradient compression on, as ``{"type": "2bit", "threshold": 0.5}`` or in one word, as ``"2bit:0.5"``.

        The types are ``fp16``, ``bf16``, ``2bit`` and ``1bit`` with a ``threshold`` (0.5), ``topk`` with a ``ratio`` (0.01) and a ``momentum`` (0);
        ``none`` switches it off and drops the residuals of compressed gradients.
        """
        self._compress(compression_params)

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states, and the optimizer too if ``dump_optimizer``, to a file, whole or not
        at all. Waits for every push. With a sharded optimizer every rank must call it, and each writes the
        states of all to its file; they can be loaded by any number of ranks, with ``sharded`` or without.
        """
        self._native.save_optimizer_states(os.fspath(fname), dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Reads what :meth:`save_optimizer_states` wrote. Every rank must load the same file."""
        self._native.load_optimizer_states(os.fspath(fname))

    # The job.

    def barrier(self) -> None:
        """Returns when every worker has called it."""
        self._native.barrier()

    _barrier = barrier

    def join(self) -> int:
        """For a worker that has no data left: until every worker has joined, it adds zeros to what the others push.

        It applies to all stores of the process. Returns the rank that joined last. For `dist_sync_mpi` in host memory; with
        `local` it returns at once, other kinds raise. Blocks; collective.
        """
        return self._native.join()

    def wait_all(self) -> None:
        """Returns when everything this worker has called is done; raises the first error that any of it met."""
        self._native.wait_all()

    def finish(self) -> None:
        """Waits for pushes that an updater has yet to apply, before the program ends."""
        if self._updater is not None:
            self.wait_all()

    def close(self) -> None:
        """Leaves the job; done at the end of the program for every store. Later calls raise."""
        self._native.close()
        has_left(self)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        # A program that exits has its reasons, and may have done its work.
        if raised is not None and not isinstance(raised, SystemExit):
            self.report_failure(in_words(raised))
        self.close()

    def __repr__(self) -> str:
        return f"<ringpull.KVStore {self.type}>"


def create(kind: str = "local") -> KVStore:
    """Creates a store of a kind that :func:`kinds` lists, spelled exactly.

    The distributed kinds find their peers by what started the process: ``mpirun`` for ``dist_sync_mpi``, ``ringpull launch`` for
    the kinds with servers. In a server or the scheduler of such a job the process becomes that node, and the call does not
    return. MPI is initialised unless the program has done so (mpi4py), and the library that initialised it finalises it at exit.
    """
    return KVStore(kind)


def kinds() -> list[str]:
    """The kinds of store."""
    return list(_native.KINDS)


def zeros(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """A NumPy array of zeros in memory that the ranks of one host share, for gradients.

    With several ranks on a host, ``pushpull`` sums such arrays in place; others are read and written through
    a window in pieces. This is faster for arrays of 128 KiB and more; :func:`torch.from_numpy` and
    :func:`numpy.ndarray.view` keep the memory.

    A forked child gets a copy, made when it is forked: what it writes is its own, as with any other array. That copy is made at once and takes
    as much memory in each child, so with gigabytes of such arrays start a data loader's workers with ``spawn`` or ``forkserver``.
    """
    import numpy

    kind = numpy.dtype(dtype)
    lens = [int(shape)] if isinstance(shape, int) else [int(length) for length in shape]
    return numpy.asarray(_native.Array(lens, kind.name))
