"""Prints an error that nobody catches: the program's own lines, and then one line with the rank, the error
and its cause.

An exception of a store is raised and caught like any other. If it ends the program, its traceback is printed without
the lines of libraries, then the rank with the message, and last the hint. A rank that only hears of another rank's
fault prints one line. If another exception ends the program, one more line names the rank. With
``RINGPULL_LOG=ringpull=debug`` Python prints everything as it does without this module.
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

#: Functions that return the last error of a store that a framework has turned into text.
_known: list[Callable[[], BaseException | None]] = []

#: The process that is a rank. If a child that it forks ends, the rank has not ended.
_importer = os.getpid()

#: The causes that this process has printed.
_said: set[str] = set()


def first_line(error: BaseException) -> str:
    """The message without its hint."""
    return str(error).partition("\n  hint: ")[0]


def knows(last: Callable[[], BaseException | None]) -> None:
    """Registers ``last``, which returns the last error of a store that a framework was given."""
    _known.append(last)


def ours(error: BaseException) -> KVStoreError | None:
    """The error of a store: ``error`` itself, or one that a framework has wrapped in it. Else None."""
    if isinstance(error, KVStoreError):
        return error
    for last in _known:
        known = last()
        if isinstance(known, KVStoreError) and first_line(known) in str(error):
            return known
    return None


def is_said(error: BaseException) -> bool:
    """Returns True if this process has printed the error."""
    known = ours(error)
    return known is not None and first_line(known) in _said


def say(error: KVStoreError) -> str:
    """The line that is printed for an error of a store. It begins with this process's rank, if it has one. The hint follows if it concerns
    this rank."""
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
    """The lines of the traceback that are the program's own."""
    walked = zip(traceback.extract_tb(trace), traceback.walk_tb(trace), strict=True)
    return [line for line, (frame, _) in walked if package_of(frame) is None and line.filename != "<frozen runpy>"]


def report(error: BaseException, trace: TracebackType | None) -> str | None:
    """The text that is printed for an error that ends the program. None if it is no error of a store."""
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
    """Prints an error that an updater has raised."""
    frames = traceback.extract_tb(error.__traceback__) if _native.is_debugged() else _without_libraries(error.__traceback__)
    said = traceback.format_exception_only(type(error), error)
    _write("".join(["Traceback of the updater (most recent call last):\n", *traceback.format_list(frames), *said]))


def install() -> None:
    """Makes Python print errors of stores in this way, and other errors as before."""
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
            # Python has already printed the whole error above this line.
            what = textwrap.shorten(first_line(error), 200, placeholder=" ...")
            _write(f"{_who()}: failed: {kind.__name__}: {what}\n")

    sys.excepthook = hook


def _write(text: str) -> None:
    """Writes the text in one piece, so that a launcher does not mix it with another rank's output."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
