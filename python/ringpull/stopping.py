"""Makes all ranks stop at the same step when one of them is to stop."""

from __future__ import annotations

import signal
from types import FrameType

from .collectives import Communicator, communicator

__all__ = ["should_stop", "stop_on"]

#: True after a signal of :func:`stop_on` has come.
_is_asked = False
#: The communicator of all ranks, after the first call has made it.
_job: list[Communicator] = []


def should_stop(wants: bool = False) -> bool:
    """Returns True if a signal of :func:`stop_on` has come to a rank of the MPI job, or a rank ``wants`` to stop. All ranks get True from the
    same call on.

        ringpull.stop_on(signal.SIGTERM)
        for step in range(steps):
            train(step)
            if ringpull.should_stop(time.monotonic() > end):
                break

    Every rank calls it once a step, and all get the same answers. So a checkpoint after the loop has the same step on every rank. The first
    call is collective, as :func:`ringpull.communicator` is. Nothing is sent before a rank is to stop. Then one call waits until the ranks
    have agreed, and all ranks stop at that call, or at the next call of the rank that has made the most calls. In a job that goes on in place
    after a loss, each call is an allreduce. For workers of a job with servers it is an error.
    """
    if not _job:
        _job.append(communicator())
    return _job[0]._native.should_stop(_is_asked or bool(wants))


def stop_on(*signals: int) -> None:
    """Makes these signals, such as ``signal.SIGTERM``, cause :func:`should_stop` to return True.

    The signals then no longer end the process. A handler that Python code has set before is still called. A handler of
    a C library is not called, nor is ringpull's own handler of SIGUSR1. A handler that the program sets later replaces this one. Call it on
    the main thread. SIGUSR1 then does not end the workers that a data loader forks later either. SIGTERM still ends PyTorch's workers.
    """
    for number in signals:
        previous = signal.getsignal(number)

        def ask(received: int, frame: FrameType | None, previous: object = previous) -> None:
            global _is_asked
            _is_asked = True
            if callable(previous) and previous is not signal.default_int_handler:
                previous(received, frame)

        signal.signal(number, ask)
