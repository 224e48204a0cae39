"""The plain API in jobs of several ranks, and what goes wrong in them."""

import importlib.util
import json
import re
import sys

import pytest
from conftest import FOUR, HERE, ROOT, job, launch, launched, mpi, run


@pytest.mark.parametrize("ranks", [1, 2, FOUR])
def test_the_promises_hold_on_every_rank(ranks):
    assert job(ranks, "values", "dist_sync_mpi").count("is done") == ranks


def test_mpi_may_have_been_initialised_by_somebody_else():
    pytest.importorskip("mpi4py")
    assert job(2, "values", "dist_sync_mpi", "mpi4py").count("is done") == 2


def test_a_program_ends_while_a_thread_of_its_store_needs_python():
    job(2, "ending", 0.3)


def test_a_thread_that_keeps_python_does_not_keep_a_program_from_its_end():
    status, output = mpi(2, HERE / "jobs/ending.py", 60, RINGPULL_TIMEOUT="2", deadline=20)
    assert status == 1 and "has run in Python for more than 2s" in output, output


def test_the_promises_hold_with_servers():
    assert launched(2, 2, HERE / "jobs/values.py", "dist_sync").count("is done") == 2


#: Rows of MXNet's table of bad input that are wrong by themselves: `jobs/faults.py` lists the calls with their exceptions.
ALONE = ["arguments", "numbers"]


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("case", ALONE)
def test_a_wrong_call_is_the_same_exception_on_every_rank_and_changes_nothing(ranks, case):
    tried_all(job(ranks, "faults", case), ranks)


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize("kind", ["dist_sync", pytest.param("dist_async", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", ALONE)
def test_a_wrong_call_with_servers_is_the_same_exception_on_every_worker(workers, kind, case):
    tried_all(launched(workers, 1, HERE / "jobs/faults.py", case, kind), workers)


def tried_all(output, ranks):
    """Every rank has had the exception that was to come, from each of the calls."""
    assert output.count("has tried all") == ranks and not re.search(r"got .* from ", output), output


#: The rows in which a rank does something else than the others, as cases of `jobs/faults.py`: the exception that every rank gets, and
#: that of the last rank where it is another one.
FAULTS = [
    ("other_size_initialised", "DisagreementError", None),
    ("other_size_pushed_by_one", "StalledError", "ShapeMismatchError"),
    ("other_dtype_pushed_by_one", "StalledError", "DtypeMismatchError"),
    ("never_pushed", "StalledError", None),
    ("pushed_twice", "StalledError", None),
    ("peer_gone", "PeerLostError", None),
    ("integers", "nothing", None),
]


def outcomes(output):
    """What each rank said that it got, after checking that it came within the deadline."""
    got = re.findall(r"rank (\d) got (\w+)(.*?) after ([\d.]+) s", output)
    assert all(float(seconds) < 2 + 5 for *_, seconds in got), output
    return {int(rank): kind for rank, kind, *_ in got}


def judge(output, ranks, case, expected, of_last):
    """Holds what every rank got against what it was to get."""
    want = dict.fromkeys(range(ranks), expected)
    if of_last:
        want[ranks - 1] = of_last
    if case == "peer_gone":
        del want[ranks - 1]
    assert outcomes(output) == want, output
    assert case in ("peer_gone", "integers") or "key='a'" in output, output


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize(("case", "expected", "of_last"), FAULTS)
def test_a_fault_is_one_exception_on_every_rank(ranks, case, expected, of_last):
    _, output = mpi(ranks, HERE / "jobs/faults.py", case, RINGPULL_TIMEOUT=2)
    judge(output, ranks, case, expected, of_last)


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize(("case", "expected", "of_last"), FAULTS)
def test_a_fault_with_servers_is_one_exception_on_every_worker(workers, case, expected, of_last):
    _, output = launch(workers, 1, HERE / "jobs/faults.py", case, "dist_sync", RINGPULL_TIMEOUT=2)
    judge(output, workers, case, expected, of_last)


#: How the last rank ends while the others wait for it, and what they are to be told of it.
ENDS = [
    ("ends_by_argument", "this error: .*complex|this error: a tensor of"),
    ("ends_by_exception", "this error: ZeroDivisionError: the batch is empty\n"),
    ("leaves_by_exception", "this error: ZeroDivisionError: the batch is empty\n"),
]


@pytest.mark.parametrize("kind", ["dist_sync_mpi", "dist_sync"])
@pytest.mark.parametrize(("case", "told"), ENDS)
def test_why_a_rank_has_ended_is_told_to_those_who_wait_for_it(kind, case, told):
    of = HERE / "jobs/faults.py", case, kind
    _, output = mpi(2, *of) if kind == "dist_sync_mpi" else launch(2, 1, *of, RINGPULL_TIMEOUT=2)
    assert re.search(told, output) and outcomes(output)[0] == "PeerLostError", output


@pytest.mark.parametrize("workers", [2, FOUR])
@pytest.mark.parametrize(("case", "expected"), [("no_optimizer", "ArgumentError"), ("other_size_initialised", "DisagreementError")])
def test_a_fault_of_asynchronous_servers_is_one_exception_on_every_worker(workers, case, expected):
    _, output = launch(workers, 1, HERE / "jobs/faults.py", case, "dist_async", RINGPULL_TIMEOUT=2)
    assert outcomes(output) == dict.fromkeys(range(workers), expected), output


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_of_one_process_in_one_of_several_is_warned_of_once(ranks, kind):
    pytest.importorskip("mxnet")
    code = f"import ringpull.mxnet, mxnet as mx; [mx.kv.create({kind!r}) for _ in range(2)]"
    status, output = mpi(ranks, "-c", code)
    assert status == 0 and output.count("each trains a model of its own") == 1, output
    assert output.count("--kv-store dist_sync_mpi") == 1, output


@pytest.mark.parametrize("more", [[], ["--jax"]])
def test_the_example_of_plain_arrays_learns(more):
    if more:
        pytest.importorskip("jax")
    status, output = mpi(2, ROOT / "examples/numpy/logistic.py", *more)
    assert status == 0 and float(re.search(r"2 workers, accuracy ([\d.]+) %", output)[1]) > 98, output


def test_what_the_readme_shows_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "pushpull" in blocks[0]
    for number, block in enumerate(blocks):
        if "import torch" in block and not importlib.util.find_spec("torch"):
            continue
        (tmp_path / f"{number}.py").write_text(block)
        status, output = mpi(2, tmp_path / f"{number}.py")
        assert status == 0, output


@pytest.mark.parametrize("name", ["numpy/logistic.py", "mxnet/train.py", "torch/train.py"])
def test_every_example_says_how_it_is_run(name):
    pytest.importorskip(name.split("/")[0])
    status, output = run([sys.executable, ROOT / "examples" / name, "--help"])
    assert status == 0 and "mpirun -n 4 --oversubscribe python" in output and "--kv-store" in output, output


@pytest.mark.parametrize("name", ["mxnet/train.py", "torch/train.py"])
def test_an_example_without_its_images_says_how_they_are_had(name, tmp_path):
    pytest.importorskip(name.split("/")[0])
    status, output = run([sys.executable, ROOT / "examples" / name, "--data", tmp_path / "nowhere"])
    assert status == 2 and "nowhere: run scripts/setup" in output, output


def test_the_bench_prints_what_it_has_checked():
    for more, count in ([], 1), (["--beside-rust", "--memory", "shared", "--no-keep"], 2), (["--beside-rust", "--memory", "rust"], 2):
        status, output = mpi(2, "-m", "ringpull.bench", "--lens", "1000,7", "--iters", 3, *more)
        records = json.loads(output[output.index("[{") : output.rindex("}]") + 2])
        assert status == 0 and len(records) == count, output
        assert all(record["verified"] and len(record["seconds"]) == 3 for record in records), output
