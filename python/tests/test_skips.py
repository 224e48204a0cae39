"""Tests that a skip is printed with the command that installs what is missing. On CI a skip is a failure unless it is listed with its
reason."""

import os
import shutil
import subprocess
import sys

import pytest
from ranks import HERE

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="no GPU")
def test_on_a_gpu():
    pass

def test_of_torch():
    pytest.importorskip("torch")
"""


@pytest.fixture
def suite(tmp_path):
    """Returns a function that runs a suite of three tests without torch. Its arguments are the lines of the list of skips. It returns the exit
    status and the output."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "test_some.py").write_text(TESTS)
    # This module is found before an installed torch.
    (folder / "torch.py").write_text("raise ModuleNotFoundError('no torch here')")

    def run(*lines, ci="true", of="tests"):
        (folder / "skipped_in_ci.txt").write_text("\n".join(["# Reasons.", *lines]))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, of]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"CI": ci}, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    return run


GPU, TORCH = "tests/test_some.py::test_on_a_gpu: CI has no GPU", "tests/test_some.py::test_of_torch: it is too large"


def test_a_skip_off_ci_is_printed_with_how_to_have_what_is_missing(suite):
    status, output = suite(ci="")
    assert status == 0 and "skipped: 1 Python tests or files of tests: no GPU" in output, output
    assert "skipped: 1 Python tests or files of tests: torch is not installed: scripts/setup --torch-cpu" in output, output


def test_a_skip_on_ci_is_a_failure_unless_it_is_listed(suite):
    status, output = suite(GPU)
    assert status == 1 and "failed: tests/test_some.py::test_of_torch must not be skipped on CI" in output, output
    status, output = suite(GPU, TORCH)
    assert status == 0 and "failed:" not in output, output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tests/test_some.py::test_passes: it is slow", "has tests/test_some.py::test_passes, which was not skipped"),
        ("tests/test_some.py::test_gone: it is slow", "has tests/test_some.py::test_gone, which is no test"),
        ("tests/test_some.py::test_on_a_gpu", "gives no reason for tests/test_some.py::test_on_a_gpu"),
    ],
)
def test_a_line_of_the_list_that_nothing_needs_any_more_is_a_failure(suite, line, words):
    status, output = suite(*(other for other in (GPU, TORCH) if not other.startswith(line)), line)
    assert status == 1 and f"failed: skipped_in_ci.txt {words}" in output, output


def test_what_was_not_run_is_not_missed(suite):
    status, output = suite(GPU, "tests/test_some.py::test_gone: it is slow", of="tests/test_some.py::test_on_a_gpu")
    assert status == 0 and "failed:" not in output, output
