"""Keras's optimizers with gradients that are reduced over the ranks, on each of Keras's backends."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy

from ..basics import Average, Sum
from ..operations import OPS, Operation, begin
from ..process_sets import ProcessSet, global_process_set
from .raising import raise_own_errors, remembering_errors

__all__ = ["Compression", "DistributedOptimizer", "load_model", "reduced"]


class _None:
    """Gradients travel as they are."""

    dtype: Any = None


class _FP16(_None):
    """Gradients of floating-point numbers travel as ``float16``."""

    dtype = numpy.float16


class Compression:
    """The compressors there are."""

    none = _None
    fp16 = _FP16


def reduced(
    arrays: Sequence[numpy.ndarray[Any, Any]],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale: float = 1.0,
    postscale: float = 1.0,
    dtype: Any = None,
) -> list[numpy.ndarray[Any, Any]]:
    """The reductions of NumPy's arrays, of which all travel before the first is waited for."""
    if op not in OPS:
        raise ValueError(f"op={op!r} is not supported with Keras\n  hint: give hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")
    # A copy of ours is written.
    sent = [numpy.array(array, dtype=dtype if array.dtype.kind == "f" and dtype else None, order="C") for array in arrays]

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.grouped_allreduce(sent, op=OPS[op], name=known, outs=sent, prescale=prescale, postscale=postscale)]

    operation: Operation = begin("keras", name, process_set, call, lambda results: results[0])
    return [numpy.asarray(done).astype(array.dtype, copy=False) for done, array in zip(operation.wait(), arrays)]


class _Way:
    """How the gradients of one optimizer travel."""

    def __init__(self, compression: Any, op: int, predivide: float, process_set: ProcessSet) -> None:
        self.dtype = compression.dtype
        self.op = op
        self.process_set = process_set
        self.prescale, self.postscale = (1.0, 1.0) if op != Average else (1 / predivide, predivide)

    def reduce(self, *gradients: Any) -> list[numpy.ndarray[Any, Any]]:
        """The reductions, in host memory."""
        arrays = [numpy.asarray(gradient) for gradient in gradients]
        return reduced(arrays, None, self.op, self.process_set, self.prescale, self.postscale, self.dtype)


def _by_torch(way: _Way, gradients: list[Any]) -> list[Any]:
    import torch

    done = way.reduce(*(gradient.detach().cpu().numpy() for gradient in gradients))
    return [torch.from_numpy(array).to(gradient.device) for array, gradient in zip(done, gradients)]


def _by_jax(way: _Way, gradients: list[Any]) -> list[Any]:
    jax: Any = importlib.import_module("jax")
    from jax.experimental import io_callback

    shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in gradients]
    # The compiled step calls back to the host; in one order, as every rank must.
    return list(io_callback(remembering_errors(way.reduce), shapes, *gradients, ordered=True))


def _by_tensorflow(way: _Way, gradients: list[Any]) -> list[Any]:
    import tensorflow

    dense = [tensorflow.convert_to_tensor(gradient) for gradient in gradients]
    done = tensorflow.numpy_function(remembering_errors(way.reduce), dense, [gradient.dtype for gradient in dense])
    for array, gradient in zip(done, dense):
        array.set_shape(gradient.shape)
    return list(done)


_WAYS = {"torch": _by_torch, "jax": _by_jax, "tensorflow": _by_tensorflow}


class _Distributed:
    """What a class of Keras's optimizers gets in front."""

    #: Of the class, so that copies by `from_config` have it.
    _way: _Way

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients, then applies them."""
        grads, way = list(grads), self._way
        if way.process_set.included() and way.process_set.size() > 1:
            present = [at for at, gradient in enumerate(grads) if gradient is not None]
            done = _WAYS[keras.backend.backend()](way, [grads[at] for at in present])
            for at, gradient in zip(present, done):
                grads[at] = gradient
        return super().apply(grads, trainable_variables)  # type: ignore[misc]


def _distributed(kind: type[Any], way: _Way) -> type[Any]:
    """The class, with gradients that are reduced. By name and place it stays what it is, so that models are saved as ever."""
    raise_own_errors()
    return type(kind.__name__, (_Distributed, kind), {"_way": way, "__module__": kind.__module__, "__doc__": kind.__doc__})


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer like the one given, whose gradients are reduced over the ranks by ``op`` before it applies them.

    All gradients of a step travel together, so ``num_groups`` and ``groups`` change nothing, nor do ``name``, the devices and
    ``sparse_as_dense``. With ``backward_passes_per_step=K`` Keras adds up the gradients of K steps before it applies them.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r} is not supported for gradients\n  hint: give hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} goes only with op=Average\n  hint: leave it out, or average")
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    config = optimizer.get_config()
    if backward_passes_per_step > 1:
        if not average_aggregated_gradients:
            warnings.warn("Keras averages the gradients of backward_passes_per_step steps, and does not sum them", stacklevel=2)
        config["gradient_accumulation_steps"] = backward_passes_per_step
    return _distributed(type(optimizer), _Way(compression, op, gradient_predivide_factor, process_set)).from_config(config)


class _Maker:
    """A function among the custom objects. Keras 3 takes it for the object itself, unless it can be made from a configuration."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__wrapped__(*arguments, **keywords)  # type: ignore[attr-defined]

    def from_config(self, config: dict[str, Any]) -> Any:
        return self(**config)


def load_model(filepath: Any, custom_optimizers: Sequence[type[Any]] | None = None, custom_objects: dict[str, Any] | None = None, compression: Any = Compression.none) -> Any:
    """A model that ``model.save`` has written, whose optimizer is a :func:`DistributedOptimizer` with the states that were saved.

    ``custom_objects`` may name an optimizer by its class, or by a function that makes it from its settings.
    """
    known: dict[str, Any] = {kind.__name__: kind for kind in custom_optimizers or ()} | (custom_objects or {})
    try:
        model: Any = keras.models.load_model(filepath, custom_objects=known)
    except (TypeError, ValueError):
        # Losses, metrics and activations may be functions; an optimizer may not.
        made = {name: _Maker(found) if inspect.isfunction(found) else found for name, found in known.items()}
        if made == known:
            raise
        model = keras.models.load_model(filepath, custom_objects=made)
    optimizer = model.optimizer
    if optimizer is not None and not isinstance(optimizer, _Distributed):
        optimizer.__class__ = _distributed(type(optimizer), _Way(compression, Average, 1.0, global_process_set))
    return model
