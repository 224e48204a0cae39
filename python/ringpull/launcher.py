"""The command ``ringpull``, which starts jobs."""

from __future__ import annotations

import os
import shutil
import sys

__all__ = ["find"]


def find() -> str | None:
    """Returns the command that ``RINGPULL_BINARY`` names, else the one beside this Python, else the first in
    the ``PATH``."""
    beside = shutil.which("ringpull", path=os.path.dirname(sys.executable))
    return os.environ.get("RINGPULL_BINARY") or beside or shutil.which("ringpull")
