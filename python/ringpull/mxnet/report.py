"""How a fault of a store reaches a person under MXNet: once, with the program's own lines, and with MXNet's names of the keys.

MXNet raises what our operations in its engine failed with as an error of its own, whose lines it puts into another order. So the
native part gives it one line, which begins with ``ringpull: rank``.
"""

from __future__ import annotations

import atexit
import functools
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from mxnet import base, gluon
from mxnet.base import MXNetError

from ..errors import KVStoreError
from ..place import package_of

__all__ = ["in_lines", "report"]

_OURS = re.compile(r"ringpull: rank (\d+): (.*?)(?: \(hint: (.*)\))?\s*$", re.DOTALL)

#: What MXNet calls the parameters that its trainers give numbers; several where several trainers have one.
_names: dict[int, list[str]] = {}


def _named(text: str) -> str:
    """The text, with the names of its keys."""

    def name(found: re.Match[str]) -> str:
        names = _names.get(int(found[1]))
        return f"{found[0]} ({' or '.join(names)})" if names else found[0]

    return re.sub(r"\bkey (\d+)\b", name, text)


def in_lines(error: BaseException) -> str | None:
    """A store's fault as a person should read it: rank, key and cause, then the hint. None for any other error."""
    if isinstance(error, KVStoreError):
        message, _, hint = str(error).partition("\n  hint: ")
        rank = error.rank
    else:
        found = _OURS.search(str(error)) if isinstance(error, MXNetError) else None
        if found is None:
            return None
        rank, message, hint = int(found[1]), found[2], found[3]
    whose = "ringpull: " if rank is None else f"ringpull: rank {rank}: "
    return whose + _named(message) + (f"\n  hint: {hint}" if hint else "")


def report() -> None:
    """Reports uncaught faults so from now on, and no second time when the program ends."""
    if getattr(sys.excepthook, "_of_ringpull", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = in_lines(error)
        if text is None:
            before(kind, error, trace)
            return
        own = [summary for summary, (frame, _) in zip(traceback.extract_tb(trace), traceback.walk_tb(trace)) if not package_of(frame)]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
        print("".join(lines) + text, file=sys.stderr, flush=True)

    hook._of_ringpull = True  # type: ignore[attr-defined]
    sys.excepthook = hook
    atexit.unregister(base._notify_shutdown)
    atexit.register(_end)
    _learn_names()


def _end() -> None:
    """MXNet's own end of the program, which raises again what was raised before."""
    try:
        base._notify_shutdown()
    except MXNetError as error:
        if in_lines(error) is None:
            raise


def _learn_names() -> None:
    original = gluon.Trainer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        original(self, *args, **keywords)
        for number, parameter in enumerate(self._params):
            names = _names.setdefault(number, [])
            if parameter.name not in names:
                names.append(parameter.name)

    gluon.Trainer.__init__ = init
