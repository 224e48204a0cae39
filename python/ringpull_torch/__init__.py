"""Makes the backend ``ringpull`` of ``torch.distributed`` known at ``import torch``. It is the entry point of the group
``torch.backends``.

Every program that imports PyTorch imports this. So it loads nothing of ours before a process group is made, and changes
nothing for other backends. Without entry points, as with ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` and before PyTorch 2.5,
``import ringpull.torch_distributed`` does the same.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

__all__ = ["load", "register"]

#: The variables in which launchers of MPI give a process's rank and the number of ranks.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def _launched() -> tuple[str, str] | None:
    """This process's rank and the number of ranks, if a launcher of MPI started it."""
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return os.environ[rank], os.environ[size]
    return None


def _backend_given(function: str) -> str:
    """The argument ``backend`` of PyTorch's function that calls this. It is read from the stack, since PyTorch does not pass it on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_locals.get("backend")).lower()


def _create(options: Any, backend_options: Any = None) -> Any:
    from ringpull import torch_distributed

    return torch_distributed.create(options, _backend_given("_new_process_group_helper"))


def _meet(url: str, **more: Any) -> Iterator[Any]:
    """The rendezvous of ``init_method="ringpull://"``: a store on rank 0. MPI sends its address to the other ranks."""
    from ringpull import torch_distributed

    said = dict(parse_qsl(urlsplit(url).query))
    yield torch_distributed.meet(more.get("timeout"), int(said.get("rank", -1)), int(said.get("world_size", -1)))


def load() -> None:
    """Calls :func:`register`, and turns errors into warnings. An error would end ``import torch``, also in a program that does not use the
    backend."""
    try:
        register()
    except Exception as error:
        warnings.warn(f"PyTorch does not know the backend ringpull: {type(error).__name__}: {error}", stacklevel=2)


def register() -> None:
    """Makes the backend known to ``torch.distributed``, once."""
    import torch.distributed

    distributed: Any = torch.distributed
    if not distributed.is_available() or "RINGPULL" in distributed.Backend._plugins:
        return
    # The import is by name, because the package `torch.distributed` also has a function `rendezvous`.
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    try:
        distributed.Backend.register_backend("ringpull", _create, extended_api=True, devices=["cpu", "cuda"])
    except TypeError:
        # PyTorch 1.13 has no `devices`.
        distributed.Backend.register_backend("ringpull", _create, extended_api=True)
    handlers: Any = rendezvous._rendezvous_handlers
    rendezvous.register_rendezvous_handler("ringpull", _meet)
    by_environment = handlers["env"]

    def of_environment(url: str, **more: Any) -> Iterator[Any]:
        # The rank and the number of ranks that MPI's launcher gives are used for variables that it does not set.
        launched = _launched()
        if launched is None or "ringpull" not in _backend_given("init_process_group"):
            return by_environment(url, **more)  # type: ignore[no-any-return]
        place = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        # `ringpull launch` has chosen this address for other backends. Ours connects through MPI, also after a loss.
        if place.startswith(":") or place.endswith(":") or place == os.environ.get("RINGPULL_MEETING"):
            return _meet(url, **more)
        parts = urlsplit(url)
        said = dict(parse_qsl(parts.query))
        for name, variable, value in zip(("rank", "world_size"), ("RANK", "WORLD_SIZE"), launched, strict=True):
            if variable not in os.environ:
                said.setdefault(name, value)
        return by_environment(f"env://?{urlencode(said)}", **more)  # type: ignore[no-any-return]

    handlers["env"] = of_environment
