"""Lets the survivors of a job go on in their processes, from their last commit: ``ringpull launch --elastic
--in-place``.

A loss of ranks ends every communicator: unfinished calls fail, and so does the next call of each rank. Then
:func:`ringpull.elastic.run` makes all survivors call this module, which gives the surviving ranks to the communicators of all ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
import weakref
from typing import Protocol

from .. import _native
from ..collectives import Communicator, communicator, renew
from ..errors import UnavailableError

__all__ = ["Follower", "Survivors", "followers"]


class Follower(Protocol):
    """An object that depends on the ranks of the job."""

    #: Followers of a lower number come first.
    order: int

    def follow(self) -> None:
        """Forgets the operations of all ranks that were under way. Called after a loss, when the surviving ranks go on."""


#: The followers of this process.
followers: weakref.WeakSet[Follower] = weakref.WeakSet()


#: The communicator of the ranks with which the job began, after it was made.
_first: list[_native.Communicator] = []


class Survivors:
    """The surviving ranks of a job. Every rank must make this object at the same time: collective."""

    def __init__(self) -> None:
        #: The communicator of the surviving ranks.
        self.whole: Communicator = communicator()
        # Before the first loss the communicator has all ranks with which the job began.
        if not _first:
            _first.append(self.whole._native)

    def _can_go_on(self) -> bool:
        # A store keeps its present values after a loss, and no commit has its earlier values.
        return self.whole._native.is_elastic and not _native.has_stores()

    def _started(self) -> tuple[list[int], list[int]]:
        """The surviving ranks and the lost ranks, by the numbers with which they began."""
        left, lost = list(range(_first[0].size)), []
        for generation, _, _, gone in _first[0].changes():
            if generation <= self.whole._native.generation:
                lost += [left[rank] for rank in gone]
                left = [number for rank, number in enumerate(left) if rank not in gone]
        return left, lost

    def go_on(self) -> bool:
        """Checks, after an error, whether a loss caused it and the surviving ranks go on. Returns True if so; all survivors have then called
        this. Raises if too few ranks survive."""
        if not self._can_go_on() or not self.whole._native.changes():
            return False
        renew()
        # Process sets come first, because optimizers use them.
        for follower in sorted(followers, key=lambda follower: follower.order):
            follower.follow()
        left, lost = self._started()
        least = _native.min_workers()
        if len(left) < least:
            raise UnavailableError(f"{len(left)} ranks of this job survive, but it needs at least {least}\n  hint: the launcher starts it again when there are hosts for {least} ranks")
        if self.whole.rank == 0:
            # The line names all lost ranks, since an earlier line may have been lost together with the rank that printed it.
            gone = ", ".join(f"rank {rank}" for rank in lost)
            is_or_are = "rank is" if len(left) == 1 else "ranks are"
            # The launcher reads this line (`crates/cli/src/launch/elastic/lost.rs`).
            print(f"ringpull: elastic: goes on in place without {gone}: {len(left)} {is_or_are} left", file=sys.stderr, flush=True)
        return True

    def leave(self) -> None:
        """Ends the process after an exception of this rank's program, so that the other ranks go on without it. Does so only if a launcher
        watches the job."""
        if not self._can_go_on() or _native.elastic() is None or self.whole.size == 1:
            return
        traceback.print_exc()
        left, _ = self._started()
        print(f"ringpull: elastic: rank {left[self.whole.rank]} has failed, and leaves the job", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        for child in multiprocessing.active_children():
            child.terminate()
        # The launcher counts the job as failed only if no other rank finishes its program.
        os._exit(0)
