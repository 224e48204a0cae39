"""Errors of communicators in the form in which PyTorch's programs catch them."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch.distributed

from ..errors import ArgumentError, KVStoreError

__all__ = ["raised", "same"]

#: PyTorch before 2.0 has no class for these errors.
_BackendError: type[Exception] = getattr(torch.distributed, "DistBackendError", RuntimeError)

_classes: dict[type[KVStoreError], type[Any]] = {}


def raised(error: KVStoreError) -> KVStoreError:
    """The error in a form that ``except torch.distributed.DistBackendError`` catches too. An error of a wrong argument is returned
    unchanged."""
    kind = type(error)
    if isinstance(error, (ArgumentError, _BackendError)):
        return error
    if kind not in _classes:
        names = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        _classes[kind] = type(kind.__name__, (kind, _BackendError), names)
    found = cast("KVStoreError", _classes[kind](*error.args))
    found.__dict__.update(error.__dict__)
    return found


def same(error: Exception) -> Exception:
    """A copy of an error that is kept. The copy is raised instead, because a raised error keeps the frames that it passes, and their
    tensors."""
    found = copy.copy(error)
    found.__traceback__ = found.__cause__ = found.__context__ = None
    return found
