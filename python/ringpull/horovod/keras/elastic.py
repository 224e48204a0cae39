"""``horovod.keras.elastic`` on :mod:`ringpull.elastic`: the state of a model of Keras 2 or 3 and its optimizer, and callbacks that commit it."""

from __future__ import annotations

from typing import Any

import numpy

from ..elastic import State, run
from .callbacks import Callback
from .versions import array_of, variables_of

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class _Variables:
    """The values of a model's and an optimizer's variables, which are saved and loaded in place."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, list[numpy.ndarray[Any, Any]]]:
        """The values."""
        of_optimizer = [] if self._optimizer is None else variables_of(self._optimizer)
        return {"model": [array_of(one) for one in self._model.variables], "optimizer": [array_of(one) for one in of_optimizer]}

    def load_state_dict(self, values: dict[str, list[numpy.ndarray[Any, Any]]]) -> None:
        """Gives each variable its value."""
        if self._optimizer is not None and len(variables_of(self._optimizer)) != len(values["optimizer"]):
            # In a process that has not trained yet the optimizer may have no variables.
            build = getattr(self._optimizer, "build", None) or self._optimizer._create_all_weights
            build(self._model.trainable_variables)
        own = {"model": list(self._model.variables), "optimizer": [] if self._optimizer is None else variables_of(self._optimizer)}
        for name, variables in own.items():
            if len(variables) != len(values[name]):
                raise ValueError(
                    f"the {name} has {len(variables)} variables, and its state {len(values[name])}"
                    "\n  hint: build the model before KerasState, and train one step, as every rank must"
                )
            for variable, value in zip(variables, values[name]):
                variable.assign(value)
        # With JAX a `fit` that has failed leaves all variables without values, also those of the metrics.
        if hasattr(self._model, "reset_metrics"):
            self._model.reset_metrics()


class KerasState(State):
    """The state of a model, of its optimizer, and of other objects by name, such as ``batch=0, epoch=0``. The optimizer need not be given if
    it is the one of ``model.compile``."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("KerasState of a model that is not built\n  hint: call model.build(input_shape), or train one step first")
        self.model, self.optimizer = model, optimizer or getattr(model, "optimizer", None)
        super().__init__(keras_variables=_Variables(model, self.optimizer), **kwargs)


class CommitStateCallback(Callback):
    """Commits the state after every ``batches_per_commit`` batches, and after each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        self._state, self._every = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count batches from 0, as every rank does."""
        self._left = self._every

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits after every ``batches_per_commit`` batches."""
        self._left -= 1
        if self._left == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits the state."""
        self._commit()

    def _commit(self) -> None:
        self._left = self._every
        # With JAX, reading `self.model` writes the variables back to the model.
        if self.model is not None:
            self._state.commit()


class UpdateBatchStateCallback(Callback):
    """Sets ``state.batch`` to the number of the last batch, and to 0 after an epoch."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stores the number of the batch."""
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the number of the batch to 0."""
        self._state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Sets ``state.epoch`` to the number of finished epochs, including those before ``fit`` was called."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._first = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count from the epochs that are finished already."""
        self._first = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the epoch to the count."""
        self._state.epoch = self._first + epoch + 1
