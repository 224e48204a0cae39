"""Prints an error that nobody catches: the program's own lines, and then one line with the rank, the error
and its cause.

An exception of a store is raised and caught as ever. If it ends the program, its traceback is printed without
the lines of libraries, its message stands behind the rank, and the hint comes last. A rank that only hears of
a fault says so in one line. After any other exception one line says which rank ended by it. With
``RINGPULL_LOG=ringpull=debug`` Python prints everything as it does by itself.
"""

from __future__ import annotations

import os
import sys
import textwrap
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import _native
from .errors import KVStoreError
from .place import package_of

__all__ = ["first_line", "install", "is_said", "knows", "ours"]

#: What else knows errors of stores, which a framework has made text of.
_known: list[Callable[[], BaseException | None]] = []

#: The process that is a rank: the end of a child that it forks is not the rank's.
_importer = os.getpid()

#: The causes that this process has printed.
_said: set[str] = set()


def first_line(error: BaseException) -> str:
    """The message without its hint."""
    return str(error).partition("\n  hint: ")[0]


def knows(last: Callable[[], BaseException | None]) -> None:
    """Lets ``last`` say which error of a store a framework was given last."""
    _known.append(last)


def ours(error: BaseException) -> KVStoreError | None:
    """The error of a store that ``error`` is, or that a framework has wrapped in it."""
    if isinstance(error, KVStoreError):
        return error
    for last in _known:
        known = last()
        if isinstance(known, KVStoreError) and first_line(known) in str(error):
            return known
    return None


def is_said(error: BaseException) -> bool:
    """Returns True if this process has printed it."""
    known = ours(error)
    return known is not None and first_line(known) in _said


def say(error: KVStoreError) -> str:
    """The last words about an error of a store: behind this process's rank, if it has one, and with a hint where that is this rank's to give."""
    _said.add(first_line(error))
    cause, _, hint = str(error).partition("\n  hint: ")
    line, given, is_heard = f"failed: {cause}", hint or None, False
    if error._fields is not None:
        line, given, is_heard = _native.last_words(error._fields)
    if not is_heard:
        line = line.replace("failed: ", f"failed: {type(error).__name__}: ", 1)
    return "".join([f"{_who()}: {line}\n", f"  hint: {given}\n" if given else ""])


def _who() -> str:
    rank = _native.own_rank()
    return "ringpull" if rank is None else f"rank {rank}"


def _is_heard(error: KVStoreError) -> bool:
    return error._fields is not None and _native.last_words(error._fields)[2]


def _without_libraries(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The program's own lines."""
    walked = zip(traceback.extract_tb(trace), traceback.walk_tb(trace), strict=True)
    return [line for line, (frame, _) in walked if package_of(frame) is None and line.filename != "<frozen runpy>"]


def report(error: BaseException, trace: TracebackType | None) -> str | None:
    """The text that is printed for an error that ends the program; None if it is not one of ours."""
    known = ours(error)
    if known is None:
        return None
    text = []
    if not _is_heard(known):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None and ours(cause) is None:
            text += [*traceback.format_exception(type(cause), cause, cause.__traceback__), "\nand then:\n\n"]
        frames = _without_libraries(trace)
        if frames:
            text += ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*text, say(known)])


def show(error: BaseException) -> None:
    """Prints what an updater has raised."""
    frames = traceback.extract_tb(error.__traceback__) if _native.is_debugged() else _without_libraries(error.__traceback__)
    said = traceback.format_exception_only(type(error), error)
    _write("".join(["Traceback of the updater (most recent call last):\n", *traceback.format_list(frames), *said]))


def install() -> None:
    """Lets Python print errors of stores so, and others as before."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        printed = None if _native.is_debugged() else report(error, trace)
        if printed is not None:
            _write(printed)
            return
        previous(kind, error, trace)
        known = ours(error)
        if known is not None:
            _said.add(first_line(known))
        elif os.getpid() == _importer and _native.own_rank() is not None and isinstance(error, Exception):
            # The whole of it stands above.
            what = textwrap.shorten(first_line(error), 200, placeholder=" ...")
            _write(f"{_who()}: failed: {kind.__name__}: {what}\n")

    sys.excepthook = hook


def _write(text: str) -> None:
    """In one piece, so that a launcher does not mix it with another rank's."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
