"""Packs a state as bytes: a head with the lengths and hashes of the pieces, then the pickled state, then the memory of its arrays."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy

from .. import _native

__all__ = ["is_whole", "packed", "unpacked"]

_MAGIC = b"ringpull state 1"


def _hash_of(piece: memoryview) -> bytes:
    number = _native.hash_of(numpy.frombuffer(piece, numpy.uint8)) if piece.nbytes else 0
    return number.to_bytes(16, "little")


class _Pickler(pickle.Pickler):
    """A pickler that leaves out the memory of PyTorch's tensors too. These are unpacked into host memory."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if (kind.__module__, kind.__name__) != ("torch", "Tensor") or obj.requires_grad or str(obj.layout) != "torch.strided" or not obj.numel():
            return NotImplemented
        import torch

        found = obj.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(found), obj.dtype, tuple(obj.shape))


def _tensor(memory: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def packed(value: Any) -> list[memoryview]:
    """The pieces of the value's bytes. Arrays are not copied, so use the pieces before the value changes."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
    pieces = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    return [memoryview(_head(pieces)), *pieces]


def _head(pieces: Sequence[memoryview]) -> bytes:
    lengths = struct.pack(f"<{len(pieces) + 1}q", len(pieces), *(piece.nbytes for piece in pieces))
    hashes = b"".join(map(_hash_of, pieces))
    return _MAGIC + lengths + hashes


def _pieces(content: bytes | memoryview) -> list[memoryview] | None:
    """The pieces after the head. None if their lengths differ from those in the head."""
    view, start = memoryview(content), len(_MAGIC) + 8
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < start:
        return None
    (count,) = struct.unpack_from("<q", view, len(_MAGIC))
    if not 0 < count <= (len(view) - start) // 24:
        return None
    lengths = struct.unpack_from(f"<{count}q", view, start)
    at, pieces = start + 24 * count, []
    if min(lengths) < 0 or at + sum(lengths) != len(view):
        return None
    for length in lengths:
        pieces.append(view[at : at + length])
        at += length
    return pieces


def is_whole(content: bytes | memoryview) -> bool:
    """Returns True if the bytes are complete and unchanged since :func:`packed` made them."""
    pieces = _pieces(content)
    return pieces is not None and bytes(memoryview(content)[: len(_head([])) + 24 * len(pieces)]) == _head(pieces)


def unpacked(content: bytes | memoryview) -> Any:
    """The packed value, in new memory."""
    pieces = _pieces(content)
    assert pieces is not None
    return pickle.loads(pieces[0], buffers=[bytearray(piece) for piece in pieces[1:]])
