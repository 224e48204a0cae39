"""Operations on tensors of PyTorch, which Horovod has in this one module.

Operations that return a tensor can be differentiated. Operations whose names end in ``_`` work in place.
"""

from __future__ import annotations

from typing import Any

from ..operations import Operation
from . import reductions, scattering, travelling
from .reductions import *  # noqa: F403
from .scattering import *  # noqa: F403
from .travelling import *  # noqa: F403

__all__ = ["poll", "synchronize"]
__all__ += reductions.__all__ + scattering.__all__ + travelling.__all__


def poll(handle: Operation) -> bool:
    """Returns True if :func:`synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Operation) -> Any:
    """Waits for an operation and returns its result."""
    return handle.wait()
