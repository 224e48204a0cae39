"""Horovod's variables that have an effect here, translated into ours. A variable of ours that is set already stays."""

from __future__ import annotations

import os

__all__ = ["translate"]

#: Horovod's name, and our name of the same meaning and unit. (For a timeline, though, each rank has its own file.)
_SAME = {
    "HOROVOD_FUSION_THRESHOLD": "RINGPULL_FUSION_BYTES",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "RINGPULL_WARN",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "RINGPULL_TIMEOUT",
    "HOROVOD_TIMELINE": "RINGPULL_TIMELINE",
}

#: The value by which Horovod records no timeline until ``start_timeline`` is called. Here that may be called in any case.
_LATER = ("HOROVOD_TIMELINE", "DYNAMIC")


def translate() -> None:
    """Sets our variables from Horovod's, before the job begins."""
    for theirs, ours in _SAME.items():
        value = os.environ.get(theirs)
        # A 0 that means no limit to Horovod means no limit to ours too.
        if value and not os.environ.get(ours) and (theirs, value) != _LATER:
            os.environ[ours] = value
    if os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
        # The longest time that our variable may have.
        os.environ.setdefault("RINGPULL_WARN", "1000000000")
