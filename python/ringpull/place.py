"""The line that the program is at, for warnings and errors about a rank that others wait for. It also tells whether a rank computes or
only waits."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import FrameType

#: Packages whose lines do not count as the program's own.
_LIBRARIES = {"mxnet", "numpy", "ringpull", "ringpull_torch", "torch"}
#: Folders with files that do not count as the program's own: Python's library, and installed packages.
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
#: The folder of scripts that only call an installed program.
_SCRIPTS = sysconfig.get_path("scripts") + os.sep
#: For each framework's package, a function that returns True for the names of the framework's functions in which a thread waits for a store.
_waits: dict[str, Callable[[str], bool]] = {}


def waits_in(package: str, waits: Callable[[str], bool]) -> None:
    """Registers ``waits``: a thread that has called into ``package`` waits there for a store if ``waits`` returns True for the name of one of
    the functions on its stack."""
    _waits[package] = waits


def package_of(frame: FrameType) -> str | None:
    """The library that a frame belongs to. None if the line is the program's own."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package if package in _LIBRARIES else None


def _place_of(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The program's own frame of a thread, and True if the thread waits in a framework that it has called."""
    is_wait = False
    while frame is not None and (package := package_of(frame)) is not None:
        waits = _waits.get(package)
        is_wait = is_wait or (waits is not None and waits(frame.f_code.co_name))
        frame = frame.f_back
    return frame, is_wait


def _caller_of(frame: FrameType) -> FrameType:
    """The program's frame from which Python's library or an installed package was called.

    The program itself may be installed. Then the package that its script, or ``python -m``, has called counts as the program. Returns
    ``frame`` if there is no such frame.
    """
    inner: list[FrameType] = []
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(("<frozen ", *_INSTALLED)):
        inner.append(caller)
        # Outside the frame of ``python -m`` there are only frames that have started it.
        is_start = caller.f_code.co_name == "<module>" and caller.f_globals.get("__name__") == "__main__"
        caller = None if is_start else caller.f_back
    is_script = caller is not None and caller.f_code.co_filename.startswith(_SCRIPTS)
    if caller is not None and not (is_script and caller.f_code.co_name == "<module>"):
        return caller
    packages = [_package_of_program(one) for one in inner]
    program = next((package for package in reversed(packages) if package is not None), None)
    own = (one for one, package in zip(inner, packages, strict=True) if package is not None and package == program)
    return next(own, caller or frame)


def _package_of_program(frame: FrameType) -> str | None:
    """The package of a frame, which may be a frame of an installed program."""
    if frame.f_code.co_filename.startswith("<frozen "):
        return None
    names = frame.f_globals
    name = names.get("__package__") if names.get("__name__") == "__main__" else names.get("__name__")
    return str(name).partition(".")[0] if name else None


def place() -> tuple[str | None, bool, list[int]]:
    """Three facts about the program: the main thread's own line, such as ``train.py:41 in evaluate``; True if the main thread waits there in
    a framework for a store; and the numbers of the threads that run Python and do not wait so. A number that Python does not know is 0.

    Any thread may call it. It waits only for the interpreter.
    """
    main, asking = threading.main_thread().ident, threading.get_ident()
    numbers = {thread.ident: thread.native_id for thread in threading.enumerate()}
    places = {thread: _place_of(frame) for thread, frame in sys._current_frames().items() if thread != asking}
    frame, is_wait = places.get(main or 0, (None, False))
    busy = [numbers.get(thread) or 0 for thread, (_, waits) in places.items() if not waits]
    if frame is None:
        return None, is_wait, busy
    frame = _caller_of(frame)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}", is_wait, busy
