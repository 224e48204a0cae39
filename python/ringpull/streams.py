"""The stream that a library uses at present. By it a store orders its work on the library's tensors with the library's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["current"]

#: The number of CUDA's legacy default stream in DLPack and in the driver. Libraries return 0 for it.
_DEFAULT = 1
#: The number of the calling thread's own default stream. Other threads cannot refer to this stream.
_PER_THREAD = 2


def _torch(tensor: Any) -> int:
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _cupy(tensor: Any) -> int:
    import cupy

    with tensor.device:
        return int(cupy.cuda.get_current_stream().ptr)


#: For each library's package, a function that returns its current stream.
_CURRENT: dict[str, Callable[[Any], int]] = {"torch": _torch, "cupy": _cupy}


def current(tensor: Any) -> int | None:
    """The stream on which the tensor's library would queue its next work on ``tensor``. None if this cannot be known."""
    find = _CURRENT.get(type(tensor).__module__.partition(".")[0])
    if find is None:
        return None
    stream = find(tensor) or _DEFAULT
    return None if stream == _PER_THREAD else stream
