"""Where the program is: what a warning or an error says of a rank that others wait for."""

from __future__ import annotations

import sys
import threading
from types import FrameType

#: Packages whose lines are not the program's own.
_LIBRARIES = {"mxnet", "numpy", "ringpull", "torch"}
#: Functions of MXNet that wait for its engine, and so for what a store owes it.
_WAITS = {"asnumpy", "asscalar", "item", "wait_to_read", "waitall"}


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def place() -> tuple[str | None, bool]:
    """The main thread's own line, such as ``train.py:41 in evaluate``, and whether it waits there for MXNet's engine.

    Any thread may ask; nothing blocks but for the interpreter.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    is_wait = False
    while frame is not None and _package(frame) in _LIBRARIES:
        is_wait |= _package(frame) == "mxnet" and frame.f_code.co_name in _WAITS
        frame = frame.f_back
    if frame is None:
        return None, is_wait
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}", is_wait
