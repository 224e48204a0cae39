"""The KVStore that MXNet sees.

Nothing here waits for communication. A call enqueues copies and operations in MXNet's dependency engine and returns. A program that
reads an output waits, as with every operation of MXNet. Only ``init`` and row-sparse operations wait, for their inputs.

With an optimizer of MXNet, or an updater, the store sums gradients, and every rank runs the updater on the sum by ordinary
operations of MXNet. So learning rates change at once, and states can be saved. With servers, or with an optimizer of
``ringpull``, the store runs the optimizer and holds the value.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import mxnet
import numpy
from mxnet import autograd
from mxnet.base import MXNetError

from .. import _native, arguments, optimizers, uncaught
from ..arguments import pairs
from ..errors import ArgumentError, KVStoreError, UnknownKeyError, UnsupportedError
from ..place import waits_in
from ..worker import Worker, close_stores, leave, leave_at_exit
from .optimizer import StoredOptimizer, mapped
from .slot import Slot, dtype_name

__all__ = ["MXNetKVStore", "as_mxnet_error"]


uncaught.knows(_native.DependencyEngine.fault)


def _end_mxnet() -> None:
    """Ends MXNet as MXNet itself does, and ignores the error that it raises: an operation's error has been raised or printed before."""
    try:
        mxnet.base._notify_shutdown()
    except MXNetError as error:
        if uncaught.ours(error) is None:
            raise


# MXNet's own exit handler drops operations that its engine has not begun. It is registered again before our stores register
# theirs, because the handler that is registered last runs first.
atexit.unregister(mxnet.base._notify_shutdown)
atexit.register(_end_mxnet)
atexit.register(close_stores)

#: Functions of MXNet that wait for its engine, and so for the store's operations in it.
_WAITS = {"asnumpy", "asscalar", "item", "wait_to_read", "waitall"}
waits_in("mxnet", _WAITS.__contains__)


def _record_waits() -> None:
    """Makes the timeline, if there is one, record the times in which the program waits in MXNet."""
    if _native.timeline_ns() is None or hasattr(mxnet.nd.NDArray.wait_to_read, "_of_ringpull"):
        return

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            since = _native.timeline_ns()
            try:
                return function(*args, **keywords)
            finally:
                if since is not None:
                    _native.record_wait(since)

        call._of_ringpull = True  # type: ignore[attr-defined]
        return call

    for owner, name in (mxnet.nd.NDArray, "wait_to_read"), (mxnet.nd.NDArray, "asnumpy"), (mxnet.nd, "waitall"):
        setattr(owner, name, recorded(getattr(owner, name)))


_mxnet_classes: dict[str, type[KVStoreError]] = {}


def as_mxnet_error(error: KVStoreError) -> KVStoreError:
    """The error in a form that ``except MXNetError`` catches too."""
    if issubclass(type(error), MXNetError):
        return error
    kind = type(error)
    if kind.__name__ not in _mxnet_classes:
        names = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        _mxnet_classes[kind.__name__] = cast("type[KVStoreError]", type(kind.__name__, (kind, MXNetError), names))
    raised: KVStoreError = _mxnet_classes[kind.__name__](*error.args)
    raised.__dict__.update(error.__dict__)
    return raised


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of the store: autograd does not record it, and its errors are also MXNet errors."""

    @functools.wraps(function)
    def call(self: MXNetKVStore, *args: Any, **keywords: Any) -> Any:
        try:
            with autograd.pause(train_mode=autograd.is_training()):
                return function(self, *args, **keywords)
        except KVStoreError as error:
            raise as_mxnet_error(error) from None

    return call


class MXNetKVStore(Worker, mxnet.kvstore.KVStore):  # type: ignore[misc]  # MXNet has no types
    """A store of ringpull with the methods of ``mxnet.kvstore.KVStore``. Made by ``mx.kv.create``."""

    kind = "local"

    def __init__(self) -> None:
        # MXNet's own constructor needs a handle of its C API, and this store has none.
        self.handle = None
        self._updater: Any = None
        self._slots: dict[Any, Slot] = {}
        self._last_sent: tuple[Any, ...] = ()
        self._is_p3 = False
        try:
            self._native = _native.Store(self.kind)
        except KVStoreError as error:
            raise as_mxnet_error(error) from None
        _record_waits()
        self._has_servers = self.kind.startswith("dist") and self.kind != "dist_sync_mpi"
        #: True if the store itself runs the optimizer and holds the value.
        self._stored = self._has_servers
        self._sharded = False
        self._closing = _Closing(self._native)
        leave_at_exit(self._closing)

    def __del__(self) -> None:
        # Like MXNet's own stores, this one ends after the operations that the engine has not begun yet.
        closing = getattr(self, "_closing", None)
        if closing is not None:
            leave(closing)

    # Facts about the store.

    @property
    def type(self) -> str:
        """The name by which the store was created."""
        return type(self).__name__

    # Values.

    @_method
    def init(self, key: Any, value: Any) -> None:
        """Gives keys their first values; rank 0's values count. Row-sparse values are for the servers of ``dist_hybrid``."""
        for one, values in self._pairs(key, value):
            dense = _dense(values[0])
            self._native.init(one, dense.asnumpy(), values[0].stype == "row_sparse")
            slot = Slot(self._native, one, dense)
            self._slots[one] = slot
            slot.submit("pull")

    @_method
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Adds the sum of each key's values to its gradient."""
        for one, values in self._pairs(key, value):
            if values:
                self._push(self._checked(one, "push", values), values, priority, "push")

    @_method
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies keys' values into outputs. Does not change row-sparse outputs, unless ``ignore_sparse`` is false."""
        for one, outs in self._fit(arguments.outputs(key, out)):
            slot = self._checked(one, "pull", outs, any_dtype=True)
            dense = [o for o in outs if o.stype == "default"]
            if self._stored and (dense or (outs and not ignore_sparse)):
                slot.submit("pull", priority)
            self._hand_out(slot, dense)
            for sparse in (o for o in outs if o.stype != "default"):
                if ignore_sparse:
                    logging.info("pull of key %r into a %s array is ignored: use row_sparse_pull", one, sparse.stype)
                else:
                    slot.value.astype(sparse.dtype).tostype(sparse.stype).copyto(sparse)

    @_method
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Does ``push`` and ``pull`` in one. Without ``out`` it pulls into the values."""
        outs_of = [outs for _, outs in self._pairs(key, value if out is None else out)]
        work = []
        for (one, values), outs in zip(self._pairs(key, value), outs_of, strict=True):
            self._checked(one, "pushpull", outs)
            work.append((self._checked(one, "pushpull", values), values, outs))
        # Every value is read before an output is written: an output of one key may be a value of another.
        for slot, values, _ in work:
            if values:
                self._push(slot, values, priority, "pushpull")
        for slot, values, outs in work:
            if values:
                self._hand_out(slot, outs)

    @_method
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copies the rows that ``row_ids`` names from the key's value into the outputs, which are row-sparse. The outputs get no other rows."""
        for one, sparse, ids in arguments.rows(key, out, row_ids):
            self._pull_rows(self._checked(one, "row_sparse_pull", [sparse], any_dtype=True), sparse, ids, priority)

    # Updates: the change that a gradient makes to a value.

    @_method
    def set_optimizer(self, optimizer: Any, sharded: bool | None = None) -> None:
        """Makes an optimizer of MXNet, or one of ``ringpull``, apply every push made from now on.

        With ``sharded`` each rank of ``dist_sync_mpi`` has the states of its part of every key: see
        ``ringpull.KVStore``. The store then runs the optimizer itself, so the optimizer must be one that ``ringpull``
        has: sgd, nag, adam, adagrad, rmsprop or test. The store stays sharded, so ``gluon.Trainer`` may set its optimizer later. For
        kinds of one process, and for kinds with servers, ``sharded`` changes nothing.
        """
        is_ours = isinstance(optimizer, optimizers.Optimizer)
        if not is_ours and not isinstance(optimizer, mxnet.optimizer.Optimizer):
            raise ArgumentError(
                f"a {type(optimizer).__name__} is no optimizer\n"
                "  hint: give one of mxnet.optimizer, or one of ringpull's, such as ringpull.SGD()"
            )
        is_sharded = (self._sharded if sharded is None else sharded) and self.kind == "dist_sync_mpi"
        is_kept = self._has_servers or is_sharded
        if not is_kept and not is_ours:
            self._set_updater(mxnet.optimizer.get_updater(optimizer))
            return
        if any(slot.weight is not None for slot in self._slots.values()):
            raise UnsupportedError(
                f"set_optimizer: this optimizer runs in the store, but the ranks of this {self.kind} run an updater already\n"
                "  hint: set it before the first push, or create another store"
            )
        # Raises if ringpull has no such optimizer.
        ours = mapped(optimizer, self.kind)
        if is_ours:
            self._send(ours, is_sharded)
        self._stored, self._sharded = True, is_sharded
        if is_kept:
            self._updater = StoredOptimizer(optimizer, self.kind)

    @_method
    def _set_updater(self, updater: Callable[[Any, Any, Any], None]) -> None:
        """Makes ``updater(key, received, stored)`` apply every push made from now on. It changes ``stored``."""
        if self._stored:
            raise UnsupportedError(
                f"set_updater is not supported by {self.kind}: the store runs the optimizer itself\n"
                "  hint: use dist_sync_mpi without an optimizer of ringpull"
            )
        self._updater = updater

    @_method
    def set_gradient_compression(self, compression_params: Mapping[str, Any] | str) -> None:
        """Switches gradient compression on, as ``{'type': '2bit', 'threshold': 0.5}`` or ``'2bit:0.5'``."""
        self._settle()
        self._compress(compression_params)

    @_method
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file. If that fails, the file stays as it was."""
        if self._stored:
            self._settle()
            self._native.save_optimizer_states(os.fspath(fname), dump_optimizer)
            return
        if not hasattr(self._updater, "get_states"):
            raise ArgumentError("save_optimizer_states in a store without an optimizer\n  hint: call set_optimizer first")
        _replace(fname, self._updater.get_states(dump_optimizer))

    @_method
    def load_optimizer_states(self, fname: str) -> None:
        """Reads states that ``save_optimizer_states`` wrote. All ranks must load the same states."""
        if self._stored:
            self._settle()
            self._native.load_optimizer_states(os.fspath(fname))
            return
        if not hasattr(self._updater, "set_states"):
            raise ArgumentError("load_optimizer_states in a store without an optimizer\n  hint: call set_optimizer first")
        with open(fname, "rb") as file:
            self._updater.set_states(file.read())

    def name_keys(self, names: Mapping[Any, str]) -> None:
        """Sets the names that errors and warnings show beside the numbers of keys. ``gluon.Trainer`` sets its parameters' names."""
        for key, name in names.items():
            _native.name_key(key, name)

    # The job.

    @_method
    def _barrier(self) -> None:
        """Returns when every worker has called it."""
        self._native.barrier()

    barrier = _barrier

    @_method
    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise UnsupportedError(
            f"_send_command_to_servers is not supported by {self.kind}: no code and no commands are sent to servers\n"
            "  hint: use set_optimizer"
        )

    # Helpers.

    def _pairs(self, key: Any, value: Any) -> Iterator[tuple[Any, list[Any]]]:
        return self._fit(pairs(key, value))

    def _fit(self, grouped: list[tuple[Any, list[Any]]]) -> Iterator[tuple[Any, list[Any]]]:
        for one, values in grouped:
            for array in values:
                if not isinstance(array, mxnet.nd.NDArray):
                    raise ArgumentError(f"a {type(array).__name__} for key {one!r}\n  hint: values and outputs are NDArrays")
            yield one, [array if array.stype != "default" else array.as_nd_ndarray() for array in values]

    def _checked(self, key: Any, operation: str, arrays: list[Any], any_dtype: bool = False) -> Slot:
        """The key's slot. Raises if the key has none, or if the arrays do not fit it."""
        slot = self._slots.get(key)
        for array in arrays:
            dtype = dtype_name(slot.array if slot is not None and any_dtype else array)
            self._native.check(key, operation, array.shape, dtype)
        if slot is None:
            # The store raises, also for an empty list.
            self._native.check(key, operation, (), "f32")
            raise UnknownKeyError(f"{operation} of key {key!r}: the key has not been initialised\n  hint: call init first")
        return slot

    def _push(self, slot: Slot, values: list[Any], priority: int, what: str) -> None:
        if self._updater is not None and not self._stored:
            slot.keep_weight()
        elif self._stored and self._updater is not None:
            self._send(self._updater.at_push(slot.key, self._slots), self._sharded)
            if not self._updater.takes_rows():
                values = [_dense(value) for value in values]
        if any(value.stype != "default" for value in values):
            self._push_rows(slot, values, priority, what)
            return
        slot.gather(values)
        # If the store runs no optimizer, the sum comes back in place. It is the key's value, or the updater's input.
        slot.submit(what if self._stored else "sum", priority)
        if self._updater is not None and slot.weight is not None and not self._stored:
            self._updater(slot.key, slot.array, slot.weight)

    def _push_rows(self, slot: Slot, values: list[Any], priority: int, what: str) -> None:
        rows = []
        for value in values:
            sparse = value if value.stype == "row_sparse" else value.tostype("row_sparse")
            ids = sparse.indices.asnumpy() if sparse.indices.shape[0] else numpy.zeros(0, numpy.int64)
            shape = (len(ids), *slot.shape[1:])
            data = sparse.data.asnumpy() if len(ids) else numpy.zeros(shape, slot.dtype)
            rows.append((ids.tolist(), data))
        # Earlier calls on this key must be done first.
        slot.array.wait_to_read()
        self._native.push_rows(slot.key, rows, slot.shape, priority)
        if self._stored and what == "push":
            return
        slot.submit("pull", priority)
        if self._updater is not None and slot.weight is not None and not self._stored:
            self._updater(slot.key, slot.array.tostype("row_sparse"), slot.weight)

    def _hand_out(self, slot: Slot, outs: list[Any]) -> None:
        value = slot.value
        for out in outs:
            (value if out.dtype == value.dtype else value.astype(out.dtype)).copyto(out)

    def _pull_rows(self, slot: Slot, out: Any, row_ids: Any, priority: int) -> None:
        if out.stype != "row_sparse":
            raise ArgumentError(f"row_sparse_pull of key {slot.key!r} into a dense array\n  hint: give a row_sparse array as out, or use pull")
        ids = numpy.unique(row_ids.asnumpy().astype(numpy.int64)) if row_ids.size else numpy.zeros(0, numpy.int64)
        if len(ids) and not 0 <= ids[0] <= ids[-1] < slot.shape[0]:
            raise ArgumentError(
                f"row_sparse_pull of key {slot.key!r}: row ids from {ids[0]} to {ids[-1]} in a tensor of {slot.shape[0]} rows\n"
                f"  hint: row ids lie between 0 and {slot.shape[0] - 1}"
            )
        if not len(ids):
            empty: Any = mxnet.nd.sparse.zeros("row_sparse", out.shape, ctx=out.context, dtype=out.dtype)
            empty.copyto(out)
            return
        if self._stored:
            slot.array.wait_to_read()
            rows = numpy.empty((len(ids), *slot.shape[1:]), slot.dtype)
            self._native.pull_rows(slot.key, ids.tolist(), rows, priority)
            data = mxnet.nd.array(rows, dtype=out.dtype)
        else:
            data = slot.value.take(mxnet.nd.array(ids, dtype="int64")).astype(out.dtype)
        indices = mxnet.nd.array(ids, dtype="int64")
        found: Any = mxnet.nd.sparse.row_sparse_array((data, indices), shape=out.shape, dtype=out.dtype)
        found.copyto(out)

    def _send(self, optimizer: optimizers.Optimizer, is_sharded: bool) -> None:
        """Makes this the store's optimizer, from the next push on."""
        wanted = optimizer.spec(), is_sharded, dict(optimizer.lr_mult), dict(optimizer.wd_mult)
        if wanted != self._last_sent:
            self._settle()
            self._native.set_optimizer(*wanted)
            self._last_sent = wanted

    def _settle(self) -> None:
        """Waits until every push called so far has reached the store. Pushes that wait in MXNet's engine have not reached it."""
        for slot in self._slots.values():
            slot.array.wait_to_read()


class _Closing:
    """Ends a store at the end of the program, after MXNet has done all operations that were called."""

    def __init__(self, native: _native.Store) -> None:
        self._native = native

    def finish(self) -> None:
        """Waits for MXNet's engine, which may hold operations on the store."""
        mxnet.nd.waitall()

    def report_failure(self, why: str) -> None:
        """Tells the other workers the reason why this worker ends."""
        self._native.report_failure(why)

    def close(self) -> None:
        """Leaves the job."""
        self._native.close()


def _dense(array: Any) -> Any:
    return array if array.stype == "default" else array.tostype("default")


def _replace(path: str, content: bytes) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
