"""Trainers and optimizers that average their gradients over the ranks, and broadcasts of initial parameters."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import mxnet
import numpy

from .. import process_sets as sets
from ..basics import Sum
from ..process_sets import ProcessSet, global_process_set
from .mpi_ops import broadcast_, reduce_async

__all__ = ["Compression", "DistributedOptimizer", "DistributedTrainer", "allgather_object", "broadcast_object", "broadcast_parameters"]


class _None:
    """Gradients travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array."""
        return tensor


class _FP16:
    """Gradients of floating-point numbers travel as ``float16``."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array as ``float16``, and the type that it had."""
        is_float = numpy.dtype(tensor.dtype).kind == "f"
        return (tensor.astype("float16") if is_float else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array in the type that it had."""
        return tensor.astype(ctx)


class Compression:
    """The compressors that exist."""

    none = _None
    fp16 = _FP16


def _sums(process_set: ProcessSet) -> bool:
    """Returns True if gradients are summed with those of other ranks."""
    return process_set.size() > 1 and process_set.included()


def _summed(gradients: list[Any], names: list[str], scales: tuple[float, float], compression: Any, groups: int, process_set: ProcessSet) -> None:
    """Sums each gradient over the ranks, in place, and scales it before and after the sum. Starts all sums before it waits for the first."""
    pairs = [compression.compress(gradient) for gradient in gradients]
    count = min(groups or len(gradients), len(gradients))
    cuts = [at * len(gradients) // count for at in range(count + 1)] if count else [0]
    started = []
    for start, stop in zip(cuts, cuts[1:]):
        tensors = [tensor for tensor, _ in pairs[start:stop]]
        started.append((start, reduce_async(tensors, names[start], Sum, *scales, process_set)))
    for start, operation in started:
        for at, values in enumerate(operation.wait(), start):
            reduced = mxnet.nd.array(values, ctx=gradients[at].context, dtype=values.dtype)
            compression.decompress(reduced, pairs[at][1]).copyto(gradients[at])


class _Distributed:
    """A base class that comes before a class of MXNet's optimizers: it averages gradients before they are used."""

    #: The number by which a gradient is divided before the sum, the number of groups, and the ranks that take part.
    _travels: tuple[float, int, ProcessSet]
    #: True if the gradients of the update that is under way are averages already.
    _is_averaged = False

    def _averaged(self, update: Callable[..., None], index: Any, weight: Any, grad: Any, state: Any) -> None:
        predivide, groups, process_set = self._travels
        was_averaged = self._is_averaged
        if _sums(process_set) and not was_averaged:
            indices, grads = (list(index), list(grad)) if isinstance(index, (tuple, list)) else ([index], [grad])
            scales = 1.0 / predivide, predivide / process_set.size()
            _summed(grads, [f"optimizer.{one}" for one in indices], scales, _None, groups, process_set)
        self._is_averaged = True
        try:
            update(index, weight, grad, state)
        finally:
            self._is_averaged = was_averaged

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradients, then updates."""
        self._averaged(super().update, index, weight, grad, state)  # type: ignore[misc]

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages the gradients, then updates. The optimizer's method may call `update`, which does not average them again."""
        self._averaged(super().update_multi_precision, index, weight, grad, state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        state: Any = self.__getstate__()
        return _unpickled, (_inner(type(self)),), state


def _inner(kind: type) -> type:
    """The optimizer's class without `_Distributed`."""
    return getattr(kind, "_inner", kind)


@functools.cache
def _distributed(inner: type) -> type:
    """A subclass of the class ``inner`` of optimizers that averages gradients."""
    words = {name: getattr(inner, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(inner.__name__, (_Distributed, inner), {**words, "_inner": inner})


def _unpickled(inner: type) -> Any:
    return object.__new__(_distributed(inner))


def DistributedOptimizer(
    optimizer: Any, gradient_predivide_factor: float = 1.0, num_groups: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Makes an optimizer average its gradients over the ranks before it uses them, and returns it. It is still an instance of its class."""
    optimizer.__class__ = _distributed(_inner(type(optimizer)))
    optimizer._travels = gradient_predivide_factor, num_groups, process_set
    return optimizer


class DistributedTrainer(mxnet.gluon.Trainer):  # type: ignore[misc]
    """A ``gluon.Trainer`` that averages gradients over the ranks. ``step(n)`` is for n examples on each rank."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, _Distributed):
            warnings.warn("DistributedTrainer averages gradients itself, so it uses the optimizer without its DistributedOptimizer", stacklevel=2)
            optimizer.__class__ = _inner(type(optimizer))
        self._compression = compression
        self._predivide = gradient_predivide_factor
        self._prefix = prefix or ""
        self._groups = num_groups
        self._process_set = process_set
        # The order must be the same on every rank.
        if isinstance(params, Mapping):
            params = [params[key] for key in sorted(params)]
        no_store: Any = None
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=no_store)
        if _sums(process_set):
            self._scale *= gradient_predivide_factor / process_set.size()

    def _allreduce_grads(self) -> None:
        if not _sums(self._process_set):
            return
        chosen = [(at, param) for at, param in enumerate(self._params) if param.grad_req != "null"]
        gradients = [param.list_grad()[0] for _, param in chosen]
        dense = [gradient if gradient.stype == "default" else gradient.tostype("default") for gradient in gradients]
        names = [f"trainer.{self._prefix}{at}" for at, _ in chosen]
        _summed(dense, names, (1.0 / self._predivide, 1.0), self._compression, self._groups, self._process_set)
        for gradient, summed in zip(gradients, dense):
            if summed is not gradient:
                summed.tostype(gradient.stype).copyto(gradient)


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Gives parameters the values of ``root_rank``. ``params`` is from ``Module.get_params()`` or ``Block.collect_params()``.

    A parameter whose shape is not known yet is broadcast later, when it is made.
    """
    if not isinstance(params, Mapping) and not hasattr(params, "items"):
        raise ValueError(f"parameters cannot be a {type(params).__name__}\n  hint: give net.collect_params() or module.get_params()")
    for name, value in sorted(params.items()):
        if isinstance(value, mxnet.gluon.parameter.Parameter):
            try:
                arrays = value.list_data()
            except mxnet.gluon.parameter.DeferredInitializationError:
                _broadcast_when_made(value, root_rank, process_set)
                continue
        else:
            arrays = [value]
        for array in arrays:
            broadcast_(array, root_rank, f"parameter.{prefix or ''}{name}", process_set=process_set)


def _broadcast_when_made(parameter: Any, root_rank: int, process_set: ProcessSet) -> None:
    initialise = parameter._init_impl

    def init_impl(*arguments: Any, **keywords: Any) -> None:
        initialise(*arguments, **keywords)
        for array in parameter.list_data():
            broadcast_(array, root_rank, f"deferred.{parameter.name}", process_set=process_set)

    parameter._init_impl = init_impl


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``. It travels pickled."""
    comm, ranks = process_set.comm(), process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"broadcast_object: root_rank={root_rank} is not in {process_set}\n  hint: name one of its ranks")
    return sets.broadcast_object(comm, obj, ranks.index(root_rank), name and f"object.{name}")


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in the order of the ranks. They travel pickled."""
    return sets.gather_objects(process_set.comm(), obj, name and f"object.{name}")
