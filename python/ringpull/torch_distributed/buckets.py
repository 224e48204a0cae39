"""The memory of DistributedDataParallel's buckets: it is shared by the ranks of a host, which then add each
other's gradients where they are.

PyTorch's reducer allocates a bucket by ``at::empty``, when it is made and once more when it knows the order of
the gradients. A backend may have a say in that (``allocateTensor``), but not one in Python, as its arguments
have no form there. So the reducer of a group of ours allocates under a dispatch mode, which gives it memory of
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

#: What PyTorch has differs from version to version.
_torch: Any = torch
_distributed: Any = torch.distributed
#: From this length on memory is shared: see :func:`ringpull.zeros`.
_LEAST_BYTES = 128 << 10


class _Shared(TorchDispatchMode):
    """Gives large buffers in host memory from what the ranks of a host share."""

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
    """PyTorch's reducer, with buckets in memory that ranks share if its group is ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.group = next((given for given in (*args, *kwargs.values()) if is_ours(given)), None)
        self._is_ours = self.group is not None
        if not self._is_ours:
            super().__init__(*args, **kwargs)
            return
        with _Shared():
            super().__init__(*args, **kwargs)

    def _rebuild_buckets(self) -> bool:
        # Called in each forward pass; only one of them makes buckets.
        if not self._is_ours:
            return bool(super()._rebuild_buckets())
        with _Shared():
            is_rebuilt = bool(super()._rebuild_buckets())
        self._is_ours = not is_rebuilt
        return is_rebuilt


def _register_builtin_comm_hook(reducer: Any, kind: Any, register: Any = _distributed._register_builtin_comm_hook) -> None:
    """As PyTorch's. Its hook in C++ that compresses wants a future that C++ completes; it has the same in Python."""
    group = getattr(reducer, "group", None)
    if group is None or kind != _distributed.BuiltinCommHookType.FP16_COMPRESS:
        register(reducer, kind)
        return
    _distributed._register_comm_hook(reducer, group, default_hooks.fp16_compress_hook)


def share() -> None:
    """Lets DistributedDataParallel make its buckets so from now on, for groups of ours alone."""
    _distributed.Reducer = _Reducer
    _distributed._register_builtin_comm_hook = _register_builtin_comm_hook
