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

#: Variables that a launcher sets in the processes of a job.
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
    """Calls ``func(*args, **kwargs)`` on each of ``num_proc`` ranks, and returns the results in the order of the ranks.

    ``ringpull launch`` starts the ranks. ``options`` are the options of ``horovodrun`` by their long names, with ``_`` for ``-``;
    ``use_mpi`` and ``use_gloo`` too. The function and its results travel through files. With ``hosts`` or ``hostfile`` these are in the
    working folder, which all hosts have to share; otherwise they are in the temporary folder. If the package ``cloudpickle`` is installed,
    the function may be defined in the script itself. Raises ``RuntimeError`` if a rank fails.
    """
    if any(name in os.environ for name in _OF_A_JOB):
        raise RuntimeError("horovod.run was called in a process that is already a rank of a job\n  hint: start the program without a launcher, or call the function itself")
    words = ["-np", str(num_proc if np is None else np)]
    words += [word for name, value in (("-H", hosts), ("--hostfile", hostfile)) if value is not None for word in (name, value)]
    for name, value in options.items():
        if value not in (None, False):
            words.append("--" + name.removeprefix("use_").replace("_", "-"))
            words += [] if value is True else [str(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
    # Other hosts can share at most the working folder.
    shared = Path.cwd() if hosts or hostfile else None
    with tempfile.TemporaryDirectory(prefix="ringpull-run-", dir=shared) as folder:
        Path(folder, "function").write_bytes(pickle.dumps(sys.path) + _dumped((func, args, kwargs or {})))
        command = [_launcher(), "launch", *words, "--", executable or sys.executable, "-m", "ringpull.horovod", "-m", "ringpull.horovod.rank_of_run", folder]
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise RuntimeError(f"horovod.run: the job has ended with status {status}\n  hint: see the output of its ranks and its launcher")
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
            # The ranks would not find a function of the script itself: `__main__` is another program there.
            if value[0].__module__ == "__main__":
                raise AttributeError("it is defined in the script itself")
            return pickle.dumps(value)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise RuntimeError(f"horovod.run cannot send the function to the ranks: {error}\n  hint: pip install cloudpickle, or start the script with ringpull launch -n N") from None
    return bytes(cloudpickle.dumps(value))
