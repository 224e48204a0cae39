"""Translates PyTorch's reductions of tensors to reductions and element types that communicators have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from ..errors import KVStoreError, UnsupportedError
from .tensors import back, flat_of

__all__ = ["BITWISE", "Sum", "op_of", "refused"]

#: Untyped, because the attributes of PyTorch differ from version to version.
_distributed: Any = torch.distributed

#: For types that communicators do not reduce, the type in which they are reduced with the same result.
_WIDER = {
    torch.int16: torch.int32,
    getattr(torch, "uint16", None): torch.int32,
    getattr(torch, "uint32", None): torch.int64,
}

_REDUCTIONS = {
    "SUM": "sum",
    "AVG": "average",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "PREMUL_SUM": "sum",
}
BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
#: The reductions of truth values, as reductions of bytes that are 0 or 1.
_OF_TRUTH = {"SUM": "max", "MAX": "max", "BOR": "max", "PRODUCT": "min", "MIN": "min", "BAND": "min"}


def op_of(options: Any) -> tuple[str, float | torch.Tensor]:
    """The name of a reduction, and the factor by which each rank's elements are multiplied."""
    op = getattr(options, "reduceOp", options)
    if op is None:
        return "SUM", 1.0
    for name in (*_REDUCTIONS, *BITWISE):
        known = getattr(_distributed.ReduceOp, name, None)
        if known is not None and op == known:
            if name != "PREMUL_SUM":
                return name, 1.0
            return name, op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    raise UnsupportedError(f"there is no reduction {op}\n  hint: give one of {', '.join((*_REDUCTIONS, *BITWISE))}")


def refused(name: str, dtype: torch.dtype, known: str) -> KVStoreError:
    """The error for a reduction that does not exist. `known` are the reductions that exist for this type."""
    return UnsupportedError(f"there is no reduction of {dtype} by {name}\n  hint: the reductions of {dtype} are {known}")


class Sum:
    """The reduction of a tensor: its elements in a type that can be reduced, and the reduction's name."""

    def __init__(self, tensor: torch.Tensor, options: Any) -> None:
        name, factor = op_of(options)
        self.flat, self.prescale = flat_of(tensor), 1.0
        dtype = tensor.dtype
        if tensor.is_complex() and name not in ("SUM", "AVG", "PREMUL_SUM"):
            raise refused(name, dtype, "SUM and AVG")
        if dtype == torch.bool:
            if name not in _OF_TRUTH:
                raise refused(name, dtype, ", ".join(_OF_TRUTH))
            self.reduction = _OF_TRUTH[name]
            return
        if name in BITWISE:
            raise refused(name, dtype, ", ".join(_REDUCTIONS))
        self.reduction = _REDUCTIONS[name]
        if self.flat.dtype in _WIDER:
            self.flat = self.flat.to(_WIDER[self.flat.dtype])
        if isinstance(factor, torch.Tensor) and factor.numel() != 1:
            self.flat = self.flat * factor.to(self.flat)
        else:
            self.prescale = float(factor)

    def back(self, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        """Writes the result to the tensor."""
        if tensor.dtype in _WIDER:
            flat = flat.to(tensor.dtype)
        back(tensor, flat)
