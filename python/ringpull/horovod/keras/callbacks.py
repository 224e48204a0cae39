"""Callbacks for ``model.fit`` of Keras 2 and 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from ..basics import Average, rank, size
from ..process_sets import ProcessSet, gather_objects, global_process_set
from .reducing import reduced
from .versions import array_of, variables_of

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "broadcast_variables",
]


def _nothing(self: Any, at: Any = None, logs: Any = None) -> None:
    """A hook that a callback has not of its own."""


def _on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
    """Calls the hook by its older name."""
    self.on_batch_begin(batch, logs)


def _on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
    """Calls the hook by its older name."""
    self.on_batch_end(batch, logs)


for _default in (_nothing, _on_train_batch_begin, _on_train_batch_end):
    # As both Kerases mark theirs, which they need not call.
    setattr(_default, "_is_default", True)


class Callback:
    """A callback of either Keras. It has what their lists of callbacks call, and inherits from neither: which one a program uses is known
    when its model is set."""

    params: Any = None
    _model: Any = None
    #: Keras 2: metrics come as numbers.
    _supports_tf_logs = False

    def set_params(self, params: Any) -> None:
        """Keras gives the numbers of steps and epochs."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Keras gives the model that is trained."""
        self._model = model

    @property
    def model(self) -> Any:
        """The model that is trained."""
        # With JAX its variables are elsewhere while an epoch runs.
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()
        return self._model

    def _implements(self, mode: str) -> bool:
        return not all(getattr(getattr(self, f"on_{mode}batch_{edge}"), "_is_default", False) for edge in ("begin", "end"))

    def _implements_train_batch_hooks(self) -> bool:
        return self._implements("train_") or self._implements("")

    def _implements_test_batch_hooks(self) -> bool:
        return self._implements("test_")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._implements("predict_")


for _mode in ("train", "test", "predict"):
    for _edge in ("begin", "end"):
        for _hook in (f"on_{_mode}_{_edge}", f"on_{_mode}_batch_{_edge}", f"on_batch_{_edge}", f"on_epoch_{_edge}"):
            setattr(Callback, _hook, globals().get(f"_{_hook}", _nothing))


def _rate_of(model: Any) -> float:
    return float(array_of(model.optimizer.learning_rate))


def broadcast_variables(variables: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> None:
    """Makes variables of Keras those of ``root_rank``."""
    comm, ranks = process_set.comm(), process_set.ranks or []
    arrays = [array_of(variable) for variable in variables]
    handles = [comm.broadcast(array, ranks.index(root_rank), out=array) for array in arrays]
    for variable, array, handle in zip(variables, arrays, handles):
        handle.wait()
        if rank() != root_rank:
            variable.assign(array)


class BroadcastGlobalVariablesCallback(Callback):
    """The model's and the optimizer's variables become those of ``root_rank``: when training begins those that every rank has, as one may
    have loaded its model and others made it; and all of them after the first batch."""

    def __init__(self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._root = root_rank
        self._process_set = process_set
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts what every rank has."""
        for variables in self._variables():
            shapes = [tuple(variable.shape) for variable in variables]
            if all(other == shapes for other in gather_objects(self._process_set.comm(), shapes)):
                broadcast_variables(variables, self._root, self._process_set)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts all, once."""
        if not self._is_done:
            for variables in self._variables():
                broadcast_variables(variables, self._root, self._process_set)
            self._is_done = True

    def _variables(self) -> list[list[Any]]:
        """Those of the model, if it has been called, and those of the optimizer."""
        model: Any = self.model
        return [list(model.variables) if model.built else [], [] if model.optimizer is None else variables_of(model.optimizer)]


class MetricAverageCallback(Callback):
    """Metrics of an epoch are averages over the ranks, for the callbacks that follow this one."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages what the epoch has measured."""
        names = sorted(logs or ())
        if names:
            values = numpy.array([float(logs[name]) for name in names])
            (means,) = reduced([values], None, Average, self._process_set)
            logs.update(zip(names, means.tolist()))


class LearningRateScheduleCallback(Callback):
    """The learning rate is ``initial_lr`` times ``multiplier``, a number or a function of the epoch, from ``start_epoch`` until ``end_epoch``.

    Without ``staircase`` the epoch is a fraction, and the rate changes with each batch. ``momentum_correction`` is accepted for Horovod's
    sake: a compiled step of Keras 3 does not change its momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[Any], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._initial = initial_lr
        self._multiplier = multiplier if callable(multiplier) else lambda _epoch: multiplier
        self._start, self._end = start_epoch, end_epoch
        self._is_staircase = staircase or not callable(multiplier)
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many steps an epoch has."""
        params: Any = self.params
        self._steps = self._steps or params.get("steps")
        if not self._is_staircase and not self._steps:
            raise ValueError("the number of steps in an epoch is not known\n  hint: give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the rate of the epoch."""
        self._epoch = epoch
        if self._is_staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the batch."""
        if not self._is_staircase:
            self._set(self._epoch + batch / (self._steps or 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Lets the metrics have the rate."""
        if logs is not None:
            logs["lr"] = _rate_of(self.model)

    def _set(self, epoch: float) -> None:
        if self._start <= self._epoch and (self._end is None or self._epoch < self._end):
            model: Any = self.model
            model.optimizer.learning_rate = self._initial * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The learning rate grows over ``warmup_epochs`` from ``initial_lr`` over the number of ranks to ``initial_lr``."""

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        def multiplier(epoch: float) -> float:
            # So that the last batch of the last epoch has the whole rate.
            reached = min((epoch + 1 / (self._steps or 1)) / warmup_epochs, 1.0)
            return (1 + reached * (size() - 1)) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._warmup, self._verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Says when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup - 1 and self._verbose:
            print(f"\nEpoch {epoch + 1}: the warm-up ends with the learning rate {_rate_of(self.model):g}.")
