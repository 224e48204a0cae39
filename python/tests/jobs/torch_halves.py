"""Tests averages of float16 and bfloat16 by the optimizer, with large and small values."""

import torch

import ringpull
import ringpull.torch

store = ringpull.create("dist_sync_mpi")
rank, ranks = store.rank, store.num_workers


def average_of(gradient):
    """The average of the gradient, from a step of learning rate 1 that begins at zero."""
    # Each dtype and length has its own name.
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    prefix = f"{gradient.dtype}.{len(gradient)}"
    optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), store, prefix)
    (parameter * gradient).sum().backward()
    optimizer.step()
    return -parameter.detach()


def rounded(exact, dtype):
    return exact.to(dtype).double()


# The sum is too large for the type, but the average is not.
for dtype, large in (torch.float16, 40000.0), (torch.bfloat16, 2.0**127), (torch.float32, 40000.0):
    got = average_of(torch.full((5,), large, dtype=dtype))
    assert got.dtype == dtype and (got == large).all(), (dtype, got)
# Values from the smallest subnormal up to the largest. Every rank makes the values of all ranks.
for dtype, smallest, digits in (torch.float16, 2.0**-24, 11), (torch.bfloat16, 2.0**-133, 8):
    random = torch.Generator().manual_seed(1)
    exponents = torch.linspace(-24, 14, 4000)
    values = (torch.rand(ranks, 4000, generator=random) * 2 - 1) * 2**exponents
    values = values.to(dtype)
    exact = values.double().mean(0)
    got = average_of(values[rank].clone()).double()
    # Each addition rounds once, and so does the correction for a number of ranks that is no power of two.
    largest = values.double().abs().sum(0) / ranks
    roundings = ranks - 1 + (ranks & (ranks - 1) != 0)
    bound = roundings * largest * 2.0**-digits * 1.001 + ranks * smallest
    assert ((got - exact).abs() <= bound).all(), (dtype, (got - exact).abs().max())
    if ranks == 2:
        normal = values.double().abs().amin(0) >= 2 * 2.0**-14
        assert (got == rounded(exact, dtype))[normal].all(), dtype
# float32 that is compressed to float16 has the same property.
store.set_gradient_compression({"type": "fp16"})
got = average_of(torch.full((7,), 40000.0))
assert (got == 40000).all(), got
print(f"rank {rank} is done", flush=True)
