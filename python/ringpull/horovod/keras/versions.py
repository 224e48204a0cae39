"""Tells Keras 2 and Keras 3 apart, and reads attributes that have different names in the two.

Keras 2 is the package `tf_keras`, or the package `keras` before version 3. With TF_USE_LEGACY_KERAS=1, `tensorflow.keras` is `tf_keras`. A
program may use both versions, and may import its Keras after this package. So nothing here imports a Keras.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import numpy

__all__ = ["array_of", "keras_in_use", "keras_of", "variables_of"]

_NAMES = ("keras", "tf_keras")

if not any(name in sys.modules or importlib.util.find_spec(name) for name in _NAMES):
    raise ModuleNotFoundError("horovod.keras needs Keras\n  hint: pip install keras, for Keras 3, or tensorflow tf_keras, for Keras 2", name="keras")


def keras_of(one: Any) -> Any:
    """The module `keras` or `tf_keras` that defines a class of the object. None if neither does."""
    roots = (kind.__module__.partition(".")[0] for kind in type(one).__mro__)
    return next((sys.modules[root] for root in roots if root in _NAMES), None)


def keras_in_use() -> ModuleType:
    """The Keras that the program has imported. If the program has imported both or none, TF_USE_LEGACY_KERAS decides, as in TensorFlow."""
    loaded = [name for name in _NAMES if name in sys.modules]
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") and importlib.util.find_spec("tf_keras") is not None
    return importlib.import_module(loaded[0] if len(loaded) == 1 else _NAMES[is_legacy])


def array_of(value: Any) -> numpy.ndarray[Any, Any]:
    """A copy, as a NumPy array, of a number, an array, or a tensor or variable of Keras 2 or 3."""
    keras: Any = sys.modules.get("keras")
    if hasattr(keras, "ops") and (keras_of(value) is keras or keras.ops.is_tensor(value)):
        value = keras.ops.convert_to_numpy(value)
    elif callable(getattr(value, "numpy", None)):
        value = value.numpy()
    return numpy.array(value, order="C")


def variables_of(optimizer: Any) -> list[Any]:
    """An optimizer's variables. They are an attribute, or in Keras 2 a method."""
    found = optimizer.variables
    return list(found if isinstance(found, (list, tuple)) else found())
