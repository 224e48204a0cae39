"""Shares of a batch for workers that are not equally fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native

__all__ = ["split", "suggest_shares"]


def split(batch: Any, work_load_list: Sequence[float]) -> list[Any]:
    """Divides a batch into a part for each worker, by weights such as ``[3, 3, 3, 1]``: MXNet's ``work_load_list``.

    ``batch`` is a length, whose parts are slices, or any object that has a length and can be sliced. Parts are as near to the weights as whole
    rows allow. A worker whose weight is not 0 gets at least one row. If the batch has too few rows for this, it is an error.
    """
    weights = [float(weight) for weight in work_load_list]
    slices = [slice(*bounds) for bounds in _native.split(batch if isinstance(batch, int) else len(batch), weights)]
    return slices if isinstance(batch, int) else [batch[part] for part in slices]


def suggest_shares() -> list[float]:
    """Shares of a batch with which all ranks of the MPI job would compute for the same time. They are for :func:`split` and ``set_shares``.

    They follow from the time that each rank has computed since its first push, since it last set shares or since it last called this,
    whichever is latest. All time counts in which the rank has not waited in a call of a store. Call it after some steps, after the same
    number on every rank. The shares add up to the number of ranks, and are the same on each rank. Collective. Blocks.
    """
    return _native.suggest_shares()
