"""All ranks stop at the same step, when one of them is asked to."""

from __future__ import annotations

import signal
from types import FrameType

from .collectives import Communicator, communicator

__all__ = ["should_stop", "stop_on"]

#: True once a signal of :func:`stop_on` has come.
_is_asked = False
#: All ranks of the job, once one call has made it.
_job: list[Communicator] = []


def should_stop(wants: bool = False) -> bool:
    """Returns True on every rank of the MPI job from the same call on, if a signal of :func:`stop_on` has come to one of them, or one ``wants`` to stop.

        ringpull.stop_on(signal.SIGTERM)
        for step in range(steps):
            train(step)
            if ringpull.should_stop(time.monotonic() > end):
                break

    Every rank calls it once a step, and all get the same answers, so a checkpoint after the loop has the same step on every rank. The first call
    is collective, as :func:`ringpull.communicator`. Nothing is sent before a rank is to stop; then one call waits until the ranks have agreed,
    and all stop there or at the next call of the rank that is furthest. In a job that goes on in place after a loss
    each call is an allreduce. Not for workers of a job with servers, where it is an error.
    """
    if not _job:
        _job.append(communicator())
    return _job[0]._native.should_stop(_is_asked or bool(wants))


def stop_on(*signals: int) -> None:
    """Lets these signals, such as ``signal.SIGTERM``, make :func:`should_stop` return True.

    A signal then no longer ends the process. A handler that Python code has set before is still called. A handler of
    a C library is not, nor is ringpull's own answer to SIGUSR1. A handler that the program sets later takes the place of this one. To be called on the main thread. Workers that a data loader forks afterwards do not end by
    SIGUSR1 either; PyTorch's end by SIGTERM.
    """
    for number in signals:
        previous = signal.getsignal(number)

        def ask(received: int, frame: FrameType | None, previous: object = previous) -> None:
            global _is_asked
            _is_asked = True
            if callable(previous) and previous is not signal.default_int_handler:
                previous(received, frame)

        signal.signal(number, ask)
