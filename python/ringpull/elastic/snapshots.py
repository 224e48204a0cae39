"""Snapshots in the memory of a host: files that outlive the ranks of an elastic job.

The files are in ``FOLDER/HOST``, in a folder that ``ringpull launch --elastic`` names and removes at the end of the job. One rank
of each host writes them. A snapshot has a key: the generation that made it and its number. It is written beside the other snapshots,
under a temporary name, and gets its own name when it is complete. So if a rank is killed at any time, the host still has the
previous snapshot, complete. Only the newest two snapshots stay; the memory of the third holds the next snapshot.

The launcher reads the names too (``crates/cli/src/launch/elastic/snapshots.rs``).
"""

from __future__ import annotations

import os
import pathlib
import socket
import stat
from collections.abc import Sequence

from ..errors import FileError
from .packing import is_whole

__all__ = ["Key", "Snapshots"]

#: The generation and the number of a snapshot. A later one is greater.
Key = tuple[int, int]


def _check(folder: pathlib.Path) -> bool:
    """Returns True if the folder exists. Raises if other users have rights to it: pickle may run code from the files in it."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FileError(f"{folder} belongs to somebody else, or others have rights to it\n  hint: remove it, or start the job with --snapshots DIR")
    return True


class Snapshots:
    """The snapshots of this host."""

    def __init__(self, folder: str | os.PathLike[str], generation: int) -> None:
        self.job = pathlib.Path(folder)
        self.generation = generation
        self.folder = self.job / socket.gethostname()

    def prepare(self) -> None:
        """Makes the folder, with rights for this user only."""
        try:
            for folder in (self.job, self.folder):
                folder.mkdir(mode=0o700, parents=folder is self.folder, exist_ok=True)
                _check(folder)
            for half in self.folder.glob("part-*"):
                if half != self._part():
                    # A rank of an earlier generation was killed while it wrote.
                    half.unlink(missing_ok=True)
        except OSError as cause:
            raise FileError(f"the folder of snapshots cannot be made: {cause}\n  hint: start the job with --snapshots DIR, a folder in memory that every host has") from cause

    def keys(self) -> list[Key]:
        """The keys of the existing snapshots, the newest first."""
        if not (_check(self.job) and _check(self.folder)):
            return []
        found = [path.name.split("-") for path in self.folder.iterdir()]
        numbers = [parts[1:] for parts in found if len(parts) == 3 and parts[0] == "snapshot"]
        return sorted(((int(parts[0]), int(parts[1])) for parts in numbers if all(part.isdigit() for part in parts)), reverse=True)

    def write(self, key: Key, pieces: Sequence[bytes | memoryview]) -> None:
        """Writes a snapshot, and keeps the previous one. Raises if a later generation writes here: then the job has gone on without this
        rank."""
        part, present = self._part(), self.keys()
        if present and present[0][0] > self.generation:
            raise FileError(f"{self.folder} has snapshots of generation {present[0][0]}, and this process is one of {self.generation}\n  hint: end it")
        try:
            for old in present[1:]:
                os.replace(self._path(old), part)
            with open(part, "r+b" if part.exists() else "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.truncate()
            os.replace(part, self._path(key))
        except OSError as cause:
            size = sum(memoryview(piece).nbytes for piece in pieces)
            raise FileError(
                f"a snapshot of {size} bytes cannot be written to {self.folder}: {cause}\n"
                "  hint: two of them must have room there; start the job with --snapshots DIR, another folder in memory, or give /dev/shm more"
            ) from cause

    def read(self, key: Key) -> bytes | None:
        """The content of a snapshot; None if it is gone or damaged."""
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        return content if is_whole(content) else None

    def _part(self) -> pathlib.Path:
        """The temporary name, which is the same in a whole generation: so a file that a killed rank has left does not stay for long."""
        return self.folder / f"part-{self.generation}"

    def _path(self, key: Key) -> pathlib.Path:
        return self.folder / f"snapshot-{key[0]}-{key[1]}"

    def has_changed(self) -> bool:
        """Returns True if the launcher has written on this host that the present hosts have changed."""
        return (self.job / f"changed-{self.generation}").exists()

    def ask_for_restart(self) -> None:
        """Tells the launcher that the ranks end in order to be started again."""
        (self.job / f"again-{self.generation}").touch()
