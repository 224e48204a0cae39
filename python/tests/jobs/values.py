"""Tests promises that hold on any number of ranks. Every rank checks them."""

import sys
import tempfile

import numpy as np

import ringpull

if "mpi4py" in sys.argv:
    from mpi4py import MPI

    assert MPI.COMM_WORLD.Get_size() >= 1
kind = sys.argv[1]
store = ringpull.create(kind)
rank, ranks = store.rank, store.num_workers
total = ranks * (ranks + 1) // 2

# All ranks get rank 0's value, whatever the order of the keys.
keys = ["x", "y", "z"]
for key in keys if rank % 2 == 0 else reversed(keys):
    store.init(key, np.full((2, 3), 10 * rank + keys.index(key), np.float32))
out = np.empty((2, 3), np.float32)
for index, key in enumerate(keys):
    store.pull(key, out)
    assert (out == index).all(), (key, out)

# Ranks push in different orders, and values are summed over ranks and lists.
for key in keys if rank % 2 else reversed(keys):
    store.push(key, [np.full((2, 3), rank + 1, np.float32)] * 2)
for key in keys:
    store.pull(key, out)
    assert (out == 2 * total).all(), (key, out)

# pushpull works in place, with outputs, with several keys, and with handles.
value = np.full((2, 3), rank + 1, np.float32)
store.pushpull("x", value)
assert (value == total).all()
values = [np.full((2, 3), rank + 1, np.float32) for _ in keys]
outs = [np.empty((2, 3), np.float32) for _ in keys]
handle = store.pushpull(keys, values, outs, wait=False)
handle.wait()
assert all((o == total).all() for o in outs)
assert all((v == rank + 1).all() for v in values)

# With keep=False only the array has the sum. The key has a value again after a push.
for memory in (np.zeros(3, np.float32), ringpull.zeros(50_000)):
    name = f"passing {len(memory)}"
    store.init(name, memory)
    copies = [np.empty_like(memory) for _ in range(2)]
    for step in range(3):
        memory[:] = rank + step
        store.pushpull(name, memory, [copies[0], memory, copies[1]], keep=False)
        assert all((held == total - ranks + ranks * step).all() for held in (memory, *copies)), (memory, *copies)
    try:
        store.pull(name, memory)
        # With servers, the servers have the value.
        assert kind != "dist_sync_mpi" and (memory == copies[0]).all()
    except ringpull.ArgumentError as error:
        assert kind == "dist_sync_mpi" and "keep=True" in str(error), error
    store.wait_all()
    store.push(name, copies[0])
    store.pull(name, memory)
    assert (memory == ranks * copies[0]).all()

# Integers, float16, and a tensor of several segments.
if kind == "dist_sync_mpi":
    for dtype in ("int8", "int32", "int64", "float16", "float64"):
        store.init(dtype, np.zeros(5, dtype))
        value = np.full(5, rank + 1, dtype)
        store.pushpull(dtype, value)
        assert (value == total).all(), (dtype, value)
large = np.arange(300_000, dtype=np.float32) % 1000
store.init("large", np.zeros(300_000, np.float32))
value = large * (rank + 1)
store.pushpull("large", value)
assert (value == large * total).all()

# Row-sparse gradients.
store.init("rows", np.zeros((4, 2), np.float32))
store.push("rows", ringpull.RowSparse([rank % 4, 3], np.ones((2, 2), np.float32), (4, 2)))
rows = np.empty((2, 2), np.float32)
store.row_sparse_pull("rows", rows, row_ids=[3, 0])
at_three = ranks + sum(1 for r in range(ranks) if r % 4 == 3)
assert (rows[0] == at_three).all() and (rows[1] >= 1).all(), rows

# An optimizer applies pushes. A changed learning rate applies to later pushes.
store.init("w", np.zeros(4, np.float32))
sgd = ringpull.SGD(learning_rate=1.0)
store.set_optimizer(sgd)
out = np.empty(4, np.float32)
store.pushpull("w", np.full(4, rank + 1, np.float32), out)
assert (out == -total).all(), out
sgd.learning_rate = 0.5
store.set_optimizer(sgd)
store.pushpull("w", np.full(4, rank + 1, np.float32), out)
assert (out == -1.5 * total).all(), out

# The same optimizer has its states divided over the ranks, and every rank saves all states.
if kind == "dist_sync_mpi":
    with ringpull.create(kind) as divided:
        divided.init("parts", np.zeros(1000, np.float32))
        divided.set_optimizer(ringpull.Adam(learning_rate=0.5), sharded=True)
        weights = np.full(1000, rank + 1, np.float32)
        divided.pushpull("parts", weights)
        assert np.allclose(weights, -0.5), weights
        parts = divided.stats()["state_bytes"]
        assert abs(parts - 8000 / ranks) <= 8, parts
        with tempfile.TemporaryDirectory() as folder:
            divided.save_optimizer_states(folder + "/states")
            first = weights.copy()
            divided.pushpull("parts", np.ones(1000, np.float32), weights)
            second = weights - first
            divided.load_optimizer_states(folder + "/states")
            divided.pushpull("parts", np.ones(1000, np.float32), weights)
            assert np.allclose(weights - first, 2 * second), (first, second, weights)
        try:
            divided.set_optimizer("sgd")
        except ringpull.ArgumentError as error:
            assert "sharded" in str(error)
        else:
            raise AssertionError("a store with divided states took an optimizer of whole ones")

if kind == "dist_sync_mpi":

    def update(key, received, stored):
        assert key == "u"
        stored += received

    with ringpull.create(kind) as other:
        other.init("u", np.ones(3))
        other.set_updater(update)
        for step in range(1, 3):
            updated = np.empty(3)
            other.pushpull("u", np.full(3, rank + 1.0), updated)
            assert (updated == 1 + step * total).all(), updated
        other.push("u", np.ones(3))
# Workers have different amounts of data.
if kind == "dist_sync_mpi":
    with ringpull.create(kind) as uneven:
        uneven.init("v", np.zeros(3, np.float32))
        for step in range(rank + 1):
            value = np.ones(3, np.float32)
            uneven.pushpull("v", value)
            assert (value == ranks - step).all(), (step, value)
        assert uneven.join() == ranks - 1
store.barrier()
assert store.stats()["pushes"] > 0
print(f"rank {rank} of {ranks} is done", flush=True)
