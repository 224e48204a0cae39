"""Type checkers accept the package and programs that use it."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = """
import numpy
import ringpull

store: ringpull.KVStore = ringpull.create("local")
store.init("w", numpy.zeros(4))
handle = store.pushpull(["w"], [numpy.zeros(4)], wait=False)
if handle is not None:
    done: bool = handle.wait(1.0)
store.set_optimizer(ringpull.SGD(learning_rate=0.1))
try:
    store.push("w", numpy.zeros(4))
except ringpull.StalledError as error:
    missing: list[int] = error.missing
rank: int = store.rank
"""


def check(folder, *arguments, **more):
    """Lets mypy check what the arguments name; its cache and its own settings are of `folder`."""
    pytest.importorskip("mypy")
    strict = ["--strict", "--ignore-missing-imports", "--config-file=", "--cache-dir", folder / "cache"]
    command = [sys.executable, "-m", "mypy", *map(str, [*strict, *arguments])]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=os.environ | more
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    check(tmp_path, "-p", "ringpull", MYPYPATH=str(ROOT / "python"))


def test_a_program_is_checked_against_the_stubs(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    check(tmp_path, "program.py")
