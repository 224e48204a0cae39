"""The order of what brings results to GPUs, and of what uses them there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Order"]


class Order:
    """The streams that are current when an operation is called. Entered, they are current: so its results come where they
    belong in their order. Whoever waits for the operation has the streams that are current there follow."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        #: The GPUs that have results.
        self.devices: list[Any] = sorted({tensor.device for tensor in results if tensor.is_cuda}, key=str)
        self._streams: list[Any] = [torch.cuda.current_stream(device) for device in self.devices]
        self._events: list[Any] = []
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        for stream in self._streams:
            self._entered.enter_context(torch.cuda.stream(stream))

    def __exit__(self, *raised: object) -> None:
        self._events = [stream.record_event() for stream in self._streams]
        self._entered.close()

    def follow(self) -> None:
        """What the current streams do next comes behind the results."""
        for device, event in zip(self.devices, self._events):
            # PyTorch has no annotation for it.
            current: Any = torch.cuda.current_stream(device)
            current.wait_event(event)
