"""Prints at the end the skipped tests, and how to install the packages that they need. On CI a skip is a failure, unless
`skipped_in_ci.txt` names it with its reason.
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LISTED = HERE / "skipped_in_ci.txt"

#: The commands that install the packages without which tests are skipped.
REMEDIES = {
    "torch": "scripts/setup --torch-cpu",
    "jax": "scripts/setup --jax",
    "keras": "scripts/setup --jax",
    "tf_keras": "pip install tensorflow-cpu tf_keras, in a virtual environment without MXNet",
    "tensorflow": "pip install tensorflow-cpu, in a virtual environment without MXNet",
    "mxnet": "scripts/setup --python, with Python 3.11",
}

COLLECTED = pytest.StashKey[set[str]]()
RAN = pytest.StashKey[set[str]]()
SKIPPED = pytest.StashKey[dict[str, str]]()
COMPLAINTS = pytest.StashKey[list[str]]()


def listed():
    """The tests of the list, each with its reason. The lines of the file are `tests/FILE.py::NAME: REASON`, or comments."""
    lines = [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


def complaints(skipped, allowed, ran, collected):
    """The complaints about the skips of a run on CI. `collected` is None unless the whole suite was collected."""
    found = [f"{name} must not be skipped on CI: {why}" for name, why in skipped.items() if name not in allowed]
    found += [f"{LISTED.name} gives no reason for {name}" for name, reason in allowed.items() if not reason.strip()]
    gone = set() if collected is None else allowed.keys() - collected - skipped.keys()
    found += [f"{LISTED.name} has {name}, which was not skipped" for name in allowed if name in ran and name not in skipped]
    return found + [f"{LISTED.name} has {name}, which is no test" for name in sorted(gone)]


def remedies(skipped):
    """A line for each reason, with its number of skips. A skipped file counts as one skip."""
    reasons = Counter()
    for why in skipped.values():
        missing = re.match(r"could not import '(\w+)'", why)
        reasons[f"{missing[1]} is not installed: {REMEDIES.get(missing[1], 'scripts/setup --python')}" if missing else why] += 1
    return [f"skipped: {count} Python tests or files of tests: {why}" for why, count in reasons.items()]


def pytest_configure(config):
    config.stash[RAN], config.stash[SKIPPED], config.stash[COMPLAINTS] = set(), {}, []
    config.pluginmanager.register(Recorder(config))


class Recorder:
    """Records each skip with its reason. A test may be skipped, or a file when it is imported."""

    def __init__(self, config):
        self.stash = config.stash

    def note(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.stash[SKIPPED][report.nodeid] = why.removeprefix("Skipped: ")

    def pytest_collectreport(self, report):
        self.note(report)

    def pytest_runtest_logreport(self, report):
        self.stash[RAN].add(report.nodeid)
        self.note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        # This runs before `-m` and `-k` have deselected tests.
        self.stash[COLLECTED] = {item.nodeid for item in items}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if not os.environ.get("CI"):
        return
    config, stash = session.config, session.config.stash
    whole = all(Path(config.invocation_params.dir, word).resolve() in (HERE, HERE.parent) for word in config.args)
    collected = stash.get(COLLECTED, None) if whole else None
    stash[COMPLAINTS] = complaints(stash[SKIPPED], listed(), stash[RAN], collected)
    if stash[COMPLAINTS] and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash[COMPLAINTS]:
        terminalreporter.write_line(f"failed: {line}", red=True)
    for line in remedies(config.stash[SKIPPED]):
        terminalreporter.write_line(line)
