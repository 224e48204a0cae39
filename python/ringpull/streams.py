"""The stream that a library works on at present, so that a store's work on its tensors is ordered with the library's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["current"]

#: CUDA's legacy default stream, as DLPack and the driver name it; libraries call it 0.
_DEFAULT = 1
#: Each thread's own default stream: no other thread can name it.
_PER_THREAD = 2


def _torch(tensor: Any) -> int:
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _cupy(tensor: Any) -> int:
    import cupy

    with tensor.device:
        return int(cupy.cuda.get_current_stream().ptr)


#: By the package that a tensor's class is of.
_CURRENT: dict[str, Callable[[Any], int]] = {"torch": _torch, "cupy": _cupy}


def current(tensor: Any) -> int | None:
    """The stream that the tensor's library would put its next work on ``tensor`` on; None where that cannot be known."""
    find = _CURRENT.get(type(tensor).__module__.partition(".")[0])
    if find is None:
        return None
    stream = find(tensor) or _DEFAULT
    return None if stream == _PER_THREAD else stream
