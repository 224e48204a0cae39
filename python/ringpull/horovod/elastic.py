"""The part of Horovod's elastic jobs that needs no framework, on :mod:`ringpull.elastic`.

With ``ringpull launch --elastic --in-place`` and Open MPI 5 the surviving processes go on after a loss, as Horovod's do. Otherwise, and
to use hosts that are added, all processes are started again: the code before the function that :func:`run` decorates runs again,
and the function begins with the state of the newest commit.
"""

from __future__ import annotations

from .. import elastic
from ..elastic import run
from ..elastic.snapshots import Snapshots
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]


class _HostMessages:
    """The launcher's messages on hosts. Programs check whether there are any."""

    def __init__(self, snapshots: Snapshots | None) -> None:
        self._snapshots = snapshots

    def empty(self) -> bool:
        """Returns True if the hosts have not changed since the start."""
        return self._snapshots is None or not self._snapshots.has_changed()


class State(elastic.State):
    """:class:`ringpull.elastic.State` with one more attribute, which Horovod's test programs use."""

    @property
    def _host_messages(self) -> _HostMessages:
        return _HostMessages(self._snapshots)


#: Objects by name, as attributes.
ObjectState = State
