"""Horovod's variables that have a meaning here, as ours: what is set of ours counts."""

from __future__ import annotations

import os

__all__ = ["translate"]

#: Horovod's name, and ours of the same meaning and unit; of a timeline each rank has a file.
_SAME = {
    "HOROVOD_FUSION_THRESHOLD": "RINGPULL_FUSION_BYTES",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "RINGPULL_WARN",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "RINGPULL_TIMEOUT",
    "HOROVOD_TIMELINE": "RINGPULL_TIMELINE",
}

#: Of Horovod's timeline: none until ``start_timeline`` is called, which may always be called here.
_LATER = ("HOROVOD_TIMELINE", "DYNAMIC")


def translate() -> None:
    """Sets ours by Horovod's, before the job begins."""
    for theirs, ours in _SAME.items():
        value = os.environ.get(theirs)
        # Where Horovod has no limit by 0, ours has none either.
        if value and not os.environ.get(ours) and (theirs, value) != _LATER:
            os.environ[ours] = value
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        # As long as ours may be.
        os.environ.setdefault("RINGPULL_WARN", "1000000000")
