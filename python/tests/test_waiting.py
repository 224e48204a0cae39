"""Tests that a late rank costs only time and a few warnings, and that ranks that all wait for each other soon get an error."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec

import pytest
from ranks import HAS_IMAGES, HERE, ROOT, launch, mpi
from ranks import run as run_alone

KINDS = ["dist_sync_mpi", "dist_sync"]
FRONTS = [(kind, front) for kind in KINDS for front in ("ringpull", "mxnet")]
#: The fronts in which a rank sleeps while gradients are computed.
BACKWARD = [(kind, "torch") for kind in KINDS]
#: The packages that fronts need.
NEEDS = {"mxnet": "mxnet", "torch": "torch"}


def of_kind(kind, ranks, *words, **env):
    """A job with the default limits, unless a test sets others."""
    env = {"RINGPULL_TIMEOUT": "", **env}
    return mpi(ranks, *words, **env) if kind == "dist_sync_mpi" else launch(ranks, 1, *words, **env)


def run(case, kind, front, **env):
    if front in NEEDS:
        pytest.importorskip(NEEDS[front])
    return of_kind(kind, 2, HERE / "jobs/waiting.py", case, kind, front, **env)


@cache
def all_of(case, fronts, **env):
    """Runs the jobs of a case in which a rank sleeps, all at the same time. Returns them by their fronts."""
    pool = ThreadPoolExecutor(len(fronts))
    return {of: pool.submit(run, case, *of, **env) for of in fronts if find_spec(NEEDS.get(of[1], "ringpull"))}


def asleep(case, fronts, kind, front, **env):
    """One of the jobs of `all_of`."""
    pytest.importorskip(NEEDS.get(front, "ringpull"))
    return all_of(case, tuple(fronts), **env)[kind, front].result()


@pytest.mark.parametrize(("kind", "front"), FRONTS)
def test_a_rank_that_is_late_is_warned_about_and_nothing_else(kind, front):
    done = asleep("late", FRONTS, kind, front, RINGPULL_WARN="1")
    warnings = [line for line in done.ranks[0].text.splitlines() if line.startswith("warning: rank 0 has waited")]
    assert done.status == 0 and 1 <= len(warnings) <= 4, f"{done}"
    assert all("of key" in warning and "has not called" in warning.replace("have", "has") for warning in warnings), f"{done}"
    if kind == "dist_sync_mpi":
        assert re.search(r"waiting\.py:\d+ in late has not called", "\n".join(warnings)), f"{done}"


@pytest.mark.parametrize(("kind", "front"), FRONTS)
def test_a_rank_that_loads_longer_than_the_others_is_waited_for(kind, front):
    done = asleep("start", FRONTS, kind, front)
    assert done.status == 0 and all(f"rank {rank} is done" in printed.out for rank, printed in enumerate(done.ranks)), f"{done}"
    assert "warning" not in "".join(printed.text for printed in done.ranks), f"{done}"


@pytest.mark.parametrize(("kind", "front"), FRONTS + BACKWARD)
def test_ranks_that_wait_for_each_other_get_an_error_with_their_lines_within_ten_seconds(kind, front):
    done = run("deadlock", kind, front)
    for rank, printed in enumerate(done.ranks):
        found = re.search(rf"^rank {rank} got (\w+): (.*) after ([\d.]+) s$", printed.out, re.MULTILINE)
        assert found and float(found[3]) < 10, f"{done}"
        for other in range(2):
            key = rf"key{other}[\w.]*"
            site = r" at \S*waiting\.py:\d+ in \w+"
            assert re.search(rf"rank {other} waits{site} for push\w* of key \W+{key}\W+ which rank\(s\) \[{1 - other}\]", found[2]), f"{done}"


@pytest.mark.parametrize(("kind", "front"), BACKWARD)
def test_a_rank_that_sleeps_in_its_backward_pass_is_not_taken_for_one_that_waits(kind, front):
    done = asleep("asleep", BACKWARD, kind, front)
    assert done.status == 0 and all(f"rank {rank} is done" in printed.out for rank, printed in enumerate(done.ranks)), f"{done}"


@pytest.mark.long
@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("front", ["mxnet", "torch"])
def test_a_minute_of_one_rank_costs_the_others_time_and_two_warnings_at_most(kind, front):
    pytest.importorskip(front)
    store = f"ringpull_{kind}" if front == "mxnet" and kind != "dist_sync_mpi" else kind
    short = ["--steps", 10, "--epochs", 1, "--limit-train", 1024, "--limit-test", 200]
    example = HERE / "jobs/late_example.py", 60, ROOT / f"examples/{front}/train.py"
    done = of_kind(kind, 4, *example, "--kv-store", store, *short, deadline=240)
    counts = [printed.text.count("warning:") for printed in done.ranks]
    assert done.status == 0 and max(counts) <= 2 and sum(counts) >= 1 and counts[3] == 0, f"{done}"
    hashes = {re.findall(r"^rank \d of 4 weights (\w+)$", printed.out, re.MULTILINE)[0] for printed in done.ranks}
    assert len(hashes) == 1 and all("made 10 steps" in printed.out for printed in done.ranks), f"{done}"


def test_a_rank_that_does_not_create_its_store_is_waited_for_with_a_warning():
    code = "import sys, time, os, ringpull; time.sleep(3 * (os.environ['OMPI_COMM_WORLD_RANK'] == '1')); ringpull.create('dist_sync_mpi').barrier()"
    done = mpi(2, "-c", code, RINGPULL_WARN="1")
    assert done.status == 0 and "for others to create their store" in done.ranks[0].text, f"{done}"


def test_a_rank_0_that_stands_still_is_missed_in_time_however_much_there_is_to_announce_to_it():
    done = mpi(2, HERE / "jobs/stopped.py", RINGPULL_TIMEOUT="", RINGPULL_SILENCE="4")
    found = re.search(r"^called after ([\d.]+) s, PeerLostError after ([\d.]+) s: rank 0 ", done.ranks[1].out, re.MULTILINE)
    assert found and float(found[1]) < 4 and float(found[2]) < 6.5, f"{done}"


#: A program that creates a store of the given kind. The call would wait for ever, and is interrupted after two seconds.
CREATES = """
import signal, sys, time, ringpull
begun = time.monotonic()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 2)
try:
    ringpull.create(sys.argv[1])
except KeyboardInterrupt:
    print(f"interrupted after {time.monotonic() - begun:.1f} s", flush=True)
"""


def test_a_worker_whose_scheduler_never_comes_says_so_and_ends_with_ctrl_c():
    job = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": 1, "DMLC_NUM_SERVER": 1}
    job |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": 9, "RINGPULL_WARN": 1, "RINGPULL_TIMEOUT": ""}
    status, said = run_alone([sys.executable, "-c", CREATES, "dist_sync"], deadline=20, **job)
    assert status == 0 and re.search(r"^interrupted after [23]\.\d s$", said, re.MULTILINE), said
    assert said.count("warning: a worker has waited 1 s for the scheduler at 127.0.0.1:9, which does not answer") == 1, said


def test_a_rank_whose_peer_does_not_create_its_store_ends_with_ctrl_c():
    code = f"import os, time\nif os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1': time.sleep(30)\n{CREATES}"
    done = mpi(2, "-c", code, "dist_sync_mpi", deadline=25)
    assert re.search(r"^interrupted after [23]\.\d s$", done.ranks[0].out, re.MULTILINE), f"{done}"


@pytest.mark.parametrize("call", ["push", "pull", "barrier"])
@pytest.mark.parametrize("kind", ["dist_sync_mpi", "dist_sync"])
def test_ctrl_c_ends_a_call_that_waits_and_nothing_else(kind, call):
    of = HERE / "jobs/interrupted.py", kind, call
    done = mpi(2, *of) if kind == "dist_sync_mpi" else launch(2, 1, *of)
    found = re.match(r"interrupted after ([\d.]+) s\n", done.ranks[0].out)
    assert done.status == 0 and found and float(found[1]) < 3, f"{done}"
