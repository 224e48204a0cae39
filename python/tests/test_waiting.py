"""A rank that is late costs time and a few warnings; ranks that all wait for each other are told so soon."""

import re

import pytest
from ranks import HERE, launch, mpi

FRONTS = [(kind, front) for kind in ("dist_sync_mpi", "dist_sync") for front in ("ringpull", "mxnet")]


def run(case, kind, front, **env):
    if front == "mxnet":
        pytest.importorskip("mxnet")
    of = HERE / "jobs/waiting.py", case, kind, front
    # The limits are the defaults, but where a test sets them.
    env = {"RINGPULL_TIMEOUT": "", **env}
    return mpi(2, *of, **env) if kind == "dist_sync_mpi" else launch(2, 1, *of, **env)


@pytest.mark.parametrize(("kind", "front"), FRONTS)
def test_a_rank_that_is_late_is_warned_about_and_nothing_else(kind, front):
    done = run("late", kind, front, RINGPULL_WARN="1")
    warnings = [line for line in done.ranks[0].text.splitlines() if line.startswith("warning: rank 0 has waited")]
    assert done.status == 0 and 1 <= len(warnings) <= 4, f"{done}"
    assert all("of key" in warning and "has not called" in warning.replace("have", "has") for warning in warnings), f"{done}"
    if kind == "dist_sync_mpi":
        assert re.search(r"waiting\.py:\d+ in late has not called", "\n".join(warnings)), f"{done}"


@pytest.mark.parametrize(("kind", "front"), FRONTS)
def test_ranks_that_wait_for_each_other_are_told_where_within_ten_seconds(kind, front):
    done = run("deadlock", kind, front)
    for rank, printed in enumerate(done.ranks):
        found = re.search(rf"^rank {rank} got (\w+): (.*) after ([\d.]+) s$", printed.out, re.MULTILINE)
        assert found and float(found[3]) < 10, f"{done}"
        for other in range(2):
            site = r" at \S*waiting\.py:\d+ in \w+"
            assert re.search(rf"rank {other} waits{site} for push\w* of key \W+key{other}\W+ which rank\(s\) \[{1 - other}\]", found[2]), f"{done}"


def test_a_rank_that_does_not_create_its_store_is_waited_for_with_a_warning():
    code = "import sys, time, os, ringpull; time.sleep(3 * (os.environ['OMPI_COMM_WORLD_RANK'] == '1')); ringpull.create('dist_sync_mpi').barrier()"
    done = mpi(2, "-c", code, RINGPULL_WARN="1")
    assert done.status == 0 and "for others to create their store" in done.ranks[0].text, f"{done}"
