"""Tests a hybrid store: the places of its keys, the saved states of ranks and servers, and an error of either part."""

import os
import signal
import sys
import tempfile
import time

import numpy as np

import ringpull

store = ringpull.create("dist_hybrid")
rank, ranks = store.rank, store.num_workers
assert store.type == "dist_hybrid" and "DMLC_WORKER_ID" not in os.environ
fault = sys.argv[1] if len(sys.argv) > 1 else None

SHAPE = (100, 4)
store.init("dense", np.full(6, 1 + rank, np.float32))
store.init("rows", np.full(SHAPE, 1 + rank, np.float32), row_sparse=True)
store.set_optimizer(ringpull.SGD(learning_rate=0.5, momentum=0.5))


def step():
    dense, rows = np.ones(6, np.float32), np.ones((2, 4), np.float32)
    store.pushpull("dense", dense)
    store.push("rows", ringpull.RowSparse([7, 8 + rank], rows, SHAPE))
    out = np.empty((3, 4), np.float32)
    store.row_sparse_pull("rows", out=out, row_ids=[7, 8 + rank, 99])
    return dense[0], out[:, 0].tolist()


if fault is not None:
    step()
    store.barrier()
    if fault == "servers" and rank == 0:
        # Both servers run this same script, and are not children of this process.
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/environ", "rb") as file:
                    variables = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
            except OSError:
                continue
            same = variables.get(b"DMLC_PS_ROOT_PORT") == os.environ["DMLC_PS_ROOT_PORT"].encode()
            if same and variables.get(b"DMLC_SERVER_ID") == b"1" and int(process) != os.getpid():
                os.kill(int(process), signal.SIGKILL)
    if fault == "ranks" and rank == ranks - 1:
        # The ranks disagree on a key that only ranks keep.
        store.init("alike", np.zeros(3, np.float32))
    else:
        store.init("alike", np.zeros(4 if fault == "ranks" else 3, np.float32))
    try:
        # Some ranks call a key of the servers, and others a key of the ranks. The error must come in both.
        for _ in range(600):
            if rank % 2 == 0:
                store.row_sparse_pull("rows", out=np.empty((1, 4), np.float32), row_ids=[7])
            else:
                store.pull("alike", out=np.empty(4 if fault == "ranks" and rank < ranks - 1 else 3, np.float32))
            time.sleep(0.1)
    except ringpull.KVStoreError as error:
        print(f"rank {rank} ends with the error {error}", flush=True)
        # This rank waits, so that the other ranks get the error by themselves.
        time.sleep(1)
        raise
    sys.exit("no error came")

total = float(ranks)
assert step() == (1 - 0.5 * total, [1 - 0.5 * total, 0.5, 1.0])
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "states")
    store.save_optimizer_states(path)
    store.load_optimizer_states(path)
    store.barrier()
# The momentum of ranks and servers has been loaded: it adds 0.5 times the last step.
assert step() == (1 - 0.5 * total * 2.5, [1 - 0.5 * total * 2.5, 1 - 0.5 * 2.5, 1.0])
try:
    store.set_updater(lambda key, received, stored: None)
    raise SystemExit("a server runs no code")
except ringpull.UnsupportedError as error:
    assert "dist_hybrid" in str(error), error
print(f"rank {rank} of {ranks} is done", flush=True)
