"""What Horovod's elastic jobs have without a framework, on :mod:`ringpull.elastic`.

With ``ringpull launch --elastic --in-place`` and Open MPI 5 the processes that are left go on after a loss, as Horovod's do. Otherwise, and
to use hosts that are added, all processes are started again: what stands before the function that :func:`run` decorates runs again,
and the function begins with the state of the newest commit.
"""

from __future__ import annotations

from .. import elastic
from ..elastic import run
from ..elastic.snapshots import Snapshots
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]


class _HostMessages:
    """What the launcher has said of hosts: programs look whether there is anything."""

    def __init__(self, snapshots: Snapshots | None) -> None:
        self._snapshots = snapshots

    def empty(self) -> bool:
        """Whether the hosts are as they were at the start."""
        return self._snapshots is None or not self._snapshots.has_changed()


class State(elastic.State):
    """:class:`ringpull.elastic.State` with a name of Horovod's that its test programs use."""

    @property
    def _host_messages(self) -> _HostMessages:
        return _HostMessages(self._snapshots)


#: Objects by name, as attributes.
ObjectState = State
