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
    """A model, an optimizer, and other objects by name. A :class:`ElasticSampler` is one of these."""

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer}
        super().__init__(**{name: one for name, one in given.items() if one is not None}, **kwargs)


class ElasticSampler(Sampler[int]):
    """Divides the samples of an epoch over the ranks, without those that were processed before a restart.

    Ranks process batches of one size, so what ``record_batch`` has counted says on every rank which samples of the epoch's order are
    left. If these do not divide by the number of ranks, the first of them come again, so that every rank has as many.
    :class:`ringpull.elastic.Sampler` repeats none.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        #: How many samples of the epoch all ranks together have processed.
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, when every sample of the one before was processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """How much of which epoch was processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with what was not processed."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides what is left over the ranks that there are now."""
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
