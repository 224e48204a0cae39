"""Divides the samples of each step over the ranks, also after the number of ranks has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

__all__ = ["Sampler"]


class Sampler:
    """The order of an epoch's samples, and the number of samples that all ranks together have taken.

    It is part of a :class:`State`. Every rank has the same order, so this number alone tells which samples are left. After a restart with
    another number of ranks the epoch goes on at this position, and each sample is taken once. The number of samples in a step stays the same.
    """

    def __init__(self, length: int, shuffle: bool = True, seed: int = 0) -> None:
        if length < 0:
            raise ValueError(f"a sampler cannot have {length} samples\n  hint: give the number of samples")
        self.length, self.shuffle, self.seed = int(length), shuffle, seed
        self.epoch = self.position = 0

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in an order of its own."""
        self.epoch, self.position = int(epoch), 0

    def order(self) -> Any:
        """The epoch's samples in their order."""
        if not self.shuffle:
            return numpy.arange(self.length)
        return numpy.random.default_rng([self.seed, self.epoch]).permutation(self.length)

    def batches(self, batch: int, rank: int | None = None, size: int | None = None) -> Iterator[Any]:
        """This rank's samples of each step, until the epoch ends. ``batch`` is the number of samples that all ranks together take in a step.

        A step's samples count as taken as soon as they are returned: call :meth:`State.commit` when their sums are part of the state. Every
        rank gets the same number of steps. In the last step, or with more ranks than samples in a step, a rank may get no sample. It must
        still take part in the sums. By default ``rank`` and ``size`` are those of the job.
        """
        if batch < 1:
            raise ValueError(f"batches cannot have {batch} samples\n  hint: give the number of samples that all ranks take in a step")
        if rank is None or size is None:
            from .state import place

            rank, size = place()
        order = self.order()
        while self.position < self.length:
            taken = order[self.position : self.position + batch]
            self.position += len(taken)
            yield taken[rank::size]

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the number of its samples that have been taken."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at the position that :meth:`state_dict` returned."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def __len__(self) -> int:
        """The number of samples of the epoch that are left."""
        return self.length - self.position
