"""Tests the backend `ringpull` of torch.distributed."""

import sys

import pytest
from ranks import FOUR, job, mpi, ringpull_binary, run, start, well

torch = pytest.importorskip("torch")

VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
KNOWS_BACKENDS = VERSION >= (2, 5)


@pytest.mark.parametrize("ranks", [2, FOUR])
def test_what_pytorch_promises_of_a_process_group_is_kept(ranks):
    for rank, printed in enumerate(job(ranks, "torch_distributed").ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


@pytest.mark.skipif(VERSION < (2, 14), reason="PyTorch before 2.14 has no backends written in Python: scripts/setup --torch-distributed")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.long
def test_a_group_has_our_backend_among_others_and_what_pytorch_does_with_it(ranks):
    for rank, printed in enumerate(job(ranks, "torch_backends").ranks):
        assert printed.out.endswith(f"rank {rank} is done\n"), printed


@pytest.mark.skipif(VERSION >= (2, 14) or VERSION < (2, 0), reason="PyTorch since 2.14 has several backends in one group")
@pytest.mark.long
def test_an_older_pytorch_refuses_other_backends_beside_ours():
    code = "import torch.distributed as dist, ringpull.torch_distributed; dist.init_process_group('cpu:gloo,cuda:ringpull')"
    done = mpi(1, "-c", code)
    assert done.status != 0 and '"cpu:gloo,cuda:ringpull" has ringpull and gloo, which one group cannot have' in done.ranks[0].err, f"{done}"


PROGRAM = """
import os, time, torch, torch.distributed as dist
from datetime import timedelta
import ringpull.torch_distributed
dist.init_process_group("ringpull", **WORDS)
rank = dist.get_rank()
kind = getattr(dist, "DistBackendError", RuntimeError)
def busy(until):
    # This rank calls nothing until the ranks in `until` are done.
    while not all(os.path.exists(f"{os.environ['FOLDER']}/{rank}") for rank in until):
        sum(range(10**5))
dist.barrier()
def train(end):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(5):
        if rank == 0 and step == 3:
            end()
        model(torch.ones(1, 4)).sum().backward()
try:
    WHAT
except kind as error:
    print(type(error).__name__, error, flush=True)
open(f"{os.environ['FOLDER']}/{rank}", "w").close()
"""

ONES = "dist.all_reduce(torch.ones(3))"

#: The code of each of three ranks, the ranks that wait in vain, and the text of their error.
FAULTS = {
    "mismatch": (
        "dist.all_reduce(torch.ones(3 + rank))",
        [0, 1, 2],
        ["DisagreementError", "rank 1 has allreduce of f32 of shape [4]"],
        {},
    ),
    "another operation": (
        f"dist.broadcast(torch.ones(3), 0) if rank == 2 else {ONES}",
        [0, 1, 2],
        ["DisagreementError", "rank 2 has broadcast"],
        {},
    ),
    "message of another length": (
        "dist.recv(torch.ones(3)) if rank == 0 else dist.send(torch.ones(4), 0) if rank == 1 else busy([0, 1])",
        [0, 1],
        ["DisagreementError", "from any rank to rank 0", "send and recv of f32 of shape [4]"],
        {},
    ),
    "sender dead": (
        "dist.recv(torch.ones(3)) if rank == 0 else os._exit(3) if rank == 1 else busy([0])",
        [0],
        ["PeerLostError", "rank 1"],
        {},
    ),
    "missing": (
        f"busy([1, 2]) if rank == 0 else {ONES}",
        [1, 2],
        ["StalledError", "rank(s) [0] have not called it"],
        {},
    ),
    "timeout of the group": (
        f"busy([1, 2]) if rank == 0 else {ONES}",
        [1, 2],
        ["StalledError", "have not called it"],
        {"timeout": "timedelta(seconds=8)"},
    ),
    "timeout of a call": (
        "busy([1, 2]) if rank == 0 else dist.barrier(async_op=True).wait(timedelta(seconds=2))",
        [1, 2],
        ["StalledError", "barrier of", "timeout of 2 s"],
        {},
    ),
    "dead": (f"os._exit(3) if rank == 0 else {ONES}", [1, 2], ["PeerLostError", "rank 0"], {}),
    "dead in a group": (
        # Rank 0 holds PyTorch's own store, by which groups are made, so it ends only later.
        "group = dist.new_group([0, 1]); dist.barrier(); os._exit(3) if rank == 0 else busy([1]) if rank == 2 else "
        "dist.all_reduce(torch.ones(3), group=group)",
        [1],
        ["PeerLostError", "ranks [0, 1]"],
        {},
    ),
    "dead in training": ("train(lambda: os._exit(3))", [1, 2], ["PeerLostError", "rank 0"], {}),
    "exits early": (f"{ONES} if rank else None", [1, 2], ["rank 0"], {}),
}

EVERY_RUN = ["mismatch", "missing", "dead in training"]


LONG = [pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS if fault not in EVERY_RUN]


@pytest.mark.parametrize("fault", [*EVERY_RUN, *LONG])
def test_a_fault_raises_on_every_rank_in_time(fault, tmp_path):
    what, waiting, said, words = FAULTS[fault]
    given = "{" + ", ".join(f"'{name}': {text}" for name, text in words.items()) + "}"
    more = {} if words else {"RINGPULL_TIMEOUT": 8 if fault == "missing" else 20}
    # DistributedDataParallel raises the error of a future as a RuntimeError.
    program = PROGRAM.replace("WORDS", given).replace("WHAT", what)
    if "training" in fault:
        program = program.replace("except kind", "except RuntimeError")
    done = mpi(3, "-c", program, deadline=60, **({"RINGPULL_TIMEOUT": "", "FOLDER": tmp_path} | more))
    for rank in waiting:
        assert all(text in done.ranks[rank].out for text in said), f"{done}"


def test_pytorchs_own_backends_find_each_other_under_our_launcher():
    code = """if True:
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        tensor = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        print(dist.get_rank(), dist.get_world_size(), tensor.tolist(), *(os.environ[f"LOCAL_{name}"] for name in ("RANK", "WORLD_SIZE")))
        dist.destroy_process_group()"""
    done = well(start([ringpull_binary(), "launch", "-n", 2, "--"], 2, [sys.executable, "-c", code]))
    assert [printed.out.split("\n")[-2] for printed in done.ranks] == ["0 2 [3.0, 3.0] 0 2", "1 2 [3.0, 3.0] 1 2"], f"{done}"
    # Variables that the user has set stay.
    own = {"RANK": "7"}
    words = [sys.executable, "-c", "import os; print(*(os.environ.get(name) for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')))"]
    done = well(start([ringpull_binary(), "launch", "-n", 1, "--"], 1, words, **own))
    assert done.ranks[0].out == "7 None None None\n", f"{done}"


def test_torchrun_without_mpi_is_one_error():
    code = "import torch.distributed as dist, ringpull.torch_distributed; dist.init_process_group('ringpull')"
    of_torchrun = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    code = code.replace("dist.init", "store = dist.HashStore(); dist.init").replace(
        "'ringpull')", "'ringpull', store=store, rank=0, world_size=2)"
    )
    status, output = run([sys.executable, "-c", code], **of_torchrun)
    assert status == 1 and "torchrun starts no ranks of MPI: start it with mpirun" in output, output


def test_a_number_of_ranks_that_mpi_does_not_have_is_one_error():
    """Without this error a framework would divide the data among ranks that do not exist."""
    code = """if True:
        import sys, torch.distributed as dist, ringpull.torch_distributed
        said = dict(word.split("=") for word in sys.argv[1:])
        try:
            dist.init_process_group("ringpull", **{name: int(value) for name, value in said.items()})
        except ValueError as error:
            print(error)"""
    for words in ["rank=0 world_size=2", "rank=1 world_size=2"]:
        status, output = run([ringpull_binary(), "launch", "-n", 1, "--", sys.executable, "-c", code, *words.split()])
        place = "1 of 2" if "rank=1" in words else "0 of 2"
        assert status == 0 and f"rank {place} by init_process_group, but rank 0 of 1 by MPI" in output, output
        assert "ringpull launch -n 2" in output, output


def test_other_backends_meet_as_they_do_without_ours():
    code = """if True:
        import torch.distributed as dist
        import ringpull_torch
        ringpull_torch.register()
        try:
            dist.init_process_group("gloo")
        except ValueError as error:
            print(error)"""
    status, output = run([sys.executable, "-c", code], OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=1)
    assert status == 0 and "environment variable RANK expected" in output, output


def test_an_error_of_ours_is_a_warning_of_import_torch():
    code = """if True:
        import torch.distributed as dist
        import ringpull_torch
        del dist.Backend.register_backend
        getattr(dist.Backend, "_plugins").pop("RINGPULL", None)
        ringpull_torch.load()
        print("goes on")"""
    status, output = run([sys.executable, "-c", code], PYTHONWARNINGS="default")
    assert status == 0 and output.endswith("goes on\n"), output
    assert "PyTorch does not know the backend ringpull: AttributeError" in output, output


@pytest.mark.skipif(
    not KNOWS_BACKENDS, reason="PyTorch before 2.5 has no entry points of backends: scripts/setup --torch-distributed"
)
@pytest.mark.long
def test_pytorch_knows_the_backend_by_itself_and_loads_nothing_of_ours():
    code = """if True:
        import sys, torch
        assert "ringpull" in torch.distributed.Backend.backend_list and "ringpull" not in sys.modules
        torch.distributed.init_process_group("ringpull")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        print(int(total), torch.distributed.get_backend())"""
    done = mpi(2, "-c", code)
    assert [printed.out for printed in done.ranks] == ["2 ringpull\n"] * 2, f"{done}"
