"""Errors of a collective inside a compiled step. JAX and TensorFlow make errors of their own of what a callback
raises; `fit` and `train_on_batch` raise the collective's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["raise_own_errors", "remembering_errors"]

#: What callbacks have raised since the present call of Keras's began. Only the first is told.
_raised: list[Exception] = []


def remembering_errors(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback of a compiled step, whose error the call of Keras's that runs the step raises."""

    def call(*values: Any) -> Any:
        try:
            return callback(*values)
        except Exception as error:
            _raised.append(error)
            raise

    return call


def _raising(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        _raised.clear()
        try:
            return method(*arguments, **keywords)
        except Exception as error:
            if not _raised and "PyFunc" in str(error) and "XLA" in str(error):
                # TensorFlow names an operation that the program has not.
                text = f"{method.__name__} of a model that XLA compiles: gradients cannot be reduced inside\n  hint: give compile(jit_compile=False)"
                raise ValueError(text) from None
            if not _raised:
                raise
            # The framework's error repeats the text of this one among its own tracebacks.
            first = _raised[0]
            _raised.clear()
            raise first from None

    return call


@functools.cache
def raise_own_errors(keras: Any) -> None:
    """From now on the methods of every `Model` of this Keras that train raise a collective's error as it is."""
    for name in ("fit", "train_on_batch"):
        setattr(keras.Model, name, _raising(getattr(keras.Model, name)))
