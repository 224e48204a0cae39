"""``horovod.run``: a function on every rank of a job that `ringpull launch` starts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import launcher

__all__ = ["run"]

#: Set by what has started a process of a job.
_OF_A_JOB = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "DMLC_ROLE")


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    executable: str | None = None,
    **options: Any,
) -> list[Any]:
    """The results of ``func(*args, **kwargs)`` on each of ``num_proc`` ranks, in the order of the ranks.

    ``ringpull launch`` starts them. ``options`` are those of ``horovodrun`` by their long names, with ``_`` for ``-``; ``use_mpi`` and
    ``use_gloo`` too. The function and its results travel through a file: in the folder of work, which ``hosts`` or those of ``hostfile``
    have to share, or without these in the temporary folder. The package ``cloudpickle`` lets it be one of the script itself. Raises
    ``RuntimeError`` if a rank fails.
    """
    if any(name in os.environ for name in _OF_A_JOB):
        raise RuntimeError("horovod.run in a process that is a rank of a job already\n  hint: start the program without a launcher, or call the function itself")
    words = ["-np", str(num_proc if np is None else np)]
    words += [word for name, value in (("-H", hosts), ("--hostfile", hostfile)) if value is not None for word in (name, value)]
    for name, value in options.items():
        if value not in (None, False):
            words.append("--" + name.removeprefix("use_").replace("_", "-"))
            words += [] if value is True else [str(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
    # Another host has the folder of work at most.
    shared = Path.cwd() if hosts or hostfile else None
    with tempfile.TemporaryDirectory(prefix="ringpull-run-", dir=shared) as folder:
        Path(folder, "function").write_bytes(pickle.dumps(sys.path) + _dumped((func, args, kwargs or {})))
        command = [_launcher(), "launch", *words, "--", executable or sys.executable, "-m", "ringpull.horovod", "-m", "ringpull.horovod.rank_of_run", folder]
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise RuntimeError(f"horovod.run: the job has ended with status {status}\n  hint: see what its ranks or its launcher have written")
        found = sorted(Path(folder).glob("result.*"), key=lambda path: int(path.suffix[1:]))
        return [pickle.loads(path.read_bytes()) for path in found]


def _launcher() -> str:
    found = launcher.find()
    if found is None:
        raise RuntimeError("horovod.run: there is no command ringpull\n  hint: install the wheel, or start the script itself with mpirun -n N python -m ringpull.horovod SCRIPT")
    return found


def _dumped(value: Any) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError:
        try:
            # A function of the script itself would not be found: `__main__` is another program there.
            if value[0].__module__ == "__main__":
                raise AttributeError("it is the script's own")
            return pickle.dumps(value)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise RuntimeError(f"horovod.run cannot send the function to the ranks: {error}\n  hint: pip install cloudpickle, or start the script with ringpull launch -n N") from None
    return bytes(cloudpickle.dumps(value))
