"""Tests that tensors of every library are used in place: they are written in place, and read without a copy of ours."""

import numpy as np
import pytest

import ringpull


def mxnet_ones(shape):
    mx = pytest.importorskip("mxnet")
    made = mx.nd.ones(shape)
    made.wait_to_read()
    return made, lambda: made.asnumpy()


def torch_ones(shape):
    torch = pytest.importorskip("torch")
    made = torch.ones(shape)
    # The NumPy array shares the tensor's memory, so a result that is written to other memory does not appear in it.
    return made, made.numpy


def numpy_ones(shape):
    made = np.ones(shape, np.float32)
    return made, lambda: made


@pytest.mark.parametrize("made", [numpy_ones, mxnet_ones, torch_ones])
def test_a_tensor_is_summed_in_its_own_memory(made):
    value, content = made((300, 5))
    out, of_out = made((300, 5))
    with ringpull.create("local") as store:
        store.init("k", value)
        store.pushpull("k", [value, value], out)
        assert (of_out() == 2).all() and (content() == 1).all()
        store.pushpull("k", value)
        assert (content() == 1).all()
        store.push("k", [value] * 3)
        store.pull("k", [value, out])
        assert (content() == 3).all() and (of_out() == 3).all()


def test_a_part_of_a_torch_tensor_is_written_in_place_and_a_transposed_one_is_an_error():
    torch = pytest.importorskip("torch")
    whole = torch.zeros(4, 3)
    with ringpull.create("local") as store:
        store.init("k", torch.ones(3))
        store.pull("k", whole[2])
        assert whole.tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3, [0.0] * 3]
        store.init("t", torch.ones(3, 4))
        with pytest.raises(ringpull.ArgumentError, match="contiguous"):
            store.pull("t", whole.T)


def test_an_array_of_jax_goes_in_and_comes_out_of_an_array_of_numpy():
    jax = pytest.importorskip("jax")
    value, out = jax.numpy.arange(6.0).reshape(2, 3), np.empty((2, 3), np.float32)
    with ringpull.create("local") as store:
        store.init("k", value)
        store.pushpull("k", [value, value], out)
        assert (out == 2 * np.arange(6).reshape(2, 3)).all()
        with pytest.raises(ringpull.ArgumentError, match="a JAX array as an output"):
            store.pull("k", value)
