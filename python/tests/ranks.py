"""Jobs of several ranks for the tests: a Python program under `mpirun` or `ringpull launch`, with a deadline.

Each rank writes to two files of its own, and a test reads these. The output that a launcher passes on is
mixed from all ranks, also in the middle of a line, so no test searches it: `Job.launcher` holds only what the
launcher itself wrote.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MPIRUN = os.environ.get("RINGPULL_MPIRUN", "mpirun")

#: Four ranks, only in long runs. Every run tries two ranks.
FOUR = pytest.param(4, marks=pytest.mark.long)

#: The seconds after which a job that hangs is killed.
DEADLINE = 300

#: The seconds after which an `mpirun` whose ranks have all ended is killed. The `mpirun` of Open MPI 4.1 with PMIx 4.2 hangs in one of
#: several hundred jobs that fail: two of its threads wait for each other in `PMIx_server_finalize`.
OUTLIVES = 30

#: True if the examples' images are in one of the two places where `scripts/setup` puts them, with or without root.
HAS_IMAGES = any(Path(folder, "datasets/fashion-mnist").is_dir() for folder in ("/usr/share", ROOT / ".deps/usr/share"))

#: A script whose arguments are a folder and a command. Runs the command, with its output in files of the folder: `1.out` and `1.err`
#: for rank or worker 1, `server0.out`, `scheduler.out`. Open MPI and MPICH's Hydra set the process's rank, `ringpull launch` its role.
REDIRECT = """
case ${DMLC_ROLE:-} in
  '') name=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} ;;
  worker) name=${DMLC_WORKER_ID:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}} ;;
  *) name=$DMLC_ROLE${DMLC_SERVER_ID:-} ;;
esac
exec "$@" >"$0/$name.out" 2>"$0/$name.err"
"""


@dataclass(frozen=True)
class Printed:
    """The output of one process."""

    out: str = ""
    err: str = ""

    @property
    def text(self):
        return self.out + self.err


@dataclass(frozen=True)
class Job:
    """A job that has ended. `str` gives all its output, each line after the name of the process that wrote it."""

    status: int | None
    #: The output of each rank, by its number; in a job with servers, of each worker. It is empty for a rank that was not started.
    ranks: list[Printed]
    #: The output of the servers and the scheduler, by their names: `server0`, `scheduler`.
    others: dict[str, Printed]
    #: The output of the launcher itself.
    launcher: str

    def __str__(self):
        names = {f"rank {rank}": printed for rank, printed in enumerate(self.ranks)} | self.others
        texts = {"launcher": self.launcher}
        for name, printed in names.items():
            texts |= {name: printed.out, f"{name} (stderr)": printed.err}
        lines = [f"{name}: {line}" for name, text in texts.items() for line in text.splitlines()]
        return "\n".join([f"exit status {self.status}", *lines])


def environment(**more):
    """This process's environment with variables for jobs: root may start MPI, and a job that is stuck is noticed soon."""
    names = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "RINGPULL_TIMEOUT": "40"}
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RINGPULL_QUIET": "1"}
    return os.environ | names | quiet | {name: str(value) for name, value in more.items()}


def ended(command, deadline, more):
    """A command's exit status and its output. After the deadline the command is killed, and the status is None."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=environment(**more),
        start_new_session=True,
    )
    until = time.monotonic() + deadline
    was_left = False
    while (left := until - time.monotonic()) > 0:
        try:
            output, _ = process.communicate(timeout=min(OUTLIVES, left))
            return process.returncode, output
        except subprocess.TimeoutExpired:
            is_left = command[0] == MPIRUN and not living_below(process.pid)
            if was_left and is_left:
                process.kill()
            was_left = is_left
    # A launcher that is killed by SIGKILL does not end its ranks.
    for number in signal.SIGTERM, signal.SIGKILL:
        os.killpg(process.pid, number)
        try:
            return None, process.communicate(timeout=5)[0]
        except subprocess.TimeoutExpired:
            continue
    return None, "its output is held open by another process"


def living_below(parent):
    """The states of the processes that `parent` has started and that have not ended."""
    listed = subprocess.run(["ps", "--ppid", str(parent), "-o", "stat="], capture_output=True, text=True, check=False).stdout
    return [state for state in listed.split() if not state.startswith("Z")]


def run(command, deadline=DEADLINE, **more):
    """The exit status and the output of a command that is one process."""
    status, output = ended(command, deadline, more)
    if status is None:
        pytest.fail(f"{command} was not done after {deadline} s; it printed:\n{output}")
    return status, output


def start(launcher, ranks, command, deadline=DEADLINE, **more):
    """A job that the command `launcher` starts, with `ranks` ranks or workers. Each runs `command`."""
    with tempfile.TemporaryDirectory(prefix="ringpull-") as folder:
        status, output = ended([*launcher, "/bin/sh", "-c", REDIRECT, folder, *command], deadline, more)
        texts = {path.name: path.read_text(errors="replace") for path in Path(folder).iterdir()}
    names = {name.rpartition(".")[0] for name in texts}
    printed = {name: Printed(texts.get(f"{name}.out", ""), texts.get(f"{name}.err", "")) for name in sorted(names)}
    of_ranks = [printed.pop(str(rank), Printed()) for rank in range(ranks)]
    made = Job(status, of_ranks, printed, output)
    if status is None:
        pytest.fail(f"{command} was not done after {deadline} s\n{made}")
    return made


def mpi(ranks, *command, **more):
    """A job under mpirun, whose ranks run `command` with this Python."""
    oversubscribe = ["--oversubscribe", "--bind-to", "none"] if is_open_mpi() else []
    return start([MPIRUN, "-n", ranks, *oversubscribe], ranks, [sys.executable, *command], **more)


@functools.cache
def is_open_mpi():
    # Open MPI 4 prints this name if it runs under another name than `mpirun`.
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=False).stdout
    return "Open MPI" in version or "OpenRTE" in version


def job(ranks, name, *arguments, **more):
    """A job of a program of `jobs/` under mpirun. Every rank must end with success."""
    return well(mpi(ranks, HERE / "jobs" / f"{name}.py", *arguments, **more))


def ringpull_binary():
    """The command `ringpull`. Skips the test if there is none."""
    for found in (os.environ.get("RINGPULL_BINARY"), ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/ringpull", shutil.which("ringpull")):
        if found and Path(found).exists():
            return str(found)
    pytest.skip("the command ringpull is not built: cargo build")


def launch(workers, servers, *command, **more):
    """A job with servers, whose workers run `command` with this Python."""
    words = [ringpull_binary(), "launch", "-n", workers, "-s", servers, "--launcher", "local", "--"]
    return start(words, workers, [sys.executable, *command], **more)


def launched(workers, servers, *command, **more):
    """A job by `launch` that must end with success."""
    return well(launch(workers, servers, *command, **more))


def well(done):
    assert done.status == 0, f"{done}"
    return done


def all_done(done):
    """Checks that every rank has reached the end of `jobs/values.py` or of `jobs/mxnet_values.py`."""
    for rank, printed in enumerate(done.ranks):
        assert printed.out.endswith(f"rank {rank} of {len(done.ranks)} is done\n"), f"{done}"
