"""Tests `python -m ringpull.torchrun`: torchrun's command line, and the jobs of `ringpull launch` that it starts."""

import os
import socket
import subprocess
import sys

import pytest
from ranks import DEADLINE, environment, ringpull_binary, run

from ringpull.torchrun import _SLOTS
from ringpull.torchrun import main as torchrun_main

TORCHRUN = [sys.executable, "-m", "ringpull.torchrun"]

PROGRAM = """
import os, sys, ringpull
comm = ringpull.communicator()
total = comm.allreduce(__import__("numpy").ones(1, "float32")).wait()[0]
line = " ".join([f"rank {comm.rank}", f"of {comm.size}:", *sys.argv[1:], str(total), os.environ["LOCAL_RANK"], os.environ["OMP_NUM_THREADS"]])
os.write(1, (line + chr(10)).encode())
sys.exit(int(os.environ.get("STATUS", 0)))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train_of_torchrun.py"
    path.write_text(PROGRAM)
    return path


def lines(output):
    return sorted(line[line.index("rank ", 8) :] for line in output.splitlines() if "of 2:" in line)


def torchrun(*words, **more):
    return run([*TORCHRUN, *words], RINGPULL_BINARY=ringpull_binary(), **more)


def test_torchruns_words_start_ranks_of_mpi(program):
    status, output = torchrun("--standalone", "--nproc_per_node", "2", program, "--epochs", "3")
    assert status == 0 and lines(output) == [f"rank {rank} of 2: --epochs 3 2.0 {rank} 1" for rank in range(2)], output
    # The second job is a module, with PyTorch's variables instead of options, and one rank's exit status.
    more = {"PET_NPROC_PER_NODE": 2, "PET_MODULE": 1, "PYTHONPATH": f"{program.parent}:{os.environ.get('PYTHONPATH', '')}", "STATUS": 7}
    status, output = torchrun("--nnodes=1:1", "--rdzv-backend=c10d", program.stem, "-x", **more)
    assert status == 7 and lines(output)[0].startswith("rank 0 of 2: -x 2.0 0"), output


BY_NUMBER = ["--node-rank", "{}", "--master-addr", "127.0.0.1", "--master-port", "PORT"]
BY_ORDER = ["--rdzv-endpoint", "localhost:PORT"]


@pytest.mark.parametrize("words", [BY_ORDER, pytest.param(BY_NUMBER, marks=pytest.mark.long)])
def test_nodes_meet_and_node_0_starts_the_job(words, program):
    pytest.importorskip("torch")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    more = environment(RINGPULL_BINARY=ringpull_binary(), STATUS=3)
    nodes = [
        subprocess.Popen(
            [*TORCHRUN, "--nnodes", "2", *(word.format(node).replace("PORT", port) for word in words), program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=more,
        )
        for node in range(2)
    ]
    said = [node.communicate(timeout=DEADLINE)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [3, 3], said
    assert len(lines("".join(said))) == 2, said


def test_a_job_takes_no_status_of_another_that_meets_at_the_same_place(program):
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    # The other job has both of its nodes, and has ended with success.
    job = distributed.PrefixStore("ringpull/none", store)
    job.add("nodes", 1)
    job.set("ended", "0")
    place = f"127.0.0.1 port {store.port}"
    for words, error in (
        (["--rdzv-endpoint", f"127.0.0.1:{store.port}"], f"error: node 2 of the job none of 2 nodes has already connected to {place}"),
        (["--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", store.port], f"error: no store can be reached or opened at {place}"),
    ):
        status, output = torchrun("--nnodes", "2", *words, program)
        assert status != 0 and error in output and "--master-port" in output, output


def test_an_entry_of_a_node_is_one_address_and_one_number():
    assert all(map(_SLOTS.fullmatch, ("10.0.0.1:2", "[fd00::2]:4", "node-1.example.test:1")))
    assert not any(map(_SLOTS.fullmatch, ("10.0.0.1:2,10.0.0.2:2", "-o:1", "host", "host:0", "host:1 x", "a b:1")))


def test_words_that_cannot_be_translated_are_errors(capsys, monkeypatch):
    monkeypatch.setenv("RINGPULL_BINARY", "true")
    for words, error in (
        (["--nnodes", "1:4"], "--nnodes 1:4 lets the number of nodes change"),
        (["--nnodes", "2"], "--nnodes 2 without the address of a node"),
        (["--nnodes", "2", "--master-addr", "127.0.0.1", "--node-rank", "2"], "--node-rank 2 of 2 nodes"),
        (["--nproc-per-node", "many"], "--nproc-per-node many: expected a number of at least 1"),
        (["--max-restarts", "3"], "--max-restarts 3: jobs do not restart by this option"),
        (["--log-dir", "logs"], "--log-dir is not supported"),
        (["-t", "3"], "--tee is not supported"),
        (["--rdzv-backend", "etcd-v2"], "--rdzv-backend etcd-v2 is not supported"),
    ):
        with pytest.raises(SystemExit) as ended:
            torchrun_main([*words, "train.py"])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and f"error: {error}" in said and "  hint: " in said, said
