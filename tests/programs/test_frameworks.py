"""Tests frameworks on PyTorch. Each runs a script of `frameworks/` in two ranks of `ringpull launch`. The frameworks are PyPI's packages for
CPUs, in a virtual environment of their own.

    python -m pytest tests/programs/test_frameworks.py -m long

RINGPULL_FRAMEWORKS names that environment, by default .deps/frameworks. The first run makes it. docs/how-to/frameworks.md
has the results for users.
"""

import functools
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from ranks import MPIRUN, ROOT, ringpull_binary, run, start, well

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
VENV = Path(os.environ.get("RINGPULL_FRAMEWORKS", ROOT / ".deps/frameworks"))
PACKAGES = ["lightning", "accelerate", "transformers", "ray[train]"]
#: In its first process DeepSpeed builds a library for CPUs, which takes minutes.
DEADLINE_S = 900


@functools.cache
def python():
    """The environment's Python. Adds to the environment the package `ringpull` that this Python has."""
    interpreter = VENV / "bin/python"
    done = VENV / "complete"
    if not done.exists():

        def pip(*words):
            subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words], check=True)

        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip("numpy", "setuptools>=78", "filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "ninja")
        pip("--no-deps", "torch==2.15.0")
        subprocess.run([interpreter, ROOT / "scripts/torch-without-cuda.py"], check=True)
        pip(*PACKAGES)
        pip("--no-build-isolation", "deepspeed")
        pip("--target", VENV / "mpi4py", "mpi4py")
        done.touch()
    # Our package is the one that this Python has, with its entry point.
    ours, theirs = (
        Path(sysconfig.get_path("platlib")),
        next((VENV / "lib").glob("python*/site-packages")),
    )
    for found in ours.glob("ringpull*"):
        link = theirs / found.name
        link.unlink(missing_ok=True)
        link.symlink_to(found)
    return str(interpreter)


def launched(script):
    """Runs a script on two ranks. Returns the last line of each rank."""
    words = [ringpull_binary(), "launch", "-n", 2, "--"]
    # DeepSpeed looks for ninja in the PATH.
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = well(start(words, 2, [python(), HERE / "frameworks" / f"{script}.py"], deadline=DEADLINE_S, PATH=path))
    return [printed.out.splitlines()[-1] for printed in done.ranks]


@pytest.mark.parametrize("script", ["lightning_trainer", "accelerate_loop", "transformers_trainer", "deepspeed_zero"])
def test_a_framework_trains_alike_on_two_ranks(script):
    first, second = launched(script)
    assert first.startswith("rank 0 of 2: ") and second.startswith("rank 1 of 2: "), (first, second)


def test_lightning_finds_its_ranks_by_mpi4py_too():
    path = f"{VENV / 'mpi4py'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    words = [MPIRUN, "-n", 2, "--oversubscribe", "--bind-to", "none"]
    done = well(start(words, 2, [python(), HERE / "frameworks/lightning_trainer.py"], PYTHONPATH=path))
    lines = [printed.out.splitlines()[-1] for printed in done.ranks]
    assert [line.partition(": ")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"], f"{done}"


def test_rays_processes_are_told_that_mpi_did_not_start_them():
    status, output = run([python(), HERE / "frameworks/ray_train.py"], deadline=DEADLINE_S)
    assert status != 0 and "torchrun starts no ranks of MPI: start it with mpirun or `ringpull launch`" in output, output
