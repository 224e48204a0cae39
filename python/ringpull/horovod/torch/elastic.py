"""``horovod.torch.elastic`` on :mod:`ringpull.elastic`: the state of a model and its optimizer, and a sampler for ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy
import torch
from torch.utils.data import Sampler

from ...collectives import communicator
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

    ``record_batch`` or ``record_indices`` says what this rank has processed; a commit of a state that has the sampler gathers that from all
    ranks. If the samples that are left do not divide by the number of ranks, the first of them come again, so that every rank has as many.
    :class:`ringpull.elastic.Sampler` repeats none.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        #: What this rank has processed since ranks gathered it last.
        self._own: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, when every sample of the one before was processed."""
        self.epoch = epoch
        self.processed_indices, self._own = set(), set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has processed the batch of this number."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """This rank has processed these samples."""
        self.processed_indices.update(indices)
        self._own.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch of this number."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """What was processed of which epoch."""
        return {"epoch": self.epoch, "processed_indices": numpy.array(sorted(self.processed_indices), numpy.int64)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with what was not processed."""
        self.epoch = state_dict["epoch"]
        self.processed_indices, self._own = {int(index) for index in state_dict["processed_indices"]}, set()
        self.reset()

    def reset(self) -> None:
        """Divides what is left over the ranks that there are now."""
        self.rank, self.num_replicas = place()
        left = numpy.setdiff1d(numpy.arange(len(self.dataset)), numpy.fromiter(self.processed_indices, numpy.int64))
        if self.shuffle:
            left = numpy.random.default_rng([self.seed, self.epoch]).permutation(left)
        self.remaining_indices: list[int] = left.tolist()
        self.num_samples = -(-len(left) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices: list[int] = numpy.resize(left, self.total_size)[self.rank :: self.num_replicas].tolist()

    def prepare_commit(self) -> None:
        """Gathers what the ranks have processed. Collective."""
        own = numpy.array(sorted(self._own), numpy.int64)
        every = communicator().allgather(own, name="ringpull.elastic.processed").wait()
        self.processed_indices.update(numpy.asarray(every).tolist())
        self._own = set()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
