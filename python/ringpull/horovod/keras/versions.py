"""Keras 2 and Keras 3: of which an object is, and what their objects have in common under different names.

Keras 2 is the package `tf_keras`, which is `tensorflow.keras` where TF_USE_LEGACY_KERAS=1 is set, or `keras` before
version 3. A program may use both, and imports the one that it means after this package; so nothing here imports one.
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
    """The module `keras` or `tf_keras` that has a class of the object; None if neither has."""
    roots = (kind.__module__.partition(".")[0] for kind in type(one).__mro__)
    return next((sys.modules[root] for root in roots if root in _NAMES), None)


def keras_in_use() -> ModuleType:
    """The Keras that the program has imported. If it has imported both or none, TF_USE_LEGACY_KERAS decides, as in TensorFlow."""
    loaded = [name for name in _NAMES if name in sys.modules]
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") and importlib.util.find_spec("tf_keras") is not None
    return importlib.import_module(loaded[0] if len(loaded) == 1 else _NAMES[is_legacy])


def array_of(value: Any) -> numpy.ndarray[Any, Any]:
    """A copy in NumPy's of a number, an array, or a tensor or variable of either Keras."""
    keras: Any = sys.modules.get("keras")
    if hasattr(keras, "ops") and (keras_of(value) is keras or keras.ops.is_tensor(value)):
        value = keras.ops.convert_to_numpy(value)
    elif callable(getattr(value, "numpy", None)):
        value = value.numpy()
    return numpy.array(value, order="C")


def variables_of(optimizer: Any) -> list[Any]:
    """An optimizer's variables, which are an attribute or, in Keras 2, a method."""
    found = optimizer.variables
    return list(found if isinstance(found, (list, tuple)) else found())
