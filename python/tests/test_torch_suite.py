"""Runs PyTorch's own tests of process groups with our backend's name:
`torch.testing._internal.distributed.distributed_test`.

They run in jobs of many tests each. A test that fails ends its job, and the next job goes on after this test. Tests
that PyTorch has only for other backends for CPUs run under these backends' names, with our process groups. All jobs
together have a time limit.
"""

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import HERE, mpi

#: The tests that cannot pass, each with its reason. docs/how-to/pytorch.md explains them to users.
LEFT_OUT = HERE / "torch_suite_left_out.txt"

pytestmark = pytest.mark.long

#: The time limit, in seconds, for all jobs with the same number of ranks.
LIMIT_S = 1500


def names():
    """The names of all tests. A subprocess prints them, because the module can be imported only after a backend is set."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    source = torch / "testing/_internal/distributed/distributed_test.py"
    if not source.exists():
        pytest.skip("this build of PyTorch has no tests in it")
    code = (
        "import os; os.environ |= {'BACKEND': 'gloo', 'WORLD_SIZE': '2', 'TEMP_DIR': '/tmp'}\n"
        "from torch.testing._internal.distributed.distributed_test import DistributedTest\n"
        "print(*sorted(name for name in dir(DistributedTest._DistTestBase) if name.startswith('test_')))"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def left_out():
    lines = [line for line in LEFT_OUT.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


#: For each other backend for CPUs, the reasons with which its own tests are skipped.
KEPT_FOR = {"gloo": r"be one of \{.*'gloo'|get_future is only|GLOO|Only [Gg]loo backend", "mpi": "Only MPI"}


def outcomes(ranks, tests, folder, backend, end):
    """Runs the tests until ``end``. Returns the outcome of each test on rank 0, or on the rank on which it failed, and the output of the jobs
    that failed."""
    found, failed = {}, []
    while tests:
        words = {"RINGPULL_TIMEOUT": 60, "RINGPULL_TESTS_AS": backend}
        left = max(0.0, end - time.monotonic())
        if not left:
            pytest.fail("\n\n".join([f"{LIMIT_S} s have passed, with {len(tests)} tests left", *failed]))
        done = mpi(ranks, HERE / "jobs/torch_suite.py", folder, *tests, deadline=left, **words)
        lines = [dict(re.findall(r"^(test_\w+) (.*)$", printed.out, re.MULTILINE)) for printed in done.ranks]
        for outcome_of in reversed(lines):
            found |= outcome_of
        broken = [name for outcome_of in lines for name, outcome in outcome_of.items() if outcome.startswith("failed")]
        # The job has ended at the first test that failed on a rank, or that a rank did not finish.
        unfinished = next((name for name in tests if any(name not in outcome_of for outcome_of in lines)), None)
        ended = min((name for name in [*broken, unfinished] if name), key=tests.index, default=None)
        if ended is None:
            break
        said = [outcome_of[ended] for outcome_of in lines if outcome_of.get(ended, "").startswith("failed")]
        found[ended] = said[0] if said else f"failed: exit status {done.status}"
        failed.append(f"{ended}: {found[ended]}\n{done}")
        tests = tests[tests.index(ended) + 1 :]
    return found, failed


@pytest.mark.parametrize("ranks", [2, 4])
def test_pytorchs_own_tests_pass(ranks, tmp_path):
    torch = pytest.importorskip("torch")
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 14):
        pytest.skip(
            "this PyTorch is older than 2.14: scripts/setup --torch-distributed, .venv-torch/bin/python -m pytest"
        )
    every = names()
    reasons = left_out()
    assert reasons.keys() <= set(every), sorted(reasons.keys() - set(every))
    chosen = os.environ.get("RINGPULL_TORCH_TESTS")
    tests = [name for name in every if (re.search(chosen, name) if chosen else name not in reasons)]
    end = time.monotonic() + LIMIT_S
    found, failed = outcomes(ranks, tests, tmp_path, "ringpull", end)
    for backend, reason in KEPT_FOR.items():
        kept = [name for name, outcome in found.items() if outcome.startswith("skipped") and re.search(reason, outcome)]
        # Some of MPI's tests do not check the number of ranks, and would make groups with ranks that do not exist.
        kept = [name for name in kept if backend != "mpi" or ranks >= 4 or not name.endswith("_group")]
        also, worse = outcomes(ranks, sorted(kept), tmp_path, backend, end)
        found, failed = found | also, failed + worse
    counts = {kind: sum(outcome.startswith(kind) for outcome in found.values()) for kind in ("ok", "skipped", "failed")}
    print(counts)
    for name, outcome in sorted(found.items(), key=lambda pair: pair[1]):
        print(f"{ranks} ranks: {name}: {outcome}")
    assert not failed, "\n\n".join(failed)
    assert counts["ok"] >= {2: 80, 4: 115}[ranks]
