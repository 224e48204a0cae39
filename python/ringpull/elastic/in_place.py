"""The survivors of a job go on in their processes, from their last commit: ``ringpull launch --elastic
--in-place``.

A loss of ranks ends every communicator: the calls that are not done fail, and so does the next call of each rank. :func:`ringpull.elastic.run`
has all of them come here, where the communicators of all ranks get those that are left.
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
        """Some ranks were lost, and the others go on: forgets what was under way among all."""


#: Those of this process.
followers: weakref.WeakSet[Follower] = weakref.WeakSet()


#: The communicator of the ranks that have begun, once there is one.
_first: list[_native.Communicator] = []


class Survivors:
    """The ranks of a job that are left. To be made by every rank at once: collective."""

    def __init__(self) -> None:
        #: The communicator of the ranks that are left.
        self.whole: Communicator = communicator()
        # Before the first loss there is one of all that have begun.
        if not _first:
            _first.append(self.whole._native)

    def _can_go_on(self) -> bool:
        # A store's values go on with it, and no commit has them as they were.
        return self.whole._native.is_elastic and not _native.has_stores()

    def _started(self) -> tuple[list[int], list[int]]:
        """The ranks that are left and those that were lost, by the numbers that they began with."""
        left, lost = list(range(_first[0].size)), []
        for generation, _, _, gone in _first[0].changes():
            if generation <= self.whole._native.generation:
                lost += [left[rank] for rank in gone]
                left = [number for rank, number in enumerate(left) if rank not in gone]
        return left, lost

    def go_on(self) -> bool:
        """After an error: whether it came of a loss, after which the ranks that are left go on. Then these are all here. An error if they are too few."""
        if not self._can_go_on() or not self.whole._native.changes():
            return False
        renew()
        # Process sets come first: optimizers ask them.
        for follower in sorted(followers, key=lambda follower: follower.order):
            follower.follow()
        left, lost = self._started()
        least = _native.min_workers()
        if len(left) < least:
            raise UnavailableError(f"{len(left)} ranks of this job are left, and it is to go on with {least} at least\n  hint: the launcher starts it again when there are hosts for so many")
        if self.whole.rank == 0:
            # All of them, as a line that was to name some may have been lost with a rank.
            gone = ", ".join(f"rank {rank}" for rank in lost)
            is_or_are = "rank is" if len(left) == 1 else "ranks are"
            # The launcher reads this line (`crates/cli/src/launch/elastic/lost.rs`).
            print(f"ringpull: elastic: goes on in place without {gone}: {len(left)} {is_or_are} left", file=sys.stderr, flush=True)
        return True

    def leave(self) -> None:
        """After an exception of this rank's program: ends the process, so that the others go on without it, if the launcher sees to the job."""
        if not self._can_go_on() or _native.elastic() is None or self.whole.size == 1:
            return
        traceback.print_exc()
        left, _ = self._started()
        print(f"ringpull: elastic: rank {left[self.whole.rank]} has failed, and leaves the job", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        for child in multiprocessing.active_children():
            child.terminate()
        # The launcher takes the job for failed unless another rank comes to its end.
        os._exit(0)
