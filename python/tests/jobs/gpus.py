"""Tests tensors in the memory of simulated GPUs, by hand-made capsules and by ``__cuda_array_interface__``, because no framework knows
these GPUs.

The owner of each tensor works on a stream of its own, and orders it with the stream that DLPack gives it. The driver reports accesses that
nothing orders.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_devices import CUDA, OnDevice

import ringpull

driver = ctypes.CDLL("libcuda.so.1")
LEN = 5


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def made(name, kind, *arguments):
    result = kind()
    call(name, ctypes.byref(result), *arguments)
    return result


call("cuInit", 0)
contexts = [made("cuDevicePrimaryCtxRetain", ctypes.c_void_p, number) for number in range(2)]


class OnGpu(OnDevice):
    """A tensor of float32 on a GPU, written on its owner's stream."""

    def __init__(self, value, number=0):
        super().__init__(np.full(LEN, value, np.float32), number, code=CUDA)
        call("cuCtxSetCurrent", contexts[number])
        self.context, self.content = contexts[number], self.array
        self.owners = made("cuStreamCreate", ctypes.c_void_p, 1)
        self.address = made("cuMemAlloc_v2", ctypes.c_uint64, self.array.nbytes)
        call(
            "cuMemcpyHtoDAsync_v2",
            self.address,
            ctypes.c_uint64(self.array.ctypes.data),
            ctypes.c_size_t(self.array.nbytes),
            self.owners,
        )

    def data(self):
        return self.address.value

    def __dlpack__(self, *, stream=None):
        assert stream not in (None, 0, -1), stream
        call("cuCtxSetCurrent", self.context)
        event = made("cuEventCreate", ctypes.c_void_p, 2)
        call("cuEventRecord", event, self.owners)
        call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        call("cuEventDestroy_v2", event)
        return super().__dlpack__(stream=stream)

    def seen(self):
        call("cuCtxSetCurrent", self.context)
        found = np.empty(LEN, np.float32)
        call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_uint64(found.ctypes.data),
            self.address,
            ctypes.c_size_t(found.nbytes),
            self.owners,
        )
        return found.tolist()


class ByInterface(OnGpu):
    """Such a tensor that has only ``__cuda_array_interface__``, like Numba's arrays."""

    __dlpack__ = __dlpack_device__ = property()

    def __init__(self, value, number=0, **more):
        super().__init__(value, number)
        self.__cuda_array_interface__ = {
            "shape": (LEN,),
            "typestr": "<f4",
            "data": (self.address.value, False),
            "version": 3,
            "strides": None,
            "stream": self.owners.value,
            **more,
        }


def refused(named, made):
    try:
        store.pushpull("w", made)
    except (ringpull.ArgumentError, ringpull.LibraryError) as error:
        assert named in str(error), error
    else:
        raise AssertionError(f"it was taken: {named}")


with ringpull.create("device") as store:
    store.init("w", OnGpu(0))
    for step in range(1, 4):
        values = [OnGpu(step), OnGpu(10 * step, 1)]
        outs, on_host = [OnGpu(0), OnGpu(0, 1)], np.zeros(LEN, np.float32)
        store.pushpull("w", values, [*outs, on_host])
        assert outs[0].seen() == outs[1].seen() == on_host.tolist() == [11 * step] * LEN
        store.pushpull("w", values)
        assert values[0].seen() == values[1].seen() == [11 * step] * LEN
        store.push("w", OnGpu(step))
        out = OnGpu(0, 1)
        store.pull("w", out)
        assert out.seen() == [step] * LEN
    for step in range(1, 4):
        values, outs = [ByInterface(step), ByInterface(10 * step, 1)], [ByInterface(0, 1), OnGpu(0)]
        store.pushpull("w", values, outs)
        assert outs[0].seen() == outs[1].seen() == [11 * step] * LEN
        store.pushpull("w", values)
        assert values[0].seen() == values[1].seen() == [11 * step] * LEN
    unordered = ByInterface(7, stream=None)
    call("cuStreamSynchronize", unordered.owners)
    store.pushpull("w", unordered)
    assert unordered.seen() == [7] * LEN
    cases: list[tuple[str, dict[str, Any]]] = [
        ("with stream 0", {"stream": 0}),
        ("per-thread default stream", {"stream": 2}),
        ("with a mask", {"mask": unordered}),
        ("read-only tensor", {"data": (unordered.address.value, True)}),
        ('typestr "|V4"', {"typestr": "|V4"}),
        ("strides [2]", {"strides": (8,)}),
        ("strides between elements", {"strides": (6,)}),
        ("cuPointerGetAttribute", {"data": (4096, False)}),
        ("without data", {"data": None}),
    ]
    for named, more in cases:
        refused(named, ByInterface(7, **more))
    assert unordered.seen() == [7] * LEN
print("the sums are right")
