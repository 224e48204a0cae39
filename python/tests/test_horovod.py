"""Horovod's names on our collectives."""

import importlib.util
import itertools
import os
import re
import sys
from pathlib import Path

import pytest
from ranks import FOUR, HAS_IMAGES, HERE, ROOT, job, mpi, ringpull_binary, run


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_what_horovod_promises_is_kept(framework, ranks):
    pytest.importorskip(framework)
    for rank, printed in enumerate(job(ranks, f"horovod_{framework}").ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


@pytest.mark.parametrize("ranks", [2, FOUR])
@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.long), pytest.param("tensorflow", marks=pytest.mark.long)])
def test_what_horovod_promises_is_kept_for_keras(backend, ranks):
    # Keras is not imported here, because it would choose its backend for this whole process.
    if importlib.util.find_spec("keras") is None:
        pytest.skip("could not import 'keras'")
    if not hasattr(pytest.importorskip(backend), "compiler") and backend == "torch":
        pytest.skip("Keras needs PyTorch 2.1 or later")
    for rank, printed in enumerate(job(ranks, "horovod_keras", deadline=400, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL=3).ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


def test_what_horovod_promises_is_kept_for_keras_2():
    for package in "tf_keras", "tensorflow":
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"could not import {package!r}")
    more = {"TF_USE_LEGACY_KERAS": 1, "TF_CPP_MIN_LOG_LEVEL": 3, "CUDA_VISIBLE_DEVICES": -1}
    for rank, printed in enumerate(job(2, "horovod_keras2", deadline=400, **more).ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


def script(ranks, fate, **more):
    pytest.importorskip("torch")
    return mpi(ranks, "-m", "ringpull.horovod", HERE / "jobs/horovod_script.py", fate, **more)


def test_a_script_that_imports_horovod_runs_unchanged():
    done = script(2, "works", HOROVOD_FUSION_THRESHOLD=1 << 20, HOROVOD_STALL_CHECK_TIME_SECONDS=20)
    assert done.status == 0 and [printed.out for printed in done.ranks] == [f"rank {rank} of 2: True 2\n" for rank in range(2)], f"{done}"


def test_a_module_runs_as_a_script_does():
    pytest.importorskip("torch")
    done = mpi(2, "-m", "ringpull.horovod", "-m", "horovod_script", "works", PYTHONPATH=f"{HERE / 'jobs'}:{os.environ.get('PYTHONPATH', '')}")
    assert done.status == 0 and [printed.out for printed in done.ranks] == [f"rank {rank} of 2: True 2\n" for rank in range(2)], f"{done}"


def test_a_timeline_may_be_left_to_the_program(tmp_path):
    done = script(1, "works", HOROVOD_TIMELINE="DYNAMIC", HOROVOD_DYNAMIC_PROCESS_SETS=1)
    assert done.status == 0 and not list(Path.cwd().glob("DYNAMIC*")), f"{done}"


SETS = """
import sys
import horovod.torch as hvd
from mpi4py import MPI
comm = MPI.COMM_WORLD
half = comm.Split(color=comm.rank % 2, key=comm.rank)
given = [hvd.ProcessSet(half), hvd.ProcessSet(comm.Dup())]
try:
    hvd.init(comm=comm, process_sets=given)
except ValueError as error:
    print("ValueError", "given twice" in str(error))
given.pop()
hvd.init(comm=comm, process_sets=given)
print(given[0].process_set_id, hvd.get_process_sets(), hvd.global_process_set.mpi_comm == comm)
"""


def test_process_sets_by_communicators_are_known_after_a_list_that_was_wrong(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("mpi4py")
    program = tmp_path / "sets.py"
    program.write_text(SETS)
    done = mpi(2, "-m", "ringpull.horovod", program)
    expected = [f"ValueError True\n{rank + 1} {{0: [0, 1], 1: [0], 2: [1]}} True\n" for rank in range(2)]
    assert done.status == 0 and [printed.out for printed in done.ranks] == expected, f"{done}"


GROWS = pytest.param("grows", {"StalledError", "DeadlockError", "PeerLostError"}, marks=pytest.mark.long)


@pytest.mark.parametrize(("fate", "kinds"), [("ends", {"PeerLostError"}), GROWS])
def test_a_fault_is_horovods_error_with_our_content(fate, kinds):
    done = script(2, fate, RINGPULL_TIMEOUT=2)
    found = re.fullmatch(r"rank 0: (\w+) True\n", done.ranks[0].out)
    assert found and found[1] in kinds, f"{done}"


#: The faults of rank 0 of three, each with the ranks that get an error, its class and its text.
FAULTS = {
    "mismatch": ([0, 1, 2], "DisagreementError", r"rank 0 has .*shape \[.*\d"),
    "missing": ([1, 2], "(StalledError|DeadlockError)", r"\[0\] (have|has) not called"),
    "dead": ([1, 2], "PeerLostError", "rank 0"),
}


EVERY_RUN = [("torch", "training", "mismatch"), ("mxnet", "training", "dead"), ("keras", "training", "dead")]
LONG = [case for case in itertools.product(["torch", "mxnet", "keras"], ["call", "training"], FAULTS) if case not in EVERY_RUN]


@pytest.mark.parametrize(("framework", "where", "fault"), [*EVERY_RUN, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)])
def test_a_fault_is_an_error_of_horovods_class_through_every_front_end(framework, where, fault, tmp_path):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"could not import {framework!r}")
    told, kind, said = FAULTS[fault]
    more = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": 3, "RINGPULL_TIMEOUT": 2, "FOLDER": tmp_path}
    done = mpi(3, HERE / "jobs/horovod_faults.py", framework, where, fault, deadline=60, **more)
    for rank in told:
        assert re.search(rf"^rank {rank}: {kind} .*HorovodInternalError.*: .*{said}", done.ranks[rank].out), f"{done}"


def test_what_horovod_has_and_we_have_not_is_said(tmp_path):
    program = tmp_path / "spark.py"
    program.write_text("import horovod.spark")
    done = mpi(1, "-m", "ringpull.horovod", program)
    assert done.status != 0 and "ringpull.horovod has no horovod.spark" in done.ranks[0].err, f"{done}"


#: For each package, the modules of Horovod that need it, and some names of Horovod that are missing here.
MISSING = {
    ("torch", "torch"): {"horovod.torch.elastic.state.StateHandler", "horovod.torch.mpi_ops.mpi_lib"},
    ("mxnet", "mxnet"): {"horovod.mxnet.compression.Compressor"},
    ("keras", "keras"): {"horovod.keras.broadcast_global_variables", "horovod.keras.callbacks.BestModelCheckpoint"},
    ("keras", "tensorflow"): {"horovod.tensorflow.init", "horovod.tensorflow.DistributedGradientTape", "horovod.tensorflow.mpi_ops"},
    ("numpy", ",common,data,runner,spark,ray,_keras"): {"horovod.common.basics.HorovodBasics", "horovod.data", "horovod.runner.launch", "horovod.spark.runner", "horovod.ray"},
}


@pytest.mark.parametrize(("needed", "modules"), MISSING)
def test_every_name_of_horovods_is_there_or_an_error_says_what_to_do(needed, modules):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"could not import {needed!r}")
    status, output = run([sys.executable, "-m", "ringpull.horovod", HERE / "jobs/horovod_names.py", modules], KERAS_BACKEND="jax")
    missing = set(output.split())
    assert status == 0 and missing >= MISSING[needed, modules], output
    # These are names that scripts use.
    assert not missing & {f"horovod.{name}" for name in ("run", "runner", "common.util.gpu_available", "torch.mpi_ops.rank", "torch.mpi_ops.Average", "torch.functions.rank")}
    assert not missing & {f"horovod.tensorflow.keras{name}" for name in ("", ".elastic.KerasState", ".callbacks.MetricAverageCallback", ".rank", ".load_model")}


CHILDREN = """
import multiprocessing
import horovod
from horovod.common.util import split_list

def work(count):
    return horovod.__version__, split_list([1, 2, 3], count)

if __name__ == "__main__":
    for method in "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(work, [2]))
"""


def test_children_of_a_program_find_what_it_finds(tmp_path):
    (tmp_path / "parent.py").write_text(CHILDREN)
    for words in [tmp_path / "parent.py"], ["-m", "parent"]:
        status, output = run([sys.executable, "-m", "ringpull.horovod", *words], PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        assert (status, output) == (0, "[('0.28.1', [[1, 2], [3]])]\n" * 2), output


RUNS = """
import horovod
from horovod.common.basics import init, rank, size

BASE = 10

def work(more, fails=False):
    init()
    if fails:
        raise ValueError(f"rank {rank()} has failed")
    return BASE * (rank() + more) + size()

if __name__ == "__main__":
    print(horovod.run(work, (1,), num_proc=2, use_gloo=True, verbose=None))
    for options in {"kwargs": {"fails": True}, "hosts": "localhost:1"}, {"network_interfaces": ["eth0"]}:
        try:
            horovod.run(work, (1,), **options)
        except RuntimeError as error:
            print(error)
"""


def test_a_function_of_the_script_runs_on_ranks_and_its_results_come_back(tmp_path):
    pytest.importorskip("cloudpickle")
    program = tmp_path / "runs.py"
    program.write_text(RUNS)
    status, output = run(["env", "-C", tmp_path, sys.executable, "-m", "ringpull.horovod", program], RINGPULL_BINARY=ringpull_binary())
    assert status == 0 and "[12, 22]\n" in output and "ValueError: rank 0 has failed" in output and "RINGPULL" not in output, output
    assert len(re.findall(r"^horovod.run: the job has ended with status [12]\n  hint: ", output, re.MULTILINE)) == 2, output
    assert "launch has no option --network-interfaces\n  hint: " in output and [path.name for path in tmp_path.iterdir()] == ["runs.py"], output


EXAMPLES = ROOT / "examples/horovod"
SHORT = ["--limit-train", 1000, "--limit-test", 200]


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
def test_the_example_of_torch_ends_with_equal_weights_and_goes_on_from_its_checkpoint(tmp_path):
    pytest.importorskip("torch")
    whole = hashes_of("torch_mnist.py", "--epochs", 2)
    checkpoint = ["--checkpoint", tmp_path / "checkpoint.pt"]
    hashes_of("torch_mnist.py", "--epochs", 1, *checkpoint)
    assert hashes_of("torch_mnist.py", "--epochs", 2, *checkpoint) == whole
    assert hashes_of("torch_mnist.py", "--epochs", 1, "--fp16-allreduce") != whole


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
def test_the_example_of_keras_ends_with_equal_weights(tmp_path):
    pytest.importorskip("jax")
    if importlib.util.find_spec("keras") is None:
        pytest.skip("could not import 'keras'")
    checkpoint = tmp_path / "model.keras"
    hashes_of("keras_mnist.py", "--epochs", 1, "--checkpoint", checkpoint, KERAS_BACKEND="jax")
    assert checkpoint.exists()


def hashes_of(script, *more, **environment):
    """The hash of the weights with which both ranks of the example end."""
    done = mpi(2, "-m", "ringpull.horovod", EXAMPLES / script, *SHORT, *more, **environment)
    found = [
        re.findall(rf"^rank {rank} of 2 weights (\w+)$", printed.out, re.MULTILINE)
        for rank, printed in enumerate(done.ranks)
    ]
    assert done.status == 0 and len(found[0]) == 1 and found[0] == found[1], f"{done}"
    return found[0]
