"""Orders copies of results to GPUs with the other work of these GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Order"]


class Order:
    """The streams that are current when an operation is called. As a context it makes these streams current again, so that
    copies to the GPUs are queued on them. A wait for the operation makes the streams that are current at the wait
    follow these copies."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        #: The GPUs that have results.
        self.devices: list[Any] = sorted({tensor.device for tensor in results if tensor.is_cuda}, key=str)
        self._streams: list[Any] = [torch.cuda.current_stream(device) for device in self.devices]
        self._events: list[Any] = []
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as entered:
            for stream in self._streams:
                # Without this, a thread that leaves a stream of another GPU would make a context on its own current GPU.
                entered.enter_context(torch.cuda.device(stream.device))
                entered.enter_context(torch.cuda.stream(stream))
            self._entered = entered.pop_all()

    def __exit__(self, *raised: object) -> None:
        with self._entered:
            self._events = [stream.record_event() for stream in self._streams]

    def follow(self) -> None:
        """Makes the next work of the current streams run after the results have arrived."""
        for device, event in zip(self.devices, self._events):
            # PyTorch has no type annotation for this function.
            current: Any = torch.cuda.current_stream(device)
            current.wait_event(event)
