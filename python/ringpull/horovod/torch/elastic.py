"""``horovod.torch.elastic`` on :mod:`ringpull.elastic`: the state of a model and its optimizer, and a sampler for ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy
import torch
from torch.utils.data import Sampler

from ...elastic.state import place
from ..elastic import ObjectState, State, run
from ..exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]


class TorchState(State):
    """The state of a model, an optimizer and other objects by name. A :class:`ElasticSampler` may be one of the other objects."""

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: one for name, one in given.items() if one is not None}, **kwargs)


class ElasticSampler(Sampler[int]):
    """Divides the samples of an epoch over the ranks, without the samples that were processed before a restart.

    All ranks process batches of one size, so every rank knows from the count of ``record_batch`` which samples of the epoch are left. If
    the remaining samples cannot be divided equally, the first of them are repeated, so that every rank has the same number.
    :class:`ringpull.elastic.Sampler` repeats none.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        #: The number of samples of the epoch that all ranks together have processed.
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch. Call it when every sample of the previous epoch was processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the number of its samples that were processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the samples that were not processed."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the remaining samples over the present ranks."""
        self.rank, self.num_replicas = place()
        order = numpy.arange(len(self.dataset))
        if self.shuffle:
            order = numpy.random.default_rng([self.seed, self.epoch]).permutation(order)
        left = order[self.processed_num :]
        self.remaining_indices: list[int] = left.tolist()
        self.num_samples = -(-len(left) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices: list[int] = numpy.resize(left, self.total_size)[self.rank :: self.num_replicas].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
