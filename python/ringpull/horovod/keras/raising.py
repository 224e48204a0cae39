"""Errors of a collective inside a compiled step. If a callback raises, JAX and TensorFlow raise errors of their own instead; this makes
`fit` and `train_on_batch` raise the collective's error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["raise_own_errors", "remembering_errors"]

#: The errors that callbacks have raised since the present call of a method of Keras began. Only the first is raised to the program.
_raised: list[Exception] = []


def remembering_errors(callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback for a compiled step. If it raises, the method of Keras that runs the step raises the same error."""

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
                # TensorFlow's error names an operation that is not in the program.
                text = f"{method.__name__} of a model that XLA compiles: gradients cannot be reduced inside\n  hint: give compile(jit_compile=False)"
                raise ValueError(text) from None
            if not _raised:
                raise
            # The framework's error is not shown too: it only repeats the text of this error among its own tracebacks.
            first = _raised[0]
            _raised.clear()
            raise first from None

    return call


@functools.cache
def raise_own_errors(keras: Any) -> None:
    """Makes the training methods of every `Model` of this Keras raise a collective's error unchanged."""
    for name in ("fit", "train_on_batch"):
        setattr(keras.Model, name, _raising(getattr(keras.Model, name)))
