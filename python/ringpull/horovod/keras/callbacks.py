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
    """Does nothing: the default of a hook that a callback does not define."""


def _on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
    """Calls the hook by its older name."""
    self.on_batch_begin(batch, logs)


def _on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
    """Calls the hook by its older name."""
    self.on_batch_end(batch, logs)


for _default in (_nothing, _on_train_batch_begin, _on_train_batch_end):
    # Both versions of Keras mark their default hooks so, and skip calls of them.
    setattr(_default, "_is_default", True)


class Callback:
    """A callback for Keras 2 and Keras 3. It has the methods that their lists of callbacks call, and inherits from neither Keras: only when
    the model is set it is known which Keras a program uses."""

    params: Any = None
    _model: Any = None
    #: Keras 2: metrics come as numbers.
    _supports_tf_logs = False

    def set_params(self, params: Any) -> None:
        """Stores the numbers of steps and epochs. Keras calls it."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Stores the model that is trained. Keras calls it."""
        self._model = model

    @property
    def model(self) -> Any:
        """The model that is trained."""
        # With JAX the model's variables are not in the model while an epoch runs; this writes them back.
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
    """Gives variables of Keras the values of ``root_rank``."""
    comm, ranks = process_set.comm(), process_set.ranks or []
    arrays = [array_of(variable) for variable in variables]
    handles = [comm.broadcast(array, ranks.index(root_rank), out=array) for array in arrays]
    for variable, array, handle in zip(variables, arrays, handles):
        handle.wait()
        if rank() != root_rank:
            variable.assign(array)


class BroadcastGlobalVariablesCallback(Callback):
    """Gives the model's and the optimizer's variables the values of ``root_rank``. When training begins it broadcasts only the variables that
    every rank has, because one rank may have loaded its model while others made it. After the first batch it broadcasts all variables."""

    def __init__(self, root_rank: int, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._root = root_rank
        self._process_set = process_set
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts the variables that every rank has."""
        for variables in self._variables():
            shapes = [tuple(variable.shape) for variable in variables]
            if all(other == shapes for other in gather_objects(self._process_set.comm(), shapes)):
                broadcast_variables(variables, self._root, self._process_set)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts all variables, once."""
        if not self._is_done:
            for variables in self._variables():
                broadcast_variables(variables, self._root, self._process_set)
            self._is_done = True

    def _variables(self) -> list[list[Any]]:
        """The variables of the model, if it has been called, and the variables of the optimizer."""
        model: Any = self.model
        return [list(model.variables) if model.built else [], [] if model.optimizer is None else variables_of(model.optimizer)]


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch over the ranks. Callbacks after this one see the averages."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the metrics of the epoch."""
        names = sorted(logs or ())
        if names:
            values = numpy.array([float(logs[name]) for name in names])
            (means,) = reduced([values], None, Average, self._process_set)
            logs.update(zip(names, means.tolist()))


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to ``initial_lr`` times ``multiplier`` from ``start_epoch`` until ``end_epoch``. ``multiplier`` is a number or a
    function of the epoch.

    Without ``staircase`` the epoch is a fraction, and the rate changes with each batch. ``momentum_correction`` is accepted for Horovod's
    sake, and changes nothing: a compiled step of Keras 3 cannot change its momentum.
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
        """Finds out the number of steps of an epoch."""
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
        """Adds the rate to the metrics."""
        if logs is not None:
            logs["lr"] = _rate_of(self.model)

    def _set(self, epoch: float) -> None:
        if self._start <= self._epoch and (self._end is None or self._epoch < self._end):
            model: Any = self.model
            model.optimizer.learning_rate = self._initial * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate during ``warmup_epochs``, from ``initial_lr`` divided by the number of ranks to ``initial_lr``."""

    def __init__(
        self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        def multiplier(epoch: float) -> float:
            # One batch is added, so that the last batch of the last epoch has the whole rate.
            reached = min((epoch + 1 / (self._steps or 1)) / warmup_epochs, 1.0)
            return (1 + reached * (size() - 1)) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._warmup, self._verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints a line when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup - 1 and self._verbose:
            print(f"\nEpoch {epoch + 1}: the warm-up ends with the learning rate {_rate_of(self.model):g}.")
