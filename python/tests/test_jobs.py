"""The plain API in jobs of several ranks, and what goes wrong in them."""

import json
import re

import pytest
from conftest import FOUR, HERE, job, launch, launched, mpi


@pytest.mark.parametrize("ranks", [1, 2, FOUR])
def test_the_promises_hold_on_every_rank(ranks):
    assert job(ranks, "values", "dist_sync_mpi").count("is done") == ranks


def test_mpi_may_have_been_initialised_by_somebody_else():
    pytest.importorskip("mpi4py")
    assert job(2, "values", "dist_sync_mpi", "mpi4py").count("is done") == 2


def test_the_promises_hold_with_servers():
    assert launched(2, 2, HERE / "jobs/values.py", "dist_sync").count("is done") == 2


@pytest.mark.parametrize("ranks", [2, FOUR])
def test_a_wrong_call_is_the_same_exception_on_every_rank_and_changes_nothing(ranks):
    output = job(ranks, "faults", "arguments")
    assert output.count("has tried all") == ranks and not re.search(r"got .* from ", output), output


#: A case of `jobs/faults.py`, the exception that every rank gets, and that of the last rank where it is another one.
FAULTS = [
    ("other_size_initialised", "DisagreementError", None),
    ("other_size_pushed_by_one", "StalledError", "ShapeMismatchError"),
    ("never_pushed", "StalledError", None),
    ("pushed_twice", "StalledError", None),
    ("peer_gone", "PeerLostError", None),
]


def outcomes(output):
    """What each rank said that it got, after checking that it came within the deadline."""
    got = re.findall(r"rank (\d) got (\w+)(.*) after ([\d.]+) s", output)
    assert all(float(seconds) < 2 + 5 for *_, seconds in got), output
    return {int(rank): kind for rank, kind, *_ in got}


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize(("case", "expected", "of_last"), FAULTS)
def test_a_fault_is_one_exception_on_every_rank(ranks, case, expected, of_last):
    _, output = mpi(ranks, HERE / "jobs/faults.py", case, RINGPULL_TIMEOUT=2)
    want = dict.fromkeys(range(ranks), expected)
    if of_last:
        want[ranks - 1] = of_last
    if case == "peer_gone":
        del want[ranks - 1]
    assert outcomes(output) == want, output
    assert case == "peer_gone" or "key='a'" in output, output


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize(
    ("kind", "case", "expected"),
    [
        ("dist_async", "no_optimizer", "ArgumentError"),
        ("dist_sync", "integers", "nothing"),
        ("dist_sync", "never_pushed", "StalledError"),
        ("dist_sync", "pushed_twice", "StalledError"),
    ],
)
def test_a_fault_with_servers_is_one_exception_on_every_worker(workers, kind, case, expected):
    _, output = launch(workers, 1, HERE / "jobs/faults.py", case, kind, RINGPULL_TIMEOUT=2)
    assert outcomes(output) == dict.fromkeys(range(workers), expected), output


def test_the_bench_prints_what_it_has_checked():
    status, output = mpi(2, "-m", "ringpull.bench", "--lens", "1000,7", "--iters", 3)
    (record,) = json.loads(output[output.index("[") : output.rindex("]") + 1])
    assert status == 0 and record["verified"] and len(record["seconds"]) == 3, output
