"""A key's array in MXNet's hands, and the operations on it that MXNet's dependency engine orders.

Gradients are copied into the key's array by MXNet, which knows every layout an array may have; the engine then lends the array
to the store, which sums it in place, and whatever reads it afterwards waits for that. No thread waits meanwhile.
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
    """The state of one key: the array that travels, and the value that it updates if there is an updater."""

    def __init__(self, store: _native.Store, key: int | str, like: Any) -> None:
        self.store = store
        self.key = key
        self.shape = like.shape
        self.dtype = like.dtype
        self.array: Any = mxnet.nd.zeros(like.shape, ctx=mxnet.cpu(), dtype=like.dtype)
        #: The value that an updater keeps; without one the travelling array is the value.
        self.weight: Any = None
        self.array.wait_to_read()
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(self.array.handle, ctypes.byref(address)))
        self._address = address.value or 0
        self._dtype_name = dtype_name(like)

    def submit(self, what: str, priority: int = 0) -> None:
        """Lets the engine do ``push``, ``pull``, ``pushpull`` or ``sum`` with the array, when its earlier uses are done.

        A ``sum`` is a pushpull whose result this array alone has.
        """
        handle = self.array.handle.value or 0
        code = _engine.submit(
            self.store, what, self.key, handle, self._address, self.shape, self._dtype_name, priority
        )
        check_call(code)

    def gather(self, values: list[Any]) -> None:
        """The array becomes the sum of the values, which may be on any device and in any of MXNet's layouts."""
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
        """The value apart from the travelling array, which is going to hold gradients."""
        if self.weight is None:
            self.weight = self.array.copy()
        return self.weight
