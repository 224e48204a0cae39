"""Tests which line of a program warnings name."""

import os
import runpy
import sys

import pytest

from ringpull import place

#: An installed program, an installed framework, and a program that is not installed.
SOURCES = {
    "site/program/__init__.py": "",
    "site/program/train.py": """
import framework, sys
def main():
    return framework.loop(evaluate)
def evaluate():
    return sys._getframe()
""",
    "site/program/__main__.py": "from program.train import main; found = main()",
    "site/framework.py": """
import sys
def loop(function):
    return inside(function())
def inside(frame):
    return frame, sys._getframe()
""",
    "bin/program": "from program.train import main; found = main()",
    "own/own.py": "import framework, sys; found = framework.loop(sys._getframe)",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes folders in which a program, a framework and a script are installed, and a program that is not installed."""
    for name, source in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(place, "_INSTALLED", (str(tmp_path / "site") + os.sep, "<frozen "))
    monkeypatch.setattr(place, "_SCRIPTS", str(tmp_path / "bin") + os.sep)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("program", "framework")]:
        del sys.modules[name]


def named(frame):
    caller = place._caller_of(frame)
    return os.path.basename(caller.f_code.co_filename), caller.f_code.co_name


@pytest.mark.parametrize("how", ["script", "module"])
def test_an_installed_program_is_named_by_its_own_line(folder, how):
    if how == "script":
        found = runpy.run_path(str(folder / "bin/program"), run_name="__main__")["found"]
    else:
        found = runpy.run_module("program", run_name="__main__", alter_sys=True)["found"]
    in_program, in_framework = found
    assert named(in_program) == ("train.py", "evaluate")
    # `evaluate` has returned, so the program is at the line that called the framework.
    assert named(in_framework) == ("train.py", "main")


def test_a_program_beside_what_is_installed_is_named_by_its_own_line(folder):
    _, in_framework = runpy.run_path(str(folder / "own/own.py"), run_name="__main__")["found"]
    assert named(in_framework) == ("own.py", "<module>")
