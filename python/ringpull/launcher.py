"""The command ``ringpull``, which starts jobs."""

from __future__ import annotations

import os
import shutil
import sys

__all__ = ["find"]


def find() -> str | None:
    """The command that ``RINGPULL_BINARY`` names, or the one beside this Python, or the one on the path."""
    beside = shutil.which("ringpull", path=os.path.dirname(sys.executable))
    return os.environ.get("RINGPULL_BINARY") or beside or shutil.which("ringpull")
