"""Type checkers accept the package and programs that use it."""

import subprocess
import sys
from pathlib import Path

import pytest

import ringpull

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


def check(*arguments, **options):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    check("--cache-dir", tmp_path, Path(ringpull.__file__).parent)


def test_a_program_is_checked_against_the_stubs(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    check("--cache-dir", tmp_path / "cache", tmp_path / "program.py", env={"MYPYPATH": str(Path(ringpull.__file__).parent.parent)})
