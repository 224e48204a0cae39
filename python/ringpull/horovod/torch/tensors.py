"""Converts tensors to memory that a communicator takes, and results to tensors where the caller wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

__all__ = [
    "delivered",
    "differentiable",
    "divided",
    "factors",
    "given_of",
    "into",
    "is_integral",
    "scaled",
]


def given_of(tensor: Any) -> Any:
    """The tensor's memory in the form that a communicator takes: on the host, contiguous, and detached from the graph."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"a {type(tensor).__name__} cannot be reduced or sent\n  hint: give a torch.Tensor")
    return tensor.detach().cpu().contiguous()


def into(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copies results to their tensors, unless they were written there."""
    for result, memory, tensor in zip(results, given, tensors):
        if result.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            with torch.no_grad():
                tensor.copy_(result if result is not memory else memory)


def is_integral(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def factors(tensors: Sequence[torch.Tensor], prescale: float, postscale: float) -> dict[str, float]:
    """The factors for floating-point numbers, in the type in which PyTorch multiplies: float32 also for smaller types."""
    is_double = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in tensors)
    dtype = torch.float64 if is_double else torch.float32
    both = torch.tensor([prescale, postscale], dtype=dtype).tolist()
    return {"prescale": both[0], "postscale": both[1]}


def divided(tensor: Any, count: int) -> Any:
    """Integers divided, rounded towards zero."""
    if tensor.dtype.is_signed or tensor.dtype == torch.uint8:
        return tensor.div(count, rounding_mode="trunc")
    # PyTorch does not divide tensors of these types.
    return torch.from_numpy(numpy.asarray(tensor.numpy() // count))


def scaled(tensor: Any, factor: float) -> Any:
    """Integers times a factor, rounded towards zero."""
    return tensor if factor == 1.0 else (tensor.double() * factor).to(tensor.dtype)


def delivered(
    done: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor] | None,
    is_single: bool,
) -> Any:
    """The results in the tensors that the caller gave for them, or in new ones on the tensors' devices."""
    if outs is not None:
        into(done, given, outs)
        results = list(outs)
    else:
        results = [result.reshape(tensor.shape).to(tensor.device) for result, tensor in zip(done, tensors)]
    return results[0] if is_single else results


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A function that autograd can differentiate: it calls ``forward`` with the tensors, and ``backward`` with the results' gradients."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            result = forward(*tensors)
            return tuple(result) if isinstance(result, list) else result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return backward(*gradients)

    return Function.apply
