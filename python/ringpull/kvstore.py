"""The KVStore: MXNet's methods, with MXNet's forms of arguments, on the native stores."""

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

#: One key, or several keys.
Keys = Union[Key, Sequence[Key]]

#: An object with the buffer protocol or ``__dlpack__``: NumPy, MXNet, PyTorch, JAX.
Tensor = Any


class RowSparse:
    """Rows of a tensor of ``shape``: ``rows[i]`` is row ``row_ids[i]`` of the tensor, and all other rows are zero.

    The ids may be unsorted, and may repeat. Rows with the same id add up when they are pushed.
    """

    def __init__(self, row_ids: Any, rows: Tensor, shape: Sequence[int]) -> None:
        self.row_ids = [int(row) for row in row_ids]
        self.rows = rows
        self.shape = tuple(shape)


class Handle:
    """Operations under way. Do not read or write their tensors until :meth:`wait` has returned."""

    def __init__(self, native: _native.Handle) -> None:
        self._native = native

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the results. Returns True when every output holds its result, and False after ``timeout`` seconds.

        Raises the error of an operation that failed. Meanwhile other threads may run Python. Ctrl-C ends the wait.
        """
        return self._native.wait(timeout)

    def done(self) -> bool:
        """Returns True if :meth:`wait` would return at once."""
        return self._native.done()


class KVStore(Worker):
    """A key-value store of tensors, shared by the workers of a job. Made by :func:`create`.

    The values that are pushed for a key are summed, over the given list and over all workers. They are never averaged. Without an
    optimizer or updater the sum becomes the key's value in the store; otherwise the optimizer or updater changes the value by the sum.
    Every worker must init every key once, and push every key of a step once. The order of keys may differ between workers.

    A method takes one key with its value, or a list of keys with a list of values. Each value may itself be a list of values, one for each
    device: inputs of a key are then summed, and outputs of a key are all written. A tensor is any object with the buffer protocol or
    DLPack whose memory is contiguous and on the host: NumPy arrays, MXNet NDArrays, torch tensors, and JAX arrays as inputs. Tensors are
    borrowed, and written in place; ``push`` copies its values first. With tensors in host memory, Ctrl-C ends a call that waits.

    A store on devices also takes tensors on its GPUs, with DLPack or ``__cuda_array_interface__``. A tensor with
    ``__cuda_array_interface__`` is used in the order of the stream that this interface names. Tensors of torch and CuPy are used in the
    order of the stream that is current at the call: work that is queued on that stream after the call, or after the handle's ``wait()``,
    runs after the store's work, and no call waits for the GPU. With tensors of other libraries the work is done when the call, or
    ``wait()``, has returned.

    A store belongs to the process that created it. In a forked child its calls raise :class:`ringpull.UnavailableError`, except ``rank``,
    ``num_workers`` and ``type``. The end of the child does not affect the job.
    """

    def __init__(self, kind: str) -> None:
        self._native: _native.Store = inherited.made(lambda: _native.Store(kind))
        self._updater: Callable[..., None] | None = None
        leave_at_exit(self)

    # Facts about the store.

    @property
    def type(self) -> str:
        """The store's kind, by its name."""
        return self._native.kind

    # Values.

    def init(self, key: Keys, value: Any, row_sparse: bool = False) -> None:
        """Gives ``key`` its first value, shape and dtype. All workers get rank 0's value. Every worker must init a key once, in any order.

        Copies the value. If ranks give different shapes or dtypes, the next call that waits raises the same error on all ranks.

        Give ``row_sparse`` if the key's gradients touch few of its rows, as those of an embedding do: ``dist_hybrid`` keeps such a key on
        the servers. Every worker must give the same ``row_sparse``.
        """
        for one, values in pairs(key, value):
            if not values:
                raise ArgumentError(f"init of key {one!r} without a value\n  hint: give a value")
            self._native.init(one, values[0], row_sparse)

    def push(self, key: Keys, value: Any, priority: int = 0) -> None:
        """Adds the sum of the values to this step's gradient of ``key``. Returns at once.

        It first waits in two cases: if four pushes of the key are unfinished, or if one is unfinished and all unfinished pushes of the
        store have 1 GiB together. Otherwise workers ahead of a slow one would fill the memory. Ctrl-C ends this wait, and nothing is pushed.

        Values are copied, so they may be changed as soon as the call returns; :meth:`pushpull` borrows them instead. A value may be a
        :class:`RowSparse`. Pushes with a higher ``priority`` may be sent earlier.
        """
        for one, values in pairs(key, value):
            if any(isinstance(v, RowSparse) for v in values):
                rows = [(v.row_ids, v.rows) for v in values]
                self._native.push_rows(one, rows, list(values[0].shape), priority)
            elif values:
                self._native.push(one, values, priority)

    def pull(self, key: Keys, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies the value of ``key``, which includes every push that this worker has made, into each output. Waits.

        ``ignore_sparse`` is accepted for MXNet's sake, and changes nothing: all outputs are dense here.
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
        """Does :meth:`push` of the values and :meth:`pull` into the outputs in one. Without ``out`` it pulls into the values.

        Waits for the result. With ``wait=False`` it returns a :class:`Handle` at once: do not read or write the values and the outputs
        until the handle's ``wait()`` has returned. Several keys travel together: no key waits for the key before it. If an argument is no
        tensor, the call raises before any key is sent.

        Memory that is given twice, also through views of one array, is recognised by its address. In one call, a value that
        shares memory with another output is copied first. Outputs that share memory are an error that names their
        keys. If a later call has memory that an unfinished call still needs, it waits for the unfinished call. So all ranks must make calls
        on this memory in the same order.

        The store keeps a copy of the sum for a later :meth:`pull`. With ``keep=False`` it may keep none: then only the
        outputs have the sum, and pulling the key is an error until its next ``push``. With an optimizer or an updater the value is always
        kept. Every rank must give the same ``keep``.
        """
        outs = None if out is None else pairs(key, out)
        handle = Handle(self._native.push_pull(pairs(key, value), outs, priority, keep))
        if not wait:
            return handle
        handle.wait()
        return None

    def row_sparse_pull(self, key: Keys, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Sets row i of the output to row ``row_ids[i]`` of the key's value, for each i. Waits.

        With a list of outputs, ``row_ids`` is a list with one item for each output.
        """
        for one, each, ids in arguments.rows(key, out, row_ids):
            self._native.pull_rows(one, [int(row) for row in ids], each, priority)

    # Updates: the change that a gradient makes to a value.

    def set_optimizer(self, optimizer: Optimizer | str, sharded: bool = False) -> None:
        """Makes an optimizer such as ``ringpull.SGD(learning_rate=0.1)`` apply every push made from now on. It runs on every rank in the
        same way, or on the servers. A later call changes the hyper-parameters; it keeps the states if the rule stays the same.

        With ``sharded`` the states are divided over the ranks of ``dist_sync_mpi``: each rank has the states of
        its part of every key, and updates this part for all ranks. The number of bytes sent is the same as without it. The store
        then takes no other optimizer, and every rank has to call :meth:`save_optimizer_states`. For kinds
        of one process, and for kinds with servers, ``sharded`` changes nothing.
        """
        if not isinstance(optimizer, (Optimizer, str)):
            raise ArgumentError(
                f"{optimizer!r} is not an optimizer of ringpull\n  hint: give an optimizer such as ringpull.SGD(learning_rate=0.1), or"
                " 'sgd,learning_rate=0.1'; MXNet's own optimizers work with stores of ringpull.mxnet"
            )
        if isinstance(optimizer, Optimizer):
            self._native.set_optimizer(optimizer.spec(), sharded, optimizer.lr_mult, optimizer.wd_mult)
        else:
            self._native.set_optimizer(optimizer, sharded)

    @property
    def generation(self) -> int:
        """The generation of the job: the number of losses of workers after which it went on. With servers, each arrival of workers counts
        too. Always 0 without ``RINGPULL_ELASTIC=1``. ``rank`` and ``num_workers`` are those of this generation."""
        return self._native.generation

    def on_change(self, callback: Callable[[int, int, int, list[int]], object]) -> None:
        """Makes the store call ``callback(generation, rank, num_workers, lost)`` when workers were lost and the job goes on without them.
        ``lost`` has the ranks that they had before. With servers it is also called when workers have joined; then ``lost`` is empty.

        The callback runs on the program's thread, at the start of its next call of the store. If it raises, that call raises the same
        error. It may call the store, for example to set another learning rate. Without a callback the job goes on silently. From the loss
        on, sums have fewer contributions.
        """
        self._native.on_change(callback)

    def set_updater(self, updater: Callable[[Key, Any, Any], None]) -> None:
        """Makes ``updater(key, received, stored)`` apply every push made from now on. It changes ``stored`` in place.

        ``received`` and ``stored`` are NumPy arrays, valid during the call. The updater runs on a thread of the store, must do the same on
        every rank, and must not call stores. If it raises, every rank gets a :class:`ringpull.UpdaterError`. Kinds with servers have no
        updaters, since code is never sent to a server.
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
        """Switches gradient compression on. Give ``{"type": "2bit", "threshold": 0.5}``, or the same in one word, ``"2bit:0.5"``.

        The types are ``fp16``; ``bf16``; ``2bit`` and ``1bit``, each with a ``threshold`` (default 0.5); and ``topk`` with a ``ratio`` (default
        0.01) and a ``momentum`` (default 0). ``none`` switches compression off and drops the residuals of compressed gradients.
        """
        self._compress(compression_params)

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file, and the optimizer too if ``dump_optimizer``. If that fails, the file stays as it was.
        Waits for every push. With a sharded optimizer every rank must call it, and each rank writes the states of all ranks to its file.
        Any number of ranks can load such a file, with ``sharded`` or without.
        """
        self._native.save_optimizer_states(os.fspath(fname), dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Reads states that :meth:`save_optimizer_states` wrote. Every rank must load the same file."""
        self._native.load_optimizer_states(os.fspath(fname))

    # The job.

    def barrier(self) -> None:
        """Returns when every worker has called it."""
        self._native.barrier()

    _barrier = barrier

    def join(self) -> int:
        """Adds zeros to the other workers' pushes, until every worker has called this. Call it on a worker that has no data left.

        It applies to all stores of the process. Returns the rank that called it last. It exists for `dist_sync_mpi` in host memory. With
        `local` it returns at once; other kinds raise. Blocks. Collective.
        """
        return self._native.join()

    def wait_all(self) -> None:
        """Waits until every operation that this worker has called is done. Raises the first error of these operations."""
        self._native.wait_all()

    def finish(self) -> None:
        """Waits for pushes that an updater has yet to apply, before the program ends."""
        if self._updater is not None:
            self.wait_all()

    def close(self) -> None:
        """Leaves the job. Later calls raise. At the end of the program every store is closed in this way."""
        self._native.close()
        has_left(self)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        # A program that exits may have done its work, so an exit is not reported as a failure.
        if raised is not None and not isinstance(raised, SystemExit):
            self.report_failure(in_words(raised))
        self.close()

    def __repr__(self) -> str:
        return f"<ringpull.KVStore {self.type}>"


def create(kind: str = "local") -> KVStore:
    """Creates a store of a kind that :func:`kinds` lists, spelled exactly.

    The distributed kinds find their peers by the launcher that started the process: ``mpirun`` for ``dist_sync_mpi``, ``ringpull launch``
    for the kinds with servers. In a process that was started as a server or as the scheduler, the call serves the job in this role and does
    not return. The call initialises MPI unless the program has done so (mpi4py). The library that initialised MPI finalises it at exit.
    """
    return KVStore(kind)


def kinds() -> list[str]:
    """The kinds of store."""
    return list(_native.KINDS)


def zeros(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """A NumPy array of zeros in memory that the ranks of one host share, for gradients.

    With several ranks on a host, ``pushpull`` sums such arrays in place. It copies other arrays piece by piece, through a window of
    shared memory, unless ranks can read each other's memory. Summing in place is faster for arrays of 128 KiB and more. :func:`torch.from_numpy` and
    :func:`numpy.ndarray.view` keep the memory.

    A forked child gets a copy of the array, so its writes do not reach the parent, as with any other array. The copy is made at the fork,
    and takes the array's whole size in each child. So with gigabytes of such arrays start a data loader's workers with ``spawn`` or
    ``forkserver``.
    """
    import numpy

    kind = numpy.dtype(dtype)
    lens = [int(shape)] if isinstance(shape, int) else [int(length) for length in shape]
    return numpy.asarray(_native.Array(lens, kind.name))
