"""The memory of DistributedDataParallel's buckets. The ranks of a host share it, and so add each other's gradients in place.

PyTorch's reducer allocates the buckets by ``at::empty``: when the reducer is made, and once more when it knows the order of
the gradients. A backend can provide this memory (``allocateTensor``), but not a backend in Python, because the arguments
cannot be converted. So the reducer of a group of ours allocates under a dispatch mode, which gives it memory of
:func:`ringpull.zeros`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from ..kvstore import zeros
from .backend import is_ours

__all__ = ["share"]

#: Untyped, because the attributes of PyTorch differ from version to version.
_torch: Any = torch
_distributed: Any = torch.distributed
#: The least length of memory that is shared: see :func:`ringpull.zeros`.
_LEAST_BYTES = 128 << 10


class _Shared(TorchDispatchMode):
    """Allocates large buffers of host memory in memory that the ranks of a host share."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        device = given.get("device")
        if func is _torch.ops.aten.empty.memory_format and (device is None or device.type == "cpu"):
            dtype = given.get("dtype") or torch.get_default_dtype()
            shape = torch.Size(args[0])
            len_bytes = shape.numel() * torch.empty(0, dtype=dtype).element_size()
            if len_bytes >= _LEAST_BYTES:
                return torch.from_numpy(zeros(len_bytes, "uint8")).view(dtype).view(shape)
        return func(*args, **given)


class _Reducer(_distributed.Reducer):  # type: ignore[misc]
    """PyTorch's reducer. If its group is ours, its buckets are in memory that ranks share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.group = next((given for given in (*args, *kwargs.values()) if is_ours(given)), None)
        self._is_ours = self.group is not None
        if not self._is_ours:
            super().__init__(*args, **kwargs)
            return
        with _Shared():
            super().__init__(*args, **kwargs)

    def _rebuild_buckets(self) -> bool:
        # This is called in each forward pass, but only one of these calls makes buckets.
        if not self._is_ours:
            return bool(super()._rebuild_buckets())
        with _Shared():
            is_rebuilt = bool(super()._rebuild_buckets())
        self._is_ours = not is_rebuilt
        return is_rebuilt


def _register_builtin_comm_hook(reducer: Any, kind: Any, register: Any = _distributed._register_builtin_comm_hook) -> None:
    """Replaces PyTorch's function. The compressing hook in C++ needs a future that C++ completes, so this uses PyTorch's equal hook in
    Python."""
    group = getattr(reducer, "group", None)
    if group is None or kind != _distributed.BuiltinCommHookType.FP16_COMPRESS:
        register(reducer, kind)
        return
    _distributed._register_comm_hook(reducer, group, default_hooks.fp16_compress_hook)


def share() -> None:
    """Makes DistributedDataParallel put its buckets into shared memory from now on, but only for groups of ours."""
    _distributed.Reducer = _Reducer
    _distributed._register_builtin_comm_hook = _register_builtin_comm_hook
