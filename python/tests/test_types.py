"""Tests that type checkers accept the package and programs that use it."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from ranks import HERE, ROOT

PROGRAM = """
from typing import Any, assert_type

import numpy
import ringpull

store: ringpull.KVStore = ringpull.create("local")
store.init("w", numpy.zeros(4))
assert_type(store.pushpull(["w"], [numpy.zeros(4)], wait=False).wait(1.0), bool)
handle: ringpull.Handle | None = store.pushpull("w", numpy.zeros(4), wait=store.rank > 0)
store.row_sparse_pull("w", out=ringpull.zeros((2, 4)), row_ids=[1, 2])
store.push(3, ringpull.RowSparse([1], numpy.ones((1, 4)), (3, 4)), priority=-3)


def update(key: ringpull.Key, received: Any, stored: Any) -> None:
    stored += received


store.set_updater(update)
store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
store.set_gradient_compression("none")
store.set_optimizer(ringpull.SGD(learning_rate=0.1))
try:
    store.push("w", numpy.zeros(4))
except ringpull.StalledError as error:
    missing: list[int] = error.missing
rank: int = store.rank
with ringpull.create() as other:
    assert_type(other.join(), int)
    assert_type(other.stats(), dict[str, int])
    assert_type(ringpull.kinds(), list[str])
"""

WRONG = """
import ringpull

store = ringpull.create("local")
store.pushpull("w", 1).wait()
store.push(1.5, 1)
store.set_optimizer(0.1)
store.rank = 1
ringpull.creat("local")
"""


def said(folder, command, **more):
    """The output of a command that is run in `folder`."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=os.environ | more
    )
    return done.stdout + done.stderr


def found(folder, *arguments, strict=True, **more):
    """The output of mypy for the files in `arguments`. Its cache and its settings are in `folder`."""
    pytest.importorskip("mypy")
    settings = [*(["--strict"] if strict else []), "--ignore-missing-imports", "--config-file=", "--cache-dir", folder / "cache"]
    return said(folder, [sys.executable, "-m", "mypy", *settings, *arguments], **more)


def test_the_package_is_typed(tmp_path):
    assert "no issues found" in found(tmp_path, "-p", "ringpull", "-p", "ringpull_torch", MYPYPATH=str(ROOT / "python"))


def test_tests_and_benches_pass_mypy(tmp_path):
    programs = [HERE, *sorted((ROOT / "benches").glob("*.py"))]
    assert "no issues found" in found(tmp_path, *programs, strict=False, MYPYPATH=str(ROOT / "python"))


def test_pyright_accepts_the_package(tmp_path):
    pytest.importorskip("pyright")
    package = os.path.relpath(ROOT / "python" / "ringpull", tmp_path)
    # Frameworks are optional. If torch is not installed, pyright would use our file torch.py instead of it.
    of_torch = [f"{package}/{name}" for name in ("torch.py", "torch_distributed", "backward.py", "horovod/torch")]
    untyped = [] if importlib.util.find_spec("torch") else of_torch
    settings = {"include": [package], "exclude": untyped, "reportMissingImports": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    text = said(tmp_path, [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable])
    report = json.loads(text[text.index("{") : text.rindex("}") + 1])
    errors = [problem for problem in report["generalDiagnostics"] if problem["severity"] == "error"]
    assert report["summary"]["filesAnalyzed"] > 10 and errors == [], errors


def test_a_program_is_checked_against_the_stubs(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert "no issues found" in found(tmp_path, "program.py")


def test_each_misuse_in_a_program_is_found(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    errors = found(tmp_path, "wrong.py")
    assert [line for line in range(5, 10) if f"wrong.py:{line}: error" not in errors] == [], errors
