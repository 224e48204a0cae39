"""Tensors on devices by DLPack: hand-made capsules for simulated devices. Their memory is host memory."""

import ctypes
import mmap

import numpy as np
import pytest
from ranks import job

import ringpull
from ringpull import streams

#: DLPack's codes of devices: a GPU, and the code that is reserved for tests.
CUDA, EXTENSION = 2, 12


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CAPSULE_NEW = ctypes.pythonapi.PyCapsule_New
CAPSULE_NEW.restype = ctypes.py_object
CAPSULE_NEW.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

#: The structures to which capsules point, until their deleters are called.
alive: dict[int, object] = {}


@DELETER
def delete(address):
    del alive[address]


class OnDevice:
    """A tensor of float32 in the memory of a NumPy array. It declares this memory to be on a device."""

    def __init__(self, array, number=0, code=EXTENSION, truly=None, strides=None):
        self.array, self.said, self.truly, self.strides = array, (code, number), truly or (code, number), strides
        self.streams = []

    def data(self):
        return self.array.ctypes.data

    def __dlpack_device__(self):
        return self.said

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        strides = self.strides and (ctypes.c_int64 * self.array.ndim)(*self.strides)
        tensor = DLTensor(
            self.data(),
            self.truly,
            self.array.ndim,
            (2, 32, 1, 0),
            shape,
            strides and ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        managed = Managed(tensor, None, ctypes.cast(delete, ctypes.c_void_p))
        alive[ctypes.addressof(managed)] = (managed, shape, strides, self.array)
        return CAPSULE_NEW(ctypes.addressof(managed), b"dltensor", None)


class RefusingBuffer(OnDevice, mmap.mmap):
    """A tensor like CuPy's and JAX's arrays: it also has the buffer protocol, which refuses memory on a device."""

    def __new__(cls, *args, **more):
        return mmap.mmap.__new__(cls, -1, 1)

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.close()


def full(value, number=0, **more):
    return OnDevice(np.full(5, value, np.float32), number, **more)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("RINGPULL_DEVICES", "sim:2")
    with ringpull.create("device") as made:
        yield made
    assert not alive


def test_a_tensor_on_a_device_is_used_where_it_is(store):
    store.init("w", full(1))
    out = full(0)
    store.pull("w", out)
    assert out.array.tolist() == [1] * 5
    value = full(3)
    store.pushpull("w", value)
    assert value.array.tolist() == [3] * 5
    store.pushpull("w", value, out)
    assert out.array.tolist() == [3] * 5


def test_a_tensor_on_each_device_is_summed_with_one_in_host_memory(store):
    store.init("w", np.zeros(5, np.float32))
    values = [full(1), full(10, 1), np.full(5, 100, np.float32)]
    outs = [full(0), full(0, 1), np.empty(5, np.float32)]
    store.pushpull("w", values, outs)
    assert outs[0].array.tolist() == outs[1].array.tolist() == outs[2].tolist() == [111] * 5
    both = [full(1), full(10, 1)]
    store.pushpull("w", both)
    assert both[0].array.tolist() == both[1].array.tolist() == [11] * 5


def test_memory_that_is_given_twice_gives_exact_sums_or_an_error(store):
    store.init(["v", "w"], [np.zeros(5, np.float32)] * 2)
    for _ in range(20):
        x, y = full(1), full(10)
        store.pushpull(["v", "w"], [x, y], [y, x])
        assert x.array.tolist() == [10] * 5 and y.array.tolist() == [1] * 5
        memory = np.zeros(8, np.float32)
        memory[:5] = range(5)
        store.pushpull("v", OnDevice(memory[:5]), OnDevice(memory[3:]))
        assert memory.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
        handles = [store.pushpull(key, [OnDevice(memory[:5]), OnDevice(memory[:5])], wait=False) for key in "vw"]
        assert all(handle.wait() for handle in handles)
        assert memory.tolist() == [0, 4, 8, 0, 4, 2, 3, 4]
    with pytest.raises(ringpull.ArgumentError, match='outputs of keys "v" and "w" share memory'):
        store.pushpull(["v", "w"], [OnDevice(memory[:5]), OnDevice(memory[3:])])


def test_a_pushed_tensor_may_be_changed_at_once(store):
    store.init("w", np.zeros(5, np.float32))
    for values, total in (([full(1)], 1), ([full(1), full(2, 1)], 3), ([full(1), full(2), full(3)], 6)):
        store.push("w", values)
        for value in values:
            value.array[:] = 100
        out = np.empty(5, np.float32)
        store.pull("w", out)
        assert out.tolist() == [total] * 5


def test_the_producer_gets_the_stream_that_the_tensor_is_used_on(store):
    store.init("w", np.zeros(5, np.float32))
    first, second = full(1), full(2, 1)
    for value in (first, first, second):
        store.push("w", value)
    assert all(isinstance(stream, int) and stream > 2 for stream in first.streams + second.streams)
    assert len(set(first.streams)) == 1 and first.streams[0] != second.streams[0]


def test_a_stream_that_is_known_is_the_callers_own(store, monkeypatch):
    store.init("w", np.zeros(5, np.float32))
    probe = full(0)
    store.push("w", probe)
    [known] = probe.streams
    asked = []

    def current(tensor):
        asked.append(tensor)
        return known

    monkeypatch.setitem(streams._CURRENT, __name__.partition(".")[0], current)
    value, host = full(4), np.empty(5, np.float32)
    store.pushpull("w", value)
    # The result comes back in the order of the stream, so the host sees it only after it has waited for the devices.
    store.pull("w", host)
    assert value.streams == [known] and asked == [value]
    assert value.array.tolist() == host.tolist() == [4] * 5


def test_an_array_whose_buffer_is_refused_on_a_device_is_used_by_dlpack(store):
    store.init("w", RefusingBuffer(np.zeros(5, np.float32)))
    value, out = (RefusingBuffer(np.full(5, number, np.float32)) for number in (3, 0))
    store.push("w", value)
    store.pull("w", out)
    assert out.array.tolist() == [3] * 5
    with pytest.raises(ringpull.ArgumentError, match="mmap closed or invalid"):
        store.push("w", RefusingBuffer(np.zeros(5, np.float32), code=1))


def test_jax_arrays_are_no_outputs_also_on_a_device(store, monkeypatch):
    store.init("w", full(1))
    monkeypatch.setattr(RefusingBuffer, "__module__", "jaxlib._jax")
    array = RefusingBuffer(np.zeros(5, np.float32))
    with pytest.raises(ringpull.ArgumentError, match="a JAX array as an output"):
        store.pull("w", array)
    store.push("w", array)
    assert array.array.tolist() == [0] * 5


def test_streams_that_no_other_thread_can_name_are_not_used(monkeypatch):
    numbers = iter([0, 2, 77])
    monkeypatch.setitem(streams._CURRENT, __name__.partition(".")[0], lambda _: next(numbers))
    assert [streams.current(full(1)) for _ in range(3)] == [1, None, 77]
    assert streams.current(np.zeros(1)) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (full(1, code=CUDA), "tensor on cuda:0 for a store that works on sim:0, sim:1"),
        (full(1, 5), "DLPack device 12:5 for a store that works on sim:0, sim:1"),
        (full(1, truly=(EXTENSION, 1)), "12:1 whose __dlpack_device__ names another device"),
        (full(1, truly=(CUDA, 0)), "cuda:0 whose __dlpack_device__ names another device"),
        (full(1, code=1, truly=(CUDA, 0)), "cuda:0 whose __dlpack_device__ names another device"),
        (full(1, strides=[2]), "with strides"),
    ],
)
def test_what_cannot_be_used_is_an_error_and_changes_nothing(store, value, words):
    store.init("w", np.full(5, 2, np.float32))
    for call in (store.push, store.pushpull, store.pull):
        with pytest.raises(ringpull.ArgumentError, match=words):
            call("w", value)
    out = np.empty(5, np.float32)
    store.pull("w", out)
    assert out.tolist() == [2] * 5


def test_a_store_in_host_memory_says_what_it_takes_to_use_a_gpu(monkeypatch):
    monkeypatch.delenv("RINGPULL_DEVICES", raising=False)
    with ringpull.create("local") as store:
        with pytest.raises(ringpull.ArgumentError, match="tensor on cuda:3 for a store that works in host memory") as caught:
            store.init("w", full(1, 3, code=CUDA))
    for part in ("RINGPULL_DEVICES=cuda", "CUDA driver", "NCCL"):
        assert part in str(caught.value)


def test_ranks_sum_tensors_on_their_devices():
    done = job(2, "devices", RINGPULL_DEVICES="sim:2")
    assert [printed.out for printed in done.ranks] == ["the sums are right\n"] * 2, f"{done}"


def test_torchs_tensors_on_a_gpu_follow_the_current_stream(monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    monkeypatch.setenv("RINGPULL_DEVICES", "cuda:0")
    with ringpull.create("device") as store:
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                key = f"on {stream}"
                value = torch.zeros(1 << 20, device="cuda")
                store.init(key, value)
                for step in range(20):
                    value.fill_(step)
                    store.pushpull(key, [value, value], value)
                    value += 1
                    assert (value == 2 * step + 1).all().item()
