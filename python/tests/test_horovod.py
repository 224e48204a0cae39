"""Horovod's names on our collectives."""

import importlib.util
import re

import pytest
from ranks import FOUR, HERE, job, mpi


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_what_horovod_promises_is_kept(framework, ranks):
    pytest.importorskip(framework)
    for rank, printed in enumerate(job(ranks, f"horovod_{framework}").ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.long), pytest.param("tensorflow", marks=pytest.mark.long)])
def test_what_horovod_promises_is_kept_for_keras(backend, ranks):
    # Imported here it would take the backend of this process.
    if importlib.util.find_spec("keras") is None:
        pytest.skip("could not import 'keras'")
    if not hasattr(pytest.importorskip(backend), "compiler") and backend == "torch":
        pytest.skip("Keras needs PyTorch 2.1 or later")
    for rank, printed in enumerate(job(ranks, "horovod_keras", KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL=3).ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


def script(ranks, fate, **more):
    pytest.importorskip("torch")
    return mpi(ranks, "-m", "ringpull.horovod", HERE / "jobs/horovod_script.py", fate, **more)


def test_a_script_that_imports_horovod_runs_unchanged():
    done = script(2, "works", HOROVOD_FUSION_THRESHOLD=1 << 20, HOROVOD_STALL_CHECK_TIME_SECONDS=20)
    assert done.status == 0 and [printed.out for printed in done.ranks] == [f"rank {rank} of 2: True 2\n" for rank in range(2)], f"{done}"


GROWS = pytest.param("grows", {"StalledError", "DeadlockError", "PeerLostError"}, marks=pytest.mark.long)


@pytest.mark.parametrize(("fate", "kinds"), [("ends", {"PeerLostError"}), GROWS])
def test_a_fault_is_horovods_error_with_our_content(fate, kinds):
    done = script(2, fate, RINGPULL_TIMEOUT=2)
    found = re.fullmatch(r"rank 0: (\w+) True\n", done.ranks[0].out)
    assert found and found[1] in kinds, f"{done}"


def test_what_horovod_has_and_we_have_not_is_said(tmp_path):
    program = tmp_path / "spark.py"
    program.write_text("import horovod.spark")
    done = mpi(1, "-m", "ringpull.horovod", program)
    assert done.status != 0 and "ringpull.horovod has no horovod.spark" in done.ranks[0].err, f"{done}"
