"""Trainers and optimizers whose gradients are averaged over the ranks, and parameters that begin alike."""

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
    """The compressors there are."""

    none = _None
    fp16 = _FP16


def _sums(process_set: ProcessSet) -> bool:
    """Whether gradients are summed with others'."""
    return process_set.size() > 1 and process_set.included()


def _summed(gradients: list[Any], names: list[str], scales: tuple[float, float], compression: Any, groups: int, process_set: ProcessSet) -> None:
    """Makes each gradient its sum over the ranks, scaled before and after it. All travel before the first is waited for."""
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
    """What a class of MXNet's optimizers gets in front: gradients are averaged before they are used."""

    #: What a gradient is divided by before the sum, the number of groups, and who takes part.
    _travels: tuple[float, int, ProcessSet]
    #: Whether the gradients of the update that is under way are averages already.
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
        """Averages the gradients, then updates, which may be by the other method."""
        self._averaged(super().update_multi_precision, index, weight, grad, state)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        state: Any = self.__getstate__()
        return _unpickled, (_inner(type(self)),), state


def _inner(kind: type) -> type:
    """The class of the optimizer that one of ours was made of."""
    return getattr(kind, "_inner", kind)


@functools.cache
def _distributed(inner: type) -> type:
    """The class of optimizers of ``inner`` whose gradients are averaged."""
    words = {name: getattr(inner, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(inner.__name__, (_Distributed, inner), {**words, "_inner": inner})


def _unpickled(inner: type) -> Any:
    return object.__new__(_distributed(inner))


def DistributedOptimizer(
    optimizer: Any, gradient_predivide_factor: float = 1.0, num_groups: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Lets an optimizer be given gradients that are averaged over the ranks, and returns it. It is of its own class still."""
    optimizer.__class__ = _distributed(_inner(type(optimizer)))
    optimizer._travels = gradient_predivide_factor, num_groups, process_set
    return optimizer


class DistributedTrainer(mxnet.gluon.Trainer):  # type: ignore[misc]
    """A ``gluon.Trainer`` whose gradients are averaged over the ranks. ``step(n)`` has n examples on each rank."""

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
            warnings.warn("DistributedTrainer averages by itself: it takes the optimizer as it was before DistributedOptimizer", stacklevel=2)
            optimizer.__class__ = _inner(type(optimizer))
        self._compression = compression
        self._predivide = gradient_predivide_factor
        self._prefix = prefix or ""
        self._groups = num_groups
        self._process_set = process_set
        # In the same order on every rank.
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
    """Makes parameters those of ``root_rank``: of ``Module.get_params()``, or of ``Block.collect_params()``.

    A parameter whose shape is not known yet is broadcast when it is made.
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
    """The object of ``root_rank``, which travels pickled."""
    comm, ranks = process_set.comm(), process_set.ranks or []
    if root_rank not in ranks:
        raise ValueError(f"broadcast_object: root_rank={root_rank} is not in {process_set}\n  hint: name one of its ranks")
    return sets.broadcast_object(comm, obj, ranks.index(root_rank), name and f"object.{name}")


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of the ranks; each travels pickled."""
    return sets.gather_objects(process_set.comm(), obj, name and f"object.{name}")
