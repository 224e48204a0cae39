"""Tests the plain API in jobs of several ranks, and faults in such jobs."""

import json
import re
import sys

import pytest
from ranks import FOUR, HERE, ROOT, all_done, job, launch, launched, mpi, run, well


@pytest.mark.parametrize("ranks", [1, 2, FOUR])
def test_the_promises_hold_on_every_rank(ranks):
    all_done(job(ranks, "values", "dist_sync_mpi"))


def test_mpi_may_have_been_initialised_by_somebody_else():
    pytest.importorskip("mpi4py")
    all_done(job(2, "values", "dist_sync_mpi", "mpi4py"))


def test_mpi4py_may_be_imported_after_the_store_and_used_beside_it():
    """The job sends messages, as between hosts, because in shared memory the store hardly calls MPI."""
    pytest.importorskip("mpi4py")
    done = well(mpi(2, HERE / "jobs/mpi4py_after.py", RINGPULL_SHARED_MEMORY="0"))
    assert [rank.out for rank in done.ranks] == ["rank 0 is done\n", "rank 1 is done\n"], f"{done}"


def test_a_program_ends_while_a_thread_of_its_store_needs_python():
    job(2, "ending", 0.3)


def test_a_thread_that_keeps_python_does_not_keep_a_program_from_its_end():
    done = mpi(2, HERE / "jobs/ending.py", 60, RINGPULL_TIMEOUT="2", deadline=20)
    # The rank that gives up first ends the job, and this may end the other rank too.
    assert done.status == 1 and any("has run in Python for more than 2s" in rank.err for rank in done.ranks), f"{done}"


def test_the_promises_hold_with_servers():
    all_done(launched(2, 2, HERE / "jobs/values.py", "dist_sync"))


@pytest.mark.parametrize("ranks", [2, FOUR])
def test_memory_that_is_given_twice_gives_exact_sums_or_an_error(ranks):
    all_done(job(ranks, "overlaps", "dist_sync_mpi"))


def test_memory_that_is_given_twice_to_servers_gives_exact_sums_or_an_error():
    all_done(launched(2, 1, HERE / "jobs/overlaps.py", "dist_sync"))


def test_memory_that_is_given_twice_in_one_process_gives_exact_sums_or_an_error():
    all_done(job(1, "overlaps", "local"))


@pytest.mark.parametrize("case", ["memory", "orders", "circle"])
@pytest.mark.parametrize("kind", ["dist_sync_mpi", "dist_sync"])
def test_pushes_ahead_of_a_slow_worker_take_little_memory_and_wait_for_nobody_for_ever(kind, case):
    is_mpi = kind == "dist_sync_mpi"
    all_done(job(2, "backlog", kind, case) if is_mpi else launched(2, 1, HERE / "jobs/backlog.py", kind, case))


#: Cases of bad input that are wrong on each rank alone. `jobs/faults.py` lists the calls with their exceptions.
ALONE = ["arguments", "numbers"]


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("case", ALONE)
def test_a_wrong_call_is_the_same_exception_on_every_rank_and_changes_nothing(ranks, case):
    tried_all(job(ranks, "faults", case))


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize("kind", ["dist_sync", pytest.param("dist_async", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", ALONE)
def test_a_wrong_call_with_servers_is_the_same_exception_on_every_worker(workers, kind, case):
    tried_all(launched(workers, 1, HERE / "jobs/faults.py", case, kind))


def tried_all(done):
    """Checks that every rank got the expected exception from each of the calls."""
    for rank, printed in enumerate(done.ranks):
        assert f"rank {rank} has tried all\n" in printed.out and not re.search(r"got .* from ", printed.out), f"{done}"


#: Cases of `jobs/faults.py` in which one rank does something different: the exception that every rank gets, and the exception of the last
#: rank if that differs.
FAULTS = [
    ("other_size_initialised", "DisagreementError", None),
    ("other_size_pushed_by_one", "StalledError", "ShapeMismatchError"),
    ("other_dtype_pushed_by_one", "StalledError", "DtypeMismatchError"),
    ("never_pushed", "StalledError", None),
    ("pushed_twice", "StalledError", None),
    ("peer_gone", "PeerLostError", None),
    ("integers", "nothing", None),
]


def outcomes(done):
    """The result that each rank printed; None for a rank that printed nothing. Checks that the results came within the deadline."""
    found = [re.search(rf"^rank {rank} got (\w+).* after ([\d.]+) s$", printed.out, re.MULTILINE) for rank, printed in enumerate(done.ranks)]
    assert all(float(got[2]) < 2 + 5 for got in found if got), f"{done}"
    return [got and got[1] for got in found]


def judge(done, case, expected, of_last):
    """Compares the result of every rank with the expected one."""
    want = [expected] * len(done.ranks)
    if of_last:
        want[-1] = of_last
    if case == "peer_gone":
        want[-1] = None
    assert outcomes(done) == want, f"{done}"
    assert case in ("peer_gone", "integers") or any("key='a'" in printed.out for printed in done.ranks), f"{done}"


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize(("case", "expected", "of_last"), FAULTS)
def test_a_fault_is_one_exception_on_every_rank(ranks, case, expected, of_last):
    judge(mpi(ranks, HERE / "jobs/faults.py", case, RINGPULL_TIMEOUT=2), case, expected, of_last)


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize(("case", "expected", "of_last"), FAULTS)
def test_a_fault_with_servers_is_one_exception_on_every_worker(workers, case, expected, of_last):
    judge(launch(workers, 1, HERE / "jobs/faults.py", case, "dist_sync", RINGPULL_TIMEOUT=2), case, expected, of_last)


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize(("every", "expected"), [(3, "ReplicasDifferError"), (0, "nothing")])
def test_a_rank_whose_value_differs_is_named_on_every_rank_where_it_is_asked_for(ranks, every, expected):
    done = mpi(ranks, HERE / "jobs/faults.py", "replicas_differ", RINGPULL_CHECK_REPLICAS=every)
    assert outcomes(done) == [expected] * ranks, f"{done}"
    named = f'replicas of key "a" differ after update 6: rank(s) [{ranks - 1}] have another value'
    assert all((named in printed.out) == (every > 0) for printed in done.ranks), f"{done}"


@pytest.mark.parametrize("case", ["updater_raises", "updater_exits", "updater_pulls", "updater_pushes"])
def test_an_updater_that_raises_or_calls_a_store_is_one_exception_on_every_rank(case):
    done = mpi(2, HERE / "jobs/faults.py", case)
    assert outcomes(done) == ["UpdaterError"] * 2, f"{done}"
    assert all("the updater of key \"a\" on rank " in printed.out for printed in done.ranks), f"{done}"


#: The ways in which the last rank ends while the others wait for it, each with the text that the others' error must have.
ENDS = [
    ("ends_by_argument", "this error: key \"a\": a store holds no values of uint16"),
    ("ends_by_exception", "this error: ZeroDivisionError: the batch is empty\n"),
    ("leaves_by_exception", "this error: ZeroDivisionError: the batch is empty\n"),
]


@pytest.mark.parametrize("kind", ["dist_sync_mpi", "dist_sync"])
@pytest.mark.parametrize(("case", "told"), ENDS)
def test_ranks_that_wait_get_the_reason_why_another_has_ended(kind, case, told):
    of = HERE / "jobs/faults.py", case, kind
    done = mpi(2, *of) if kind == "dist_sync_mpi" else launch(2, 1, *of, RINGPULL_TIMEOUT=2)
    assert re.search(told, done.ranks[0].text) and outcomes(done)[0] == "PeerLostError", f"{done}"


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize(("case", "expected"), [("no_optimizer", "ArgumentError"), ("other_size_initialised", "DisagreementError")])
def test_a_fault_of_asynchronous_servers_is_one_exception_on_every_worker(workers, case, expected):
    done = launch(workers, 1, HERE / "jobs/faults.py", case, "dist_async", RINGPULL_TIMEOUT=2)
    assert outcomes(done) == [expected] * workers, f"{done}"


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_of_one_process_in_one_of_several_is_warned_of_once(ranks, kind):
    pytest.importorskip("mxnet")
    code = f"import ringpull.mxnet, mxnet as mx; [mx.kv.create({kind!r}) for _ in range(2)]"
    done = mpi(ranks, "-c", code)
    for words in "each trains a model of its own", "--kv-store dist_sync_mpi":
        assert done.status == 0 and [printed.text.count(words) for printed in done.ranks] == [1] + [0] * (ranks - 1), f"{done}"


def test_a_job_reports_once_where_its_ranks_are_unless_it_is_quiet():
    def first_lines(quiet):
        code = "import ringpull, sys; stores = [ringpull.create(kind) for kind in sys.argv[1:]]"
        jobs = [
            mpi(2, "-c", code, "dist_sync_mpi", "dist_sync_mpi", RINGPULL_QUIET=quiet),
            mpi(
                2,
                "-c",
                "import ringpull; ringpull.communicator(); ringpull.create('dist_sync_mpi')",
                RINGPULL_QUIET=quiet,
            ),
            launched(2, 1, "-c", code, "dist_sync", RINGPULL_QUIET=quiet),
        ]
        return [sorted(printed.text for printed in well(done).ranks) for done in jobs]

    *of_mpi, of_servers = first_lines(0)
    for nothing, line in of_mpi:
        assert nothing == "" and re.fullmatch(r"ringpull: 2 ranks on 1 host, shared memory, \S.*\n", line), line
    assert of_servers == ["", "ringpull: 2 workers and 1 server on 1 host\n"]
    assert first_lines(1) == [["", ""]] * 3


@pytest.mark.parametrize("more", [[], ["--jax"]])
def test_the_example_of_plain_arrays_learns(more):
    if more:
        pytest.importorskip("jax")
    done = mpi(2, ROOT / "examples/numpy/logistic.py", *more)
    found = re.search(r"2 workers, accuracy ([\d.]+) %", done.ranks[0].out)
    assert done.status == 0 and found and float(found[1]) > 98, f"{done}"


def test_ranks_that_are_not_equally_fast_end_together_with_the_shares_that_are_suggested():
    done = mpi(4, ROOT / "examples/numpy/unequal.py", "--row", 0.0005, "--steps", 4)
    found = re.findall(r"^(equal|suggested) shares ([\d.:]+): a step takes ([\d.]+) ms", done.ranks[0].out, re.MULTILINE)
    assert done.status == 0 and [phase for phase, _, _ in found] == ["equal", "suggested"], f"{done}"
    # The shares are 3:3:3:1 if nothing else runs on the machine.
    shares = [float(share) for share in found[1][1].split(":")]
    assert all(1.0 < share < 1.4 for share in shares[:3]) and 0.3 < shares[3] < 0.7, f"{done}"


@pytest.mark.parametrize("name", ["numpy/logistic.py", "numpy/unequal.py", "mxnet/train.py", "torch/train.py"])
def test_every_example_says_how_it_is_run(name):
    pytest.importorskip(name.split("/")[0])
    status, output = run([sys.executable, ROOT / "examples" / name, "--help"])
    assert status == 0 and "mpirun -n 4 --oversubscribe python" in output and "--kv-store" in output, output


@pytest.mark.parametrize("name", ["mxnet/train.py", "torch/train.py", "torch/elastic.py"])
def test_an_example_without_its_images_says_how_they_are_had(name, tmp_path):
    pytest.importorskip(name.split("/")[0])
    status, output = run([sys.executable, ROOT / "examples" / name, "--data", tmp_path / "nowhere"])
    assert status == 2 and "nowhere: run scripts/setup" in output, output


def test_the_bench_prints_what_it_has_checked():
    for more, count in ([], 1), (["--beside-rust", "--memory", "shared", "--no-keep"], 2), (["--beside-rust", "--memory", "rust"], 2):
        done = mpi(2, "-m", "ringpull.bench", "--lens", "1000,7", "--iters", 3, *more)
        assert done.status == 0, f"{done}"
        records = json.loads(done.ranks[0].out)
        assert len(records) == count and done.ranks[1].out == "", f"{done}"
        assert all(record["verified"] and len(record["seconds"]) == 3 for record in records), f"{done}"


@pytest.mark.parametrize(("ranks", "who"), [(1, "signal"), (2, "behind"), (2, "last"), (4, "signal"), pytest.param(4, "behind", marks=pytest.mark.long)])
def test_all_ranks_stop_at_the_same_step_when_one_is_asked(ranks, who):
    done = job(ranks, "stopping", "dist_sync_mpi", who)
    said = [rank.out.splitlines() for rank in done.ranks]
    stopped = said[0][-1].removeprefix("stopped at ")
    assert all(lines[-1] == said[0][-1] for lines in said), f"{done}"
    assert who == "last" or 60 <= int(stopped) <= 70, f"{done}"
    assert [line for lines in said for line in lines if line.startswith("saves")] == [f"saves step {stopped}"] * (stopped != "None"), f"{done}"


def test_sums_by_mpi_itself_keep_one_order_among_rows_that_go_beside_them():
    job(3, "native", "dist_sync_mpi", RINGPULL_ALGORITHM="native")


def test_a_worker_of_a_job_with_servers_is_told_that_it_cannot_ask_all_to_stop():
    done = launch(2, 1, HERE / "jobs/stopping.py", "dist_sync", "nobody")
    assert done.status != 0 and all("should_stop" in rank.err for rank in done.ranks), f"{done}"
