"""What Horovod's elastic jobs have without a framework, on :mod:`ringpull.elastic`.

The difference is in how a job goes on: its processes are started again, all of them, by ``ringpull launch --elastic``. So what
stands before the function that :func:`run` decorates runs again, and the function begins with the state of the newest commit.
"""

from __future__ import annotations

from ..elastic import State, run
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]

#: Objects by name, as attributes.
ObjectState = State
