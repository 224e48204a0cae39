"""Optimizers of Keras that reduce their gradients over the ranks: those of Keras 3, on each of its backends, and those of Keras 2."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy

from ..basics import Average, Sum
from ..operations import OPS, Operation, begin
from ..process_sets import ProcessSet, global_process_set
from .raising import raise_own_errors, remembering_errors
from .versions import keras_in_use, keras_of

__all__ = ["Compression", "DistributedOptimizer", "load_model", "reduced"]


class _None:
    """Gradients travel as they are."""

    dtype: Any = None


class _FP16(_None):
    """Gradients of floating-point numbers travel as ``float16``."""

    dtype = numpy.float16


class Compression:
    """The compressors that exist."""

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
    """The reductions of NumPy arrays. All reductions are started before the first is waited for."""
    if op not in OPS:
        raise ValueError(f"op={op!r} is not supported with Keras\n  hint: give hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")
    # The reductions are written to these copies.
    sent = [numpy.array(array, dtype=dtype if array.dtype.kind == "f" and dtype else None, order="C") for array in arrays]

    def call(comm: Any, known: str | None) -> list[Any]:
        return [comm.grouped_allreduce(sent, op=OPS[op], name=known, outs=sent, prescale=prescale, postscale=postscale)]

    operation: Operation = begin("keras", name, process_set, call, lambda results: results[0])
    return [numpy.asarray(done).astype(array.dtype, copy=False) for done, array in zip(operation.wait(), arrays)]


class _Way:
    """The way in which the gradients of one optimizer are reduced."""

    def __init__(self, compression: Any, op: int, predivide: float, process_set: ProcessSet) -> None:
        self.dtype = compression.dtype
        self.op = op
        self.process_set = process_set
        self.prescale, self.postscale = (1.0, 1.0) if op != Average else (1 / predivide, predivide)

    def reduce(self, *gradients: Any) -> list[numpy.ndarray[Any, Any]]:
        """The reductions, in host memory."""
        arrays = [numpy.asarray(gradient) for gradient in gradients]
        return reduced(arrays, None, self.op, self.process_set, self.prescale, self.postscale, self.dtype)

    def reduce_all(self, backend: str, gradients: Iterable[Any]) -> list[Any]:
        """The reductions, as the backend's tensors. A gradient that is None stays None."""
        grads = list(gradients)
        if self.process_set.included() and self.process_set.size() > 1:
            present = [at for at, gradient in enumerate(grads) if gradient is not None]
            done = _WAYS[backend](self, [grads[at] for at in present])
            for at, gradient in zip(present, done):
                grads[at] = gradient
        return grads


def _by_torch(way: _Way, gradients: list[Any]) -> list[Any]:
    import torch

    done = way.reduce(*(gradient.detach().cpu().numpy() for gradient in gradients))
    return [torch.from_numpy(array).to(gradient.device) for array, gradient in zip(done, gradients)]


def _by_jax(way: _Way, gradients: list[Any]) -> list[Any]:
    jax: Any = importlib.import_module("jax")
    from jax.experimental import io_callback

    shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in gradients]
    # The compiled step calls back to the host. The calls are ordered, since all ranks must call in the same order.
    return list(io_callback(remembering_errors(way.reduce), shapes, *gradients, ordered=True))


def _by_tensorflow(way: _Way, gradients: list[Any]) -> list[Any]:
    import tensorflow

    dense = [tensorflow.convert_to_tensor(gradient) for gradient in gradients]
    done = tensorflow.numpy_function(remembering_errors(way.reduce), dense, [gradient.dtype for gradient in dense])
    for array, gradient in zip(done, dense):
        array.set_shape(gradient.shape)
    return list(done)


_WAYS = {"torch": _by_torch, "jax": _by_jax, "tensorflow": _by_tensorflow}


#: The methods in which a class of optimizers combines its gradients over all replicas: in Keras 3, in Keras 2, and in the legacy optimizers
#: of Keras 2.
_HOOKS = ("stateless_apply", "aggregate_gradients", "_aggregate_gradients")


class _Distributed:
    """A base class that comes before a class of Keras's optimizers. Of the methods below it overrides the one that the class has."""

    #: An attribute of the class, so that copies by `from_config` have it too.
    _way: _Way
    #: True while gradients are applied that are reduced already.
    _is_reduced = False

    @contextlib.contextmanager
    def _reducing(self, grads: Any) -> Iterator[list[Any]]:
        """A context that gives the reduced gradients. Inside it the methods of this class, if called again, do not reduce them again."""
        was_reduced = self._is_reduced
        done = list(grads) if was_reduced else self._way.reduce_all(keras_of(self).backend.backend(), grads)
        self._is_reduced = True
        try:
            yield done
        finally:
            self._is_reduced = was_reduced

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Keras 3: applies the reduced gradients."""
        with self._reducing(grads) as done:
            return super().apply(done, trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Keras 3 with JAX: applies the reduced gradients."""
        with self._reducing(grads) as done:
            return super().stateless_apply(optimizer_variables, done, trainable_variables)  # type: ignore[misc]

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """Keras 2: pairs of reduced gradients and variables. `apply_gradients` calls it, and a `LossScaleOptimizer` before it."""
        return self._aggregated(super().aggregate_gradients(grads_and_vars))  # type: ignore[misc]

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return self._aggregated(super()._aggregate_gradients(grads_and_vars))  # type: ignore[misc]

    def _aggregated(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        done = self._way.reduce_all("tensorflow", [gradient for gradient, _ in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(done, pairs)]


def _reducing_first(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method of Keras 3's `LossScaleOptimizer` that applies gradients. If the inner optimizer is distributed, reduces the gradients
    before the method checks whether they are finite: a rank that skipped the step would leave the others waiting."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(self.inner_optimizer, _Distributed):
            return method(self, *arguments, **keywords)
        bound = signature.bind(self, *arguments, **keywords)
        with self.inner_optimizer._reducing(bound.arguments["grads"]) as done:
            bound.arguments["grads"] = done
            return method(*bound.args, **bound.kwargs)

    return call


@functools.cache
def _agree_on_loss_scales(keras: Any) -> None:
    """Makes a `LossScaleOptimizer` that Keras 3 or the program puts around a distributed optimizer see reduced gradients."""
    for name in ("apply", "stateless_apply"):
        kind = keras.optimizers.LossScaleOptimizer
        setattr(kind, name, _reducing_first(getattr(kind, name)))


def _inmost(optimizer: Any) -> Any:
    """The optimizer inside a `LossScaleOptimizer`; for another optimizer, itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _distribute(optimizer: Any, way: _Way) -> Any:
    """Makes an optimizer reduce its gradients, by changing its class. The new class has the old one's name and module, so that models are
    saved as before."""
    keras, inmost = keras_of(optimizer), _inmost(optimizer)
    raise_own_errors(keras)
    if hasattr(keras, "ops"):
        _agree_on_loss_scales(keras)
    kind = type(inmost)
    # The optimizer's own `__setattr__` is not called, because it records variables.
    object.__setattr__(inmost, "__class__", type(kind.__name__, (_Distributed, kind), {"_way": way, "__module__": kind.__module__, "__doc__": kind.__doc__}))
    return optimizer


def _check(optimizer: Any) -> None:
    """Raises unless the optimizer is one whose gradients can be reduced. So no optimizer is accepted and then left without reductions."""
    keras = keras_of(optimizer)
    if keras is None or not any(hasattr(optimizer, hook) for hook in _HOOKS):
        raise TypeError(
            f"DistributedOptimizer({optimizer!r}): that is no optimizer of Keras 2 or 3"
            "\n  hint: give one of keras.optimizers or of tf.keras.optimizers; PyTorch's are for hvd.DistributedOptimizer of horovod.torch"
        )
    if hasattr(keras, "ops") and keras.backend.backend() not in _WAYS:
        raise TypeError(f"DistributedOptimizer: Keras's backend {keras.backend.backend()} does not train\n  hint: set KERAS_BACKEND to torch, jax or tensorflow")
    if isinstance(_inmost(optimizer), _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")


def _copy(optimizer: Any, **more: Any) -> Any:
    """A copy of an optimizer, with its settings and some more."""
    config = optimizer.get_config()
    if _inmost(optimizer) is optimizer:
        return type(optimizer).from_config(config | more)
    return type(optimizer)(**(config | {"inner_optimizer": _copy(optimizer.inner_optimizer, **more)}))


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
    """Returns a copy of an optimizer of Keras 2 or 3. The copy reduces its gradients over the ranks by ``op`` before it applies them.

    All gradients of a step travel together, so ``num_groups`` and ``groups`` change nothing. ``name``, the devices and
    ``sparse_as_dense`` change nothing either. With ``backward_passes_per_step=K`` Keras 3 adds up the gradients of K steps before it applies
    them. A ``LossScaleOptimizer`` sees reduced gradients, whether it is inside this optimizer or around it.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r} is not supported for gradients\n  hint: give hvd.Average or hvd.Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average\n  hint: leave it out, or give op=hvd.Average")
    _check(optimizer)
    more = {}
    if backward_passes_per_step > 1:
        if not hasattr(keras_of(optimizer), "ops"):
            raise ValueError(f"backward_passes_per_step={backward_passes_per_step} is not supported with Keras 2\n  hint: leave it out, or use Keras 3")
        if not average_aggregated_gradients:
            warnings.warn("Keras averages the gradients of backward_passes_per_step steps, and does not sum them", stacklevel=2)
        more["gradient_accumulation_steps"] = backward_passes_per_step
    return _distribute(_copy(optimizer, **more), _Way(compression, op, gradient_predivide_factor, process_set))


class _Maker:
    """A function among the custom objects, which makes the object. It has `from_config`: Keras 3 would take a bare function for the object
    itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__wrapped__(*arguments, **keywords)  # type: ignore[attr-defined]

    def from_config(self, config: dict[str, Any]) -> Any:
        return self(**config)


def load_model(filepath: Any, custom_optimizers: Sequence[type[Any]] | None = None, custom_objects: dict[str, Any] | None = None, compression: Any = Compression.none) -> Any:
    """Loads a model that ``model.save`` has written. Its optimizer becomes a :func:`DistributedOptimizer` with the saved states.

    ``custom_objects`` may give an optimizer as its class, or as a function that makes it from its settings.
    """
    keras: Any = keras_in_use()
    known: dict[str, Any] = {kind.__name__: kind for kind in custom_optimizers or ()} | (custom_objects or {})
    try:
        model: Any = keras.models.load_model(filepath, custom_objects=known)
    except (TypeError, ValueError):
        # In Keras, losses, metrics and activations may be functions; an optimizer may not.
        made = {name: _Maker(found) if inspect.isfunction(found) else found for name, found in known.items()}
        if made == known:
            raise
        model = keras.models.load_model(filepath, custom_objects=made)
    optimizer = model.optimizer
    if optimizer is not None and not isinstance(_inmost(optimizer), _Distributed):
        _distribute(optimizer, _Way(compression, Average, 1.0, global_process_set))
    return model
