"""The plain API in jobs of several ranks, and what goes wrong in them."""

import json
import re

import pytest
from conftest import HERE, job, launched, mpi


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_promises_hold_on_every_rank(ranks):
    assert job(ranks, "values", "dist_sync_mpi").count("is done") == ranks


def test_mpi_may_have_been_initialised_by_somebody_else():
    pytest.importorskip("mpi4py")
    assert job(2, "values", "dist_sync_mpi", "mpi4py").count("is done") == 2


def test_the_promises_hold_with_servers():
    assert launched(2, 2, HERE / "jobs/values.py", "dist_sync").count("is done") == 2


#: A case of `jobs/faults.py` and the exception that the first rank gets, the last, and those between.
FAULTS = [
    ("unknown_key", "UnknownKeyError"),
    ("unknown_key_pushed", "UnknownKeyError"),
    ("double_init", "DuplicateKeyError"),
    ("other_size_pushed", "ShapeMismatchError"),
    ("other_dtype_pushed", "DtypeMismatchError"),
    ("other_size_initialised", "DisagreementError"),
    ("never_pushed", "StalledError"),
    ("pushed_twice", "StalledError"),
    ("peer_gone", "PeerLostError"),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("case", "expected"), FAULTS)
def test_a_fault_is_one_exception_on_every_rank(ranks, case, expected):
    _, output = mpi(ranks, HERE / "jobs/faults.py", case, RINGPULL_TIMEOUT=2)
    got = re.findall(r"rank (\d) got (\w+)(.*) after ([\d.]+) s", output)
    ending = 1 if case == "peer_gone" else 0
    assert sorted(rank for rank, *_ in got) == [str(rank) for rank in range(ranks - ending)], output
    assert {kind for _, kind, *_ in got} == {expected}, output
    assert all(float(seconds) < 2 + 5 for *_, seconds in got), output
    assert case == "peer_gone" or "key='a'" in output or re.search(r"key=(1|2|3|'b')", output), output


def test_servers_that_merge_nothing_need_an_optimizer():
    output = launched(2, 1, HERE / "jobs/faults.py", "no_optimizer", "dist_async")
    assert len(re.findall(r"got ArgumentError", output)) == 2, output




def test_the_bench_prints_what_it_has_checked():
    status, output = mpi(2, "-m", "ringpull.bench", "--lens", "1000,7", "--iters", 3)
    (record,) = json.loads(output[output.index("[") : output.rindex("]") + 1])
    assert status == 0 and record["verified"] and len(record["seconds"]) == 3, output
