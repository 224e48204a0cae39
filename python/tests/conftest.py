"""Jobs of several processes for the tests: a Python file of `jobs/` under `mpirun` or `ringpull launch`, killed at a deadline."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MPIRUN = os.environ.get("RINGPULL_MPIRUN", "mpirun")

#: Four ranks, where two are tried by every run.
FOUR = pytest.param(4, marks=pytest.mark.long)

#: Seconds after which a job that hangs is killed.
DEADLINE = 120


def environment(**more):
    """This process's environment with what a job needs: root may start MPI, and what is stuck is noticed soon."""
    names = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "RINGPULL_TIMEOUT": "10"}
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | names | quiet | {name: str(value) for name, value in more.items()}


def run(command, deadline=DEADLINE, **more):
    """What a command printed and its exit status; everything it started is killed at the deadline."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(**more),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{command} was not done after {deadline} s; it printed:\n{output}")
    return process.returncode, output


#: Whether the examples' images are where `scripts/setup` puts them, as root or not.
HAS_IMAGES = any(Path(folder, "datasets/fashion-mnist").is_dir() for folder in ("/usr/share", ROOT / ".deps/usr/share"))


def mpi(ranks, *command, **more):
    """`command` by this Python under mpirun."""
    oversubscribe = ["--oversubscribe", "--bind-to", "none"] if is_open_mpi() else []
    return run([MPIRUN, "-n", ranks, *oversubscribe, sys.executable, *command], **more)


def is_open_mpi():
    return "Open MPI" in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=False).stdout


def job(ranks, name, *arguments, **more):
    """A job of `jobs/` that must end well on every rank; what it printed."""
    status, output = mpi(ranks, HERE / "jobs" / f"{name}.py", *arguments, **more)
    assert status == 0, f"{name} {arguments} ended with {status}:\n{output}"
    return output


def ringpull_binary():
    """The command `ringpull`, or the test is skipped."""
    for found in (os.environ.get("RINGPULL_BINARY"), ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/ringpull", shutil.which("ringpull")):
        if found and Path(found).exists():
            return str(found)
    pytest.skip("the command ringpull is not built")


def launch(workers, servers, *command, **more):
    """`command` by this Python in a job with servers; its exit status and what it printed."""
    start = [ringpull_binary(), "launch", "-n", workers, "-s", servers, "--launcher", "local", "--"]
    return run([*start, sys.executable, *command], **more)


def launched(workers, servers, *command, **more):
    """What `launch` printed, when it must end well."""
    status, output = launch(workers, servers, *command, **more)
    assert status == 0, f"{command} ended with {status}:\n{output}"
    return output
