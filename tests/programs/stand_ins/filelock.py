"""Replaces filelock. Nothing is downloaded, so there is nothing to lock."""

from contextlib import nullcontext as FileLock

__all__ = ["FileLock"]
