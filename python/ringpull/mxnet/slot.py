"""A key's MXNet array, and the operations on it, which MXNet's dependency engine orders.

MXNet copies gradients into the key's array, because it knows every layout that an array may have. The engine then lends the array
to the store, which sums it in place. Later reads of the array wait for the sum, but no thread waits meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet
import numpy
from mxnet.base import _LIB, check_call

from .. import _native

_engine = _native.DependencyEngine(ctypes.cast(_LIB.MXEnginePushAsyncND, ctypes.c_void_p).value or 0)


def dtype_name(array: Any) -> str:
    """The name of an array's element type."""
    return numpy.dtype(array.dtype).name


class Slot:
    """The state of one key: the array that travels and, if there is an updater, the value that it updates."""

    def __init__(self, store: _native.Store, key: int | str, like: Any) -> None:
        self.store = store
        self.key = key
        self.shape = like.shape
        self.dtype = like.dtype
        self.array: Any = mxnet.nd.zeros(like.shape, ctx=mxnet.cpu(), dtype=like.dtype)
        #: The value that an updater changes. Without an updater the travelling array is the value.
        self.weight: Any = None
        self.array.wait_to_read()
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(self.array.handle, ctypes.byref(address)))
        self._address = address.value or 0
        self._dtype_name = dtype_name(like)

    def submit(self, what: str, priority: int = 0) -> None:
        """Makes the engine do ``push``, ``pull``, ``pushpull`` or ``sum`` with the array, after the array's earlier uses.

        A ``sum`` is a pushpull whose result is only in this array.
        """
        handle = self.array.handle.value or 0
        code = _engine.submit(
            self.store, what, self.key, handle, self._address, self.shape, self._dtype_name, priority
        )
        check_call(code)

    def gather(self, values: list[Any]) -> None:
        """Sets the array to the sum of the values. These may be on any device and in any of MXNet's layouts."""
        values[0].copyto(self.array)
        for value in values[1:]:
            other = mxnet.nd.empty(self.shape, ctx=mxnet.cpu(), dtype=self.dtype)
            value.copyto(other)
            mxnet.nd.elemwise_add(self.array, other, out=self.array)

    @property
    def value(self) -> Any:
        """The array that holds the key's value."""
        return self.array if self.weight is None else self.weight

    def keep_weight(self) -> Any:
        """Gives the value an array of its own, because the travelling array is going to hold gradients. Returns it."""
        if self.weight is None:
            self.weight = self.array.copy()
        return self.weight
