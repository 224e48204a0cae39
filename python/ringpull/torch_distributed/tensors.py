"""Prepares the memory of tensors for communicators. Contiguous memory is used in place, other memory is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ..errors import ArgumentError, UnsupportedError
from .work import nothing

__all__ = [
    "apart",
    "back",
    "check_outputs",
    "check_types",
    "flat_of",
    "joined",
    "lengths_of",
    "one_list_of",
    "one_of",
    "outputs_of",
    "share_memory",
    "whole_of",
]


def flat_of(tensor: torch.Tensor, is_read: bool = True) -> torch.Tensor:
    """The elements as one row in host memory: the tensor's own memory if that is contiguous and on the host, else other memory. The values are
    copied to other memory only if ``is_read``."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(
            f'a tensor on {tensor.device} for the backend "ringpull", which takes tensors on the CPU and on CUDA\n'
            "  hint: give tensors on these, or use another backend for that device"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout} is not supported\n"
            "  hint: give a dense tensor; for sparse tensors there is only all_reduce by SUM and AVG"
        )
    tensor = tensor.detach().resolve_neg().resolve_conj()
    if tensor.is_cuda:
        return _on_host(tensor, is_read)
    flat: torch.Tensor = tensor.contiguous().view(-1)
    return flat


def _on_host(tensor: torch.Tensor, is_read: bool) -> torch.Tensor:
    """Pinned memory for the tensor. If ``is_read``, copies the tensor's values to it in the order of the current stream, and waits for the
    copy."""
    host = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor.reshape(-1)) if is_read else host


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns True if the tensors are parts of the same storage."""

    def memory(tensor: torch.Tensor) -> int:
        return int(getattr(tensor, "untyped_storage", tensor.storage)().data_ptr())

    return memory(one) == memory(other)


def back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Writes the elements to the tensor, unless they are in its memory already."""
    if flat.data_ptr() == tensor.data_ptr() and tensor.is_contiguous() or not flat.numel():
        return
    tensor.copy_(flat.view(tensor.shape), non_blocking=True)


def _row(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One tensor of all tensors, if they are adjacent in the same storage, in this order; else None."""
    if any(tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        return None
    first = tensors[0]
    start = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != start or tensor.dtype != first.dtype:
            return None
        if not tensor.is_contiguous() or not share_memory(tensor, first):
            return None
        start += tensor.numel() * tensor.element_size()
    count = sum(tensor.numel() for tensor in tensors)
    row: torch.Tensor = first.detach().as_strided((count,), (1,), first.storage_offset())
    return row


def whole_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, which have one type, as one row. If the tensors are adjacent in memory, this is their own memory."""
    found = _row(tensors)
    return found if found is not None else torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors as one row. If the tensors are adjacent in memory, this is their own memory."""
    found = _row(tensors)
    return flat_of(found) if found is not None else torch.cat([flat_of(tensor) for tensor in tensors])


def apart(flat: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The elements in memory that they do not share with ``other``. Copies them if they share it."""
    return flat.clone() if flat.numel() and share_memory(flat, other) else flat


def outputs_of(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
    """Returns memory for the received elements of all outputs, concatenated, and a function that copies them to the outputs."""
    found = _row(outputs)
    if found is not None:
        whole = flat_of(found, is_read=False)
        return whole, lambda: back(found, whole)
    lengths = lengths_of(outputs)
    row = flat_of(outputs[0], is_read=False).new_empty(sum(lengths))

    def deliver() -> None:
        for output, part in zip(outputs, row.split(lengths)):
            back(output, part)

    return row, deliver


def lengths_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The number of elements of each tensor."""
    return [tensor.numel() for tensor in tensors]


def one_of(tensors: Any) -> torch.Tensor:
    """The one tensor of a call. PyTorch gives a list with one tensor for each device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"{len(tensors)} tensors were given instead of one\n  hint: give one tensor on each rank")
    return cast("torch.Tensor", tensors[0])


def one_list_of(lists: Any) -> Sequence[torch.Tensor]:
    """The one list of tensors of a call. PyTorch gives one list for each device."""
    if len(lists) != 1:
        raise ArgumentError(f"{len(lists)} lists of tensors were given instead of one\n  hint: give one list on each rank")
    return cast("Sequence[torch.Tensor]", lists[0])


def check_types(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            raise ArgumentError(
                f"{name} cannot mix tensors of {tensor.dtype} and {like.dtype}\n  hint: give tensors of one dtype"
            )


def check_outputs(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises if elements of a tensor that is to be written share memory."""
    for tensor in tensors:
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        if any(length > 1 and step == 0 for length, step in zip(tensor.shape, tensor.stride())):
            raise ArgumentError(
                f"{name} cannot write a tensor of shape {list(tensor.shape)} that was expanded: its elements share memory\n"
                "  hint: give tensor.contiguous()"
            )
