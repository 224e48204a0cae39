"""Tests the contract of MXNet's dist_sync. Every rank checks it through the plug-in."""

import sys
import tempfile

import numpy as np

import ringpull.mxnet  # noqa: F401  (before MXNet: a server serves here)
import mxnet as mx

kind = sys.argv[1]
store = mx.kv.create(kind)
rank, ranks = store.rank, store.num_workers
total = ranks * (ranks + 1) // 2
RATE = 2
SMALL, BIG = (2, 3), (300, 300)
assert store.type == kind


def holds(array, value):
    found = array.asnumpy()
    assert (found == value).all(), (rank, found, value)


# Ranks initialise keys in different orders, and all get rank 0's values.
for number in range(20) if rank % 2 == 0 else reversed(range(20)):
    dtype = "float32" if number < 10 else "float16"
    store.init(str(100 + number), [mx.nd.ones(SMALL, dtype=dtype) * (number + rank)])
for number in range(20):
    out = mx.nd.zeros(SMALL, dtype="float32" if number < 10 else "float16")
    store.pull(str(100 + number), out=out)
    holds(out, number)
outs = [mx.nd.empty(BIG), mx.nd.empty(BIG)]
store.broadcast("b", mx.nd.ones(BIG) * (7 + rank), outs)
[holds(out, 7) for out in outs]

# Without an optimizer the sum over devices and ranks replaces the value, also in place.
for _ in range(3):
    values = [mx.nd.ones(BIG) * (rank + 1) for _ in range(2)]
    store.pushpull("b", values)
    [holds(value, 2 * total) for value in values]

# Memory is given twice: as an output and another key's value, as parts of one array, and as the value of two keys.
store.init(["x", "y"], [mx.nd.zeros((500,))] * 2)
x, y = mx.nd.ones((500,)) * (rank + 1), mx.nd.ones((500,)) * 10 * (rank + 1)
store.pushpull(["x", "y"], [x, y], out=[y, x])
holds(y, total)
holds(x, 10 * total)
both = mx.nd.concat(x, y, dim=0)
store.pushpull(["x", "y"], [both[:500], both[500:]], out=[both[500:], both[:500]])
holds(both[500:], 10 * total * ranks)
holds(both[:500], total * ranks)
x[:] = rank + 1
store.pushpull(["x", "y"], [x, x], out=[y, both[:500]])
holds(y, total)
holds(both[:500], total)

# With an optimizer, the sum updates the value: dense and row-sparse, float16 and float32.
names = {
    (dtype, shape, stype): f"{dtype}{shape}{stype}"
    for dtype in ("float16", "float32")
    for shape in (SMALL, BIG)
    for stype in ("d", "r")
}
for (dtype, shape, stype), name in names.items():
    first = mx.nd.ones(shape, dtype=dtype)
    store.init(name, first.tostype("row_sparse") if stype == "r" else first)
store.set_optimizer(mx.optimizer.create("test", rescale_grad=RATE, multi_precision=True))
random = np.random.RandomState(rank)
for (dtype, shape, stype), name in names.items():
    for repeat in range(1, 4):
        if stype == "d":
            store.push(name, mx.nd.ones(shape, dtype=dtype) * (rank + 1))
            out = mx.nd.zeros(shape, dtype=dtype)
            store.pull(name, out=out)
            holds(out, 1 + total * RATE * repeat)
            continue
        gradient = mx.nd.zeros(shape, dtype=dtype)
        gradient[rank % shape[0]] = rank + 1
        store.push(name, gradient.tostype("row_sparse"))
        expected = np.ones(shape, dtype)
        for other in range(ranks):
            expected[other % shape[0]] += (other + 1) * RATE * repeat
        ids = random.randint(shape[0], size=(shape[0],))
        out = mx.nd.zeros(shape, stype="row_sparse", dtype=dtype)
        store.row_sparse_pull(name, out=out, row_ids=mx.nd.array(ids, dtype="float32"))
        holds(out, np.isin(np.arange(shape[0]), ids)[:, None] * expected)
    if stype == "r":
        empty = mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
        store.push(name, empty)
        # The output keeps its own dtype, which may differ from the key's, and loses the rows that were not asked for.
        out = mx.nd.sparse.zeros("row_sparse", shape)
        store.row_sparse_pull(name, out=out, row_ids=mx.nd.arange(shape[0]))
        holds(out, expected)
        store.row_sparse_pull(name, out=out, row_ids=mx.nd.array([]))
        holds(out, 0)

# Gradients are compressed to two bits, and the residuals are added to the next gradients. pushpull and trainers can use this too.
if kind != "ringpull_local":
    packed = mx.kv.create(kind) if kind == "dist_sync_mpi" else store
    packed.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    packed.init("packed", mx.nd.zeros((3,)))
    for codes in ([0, 0.5, -0.5], [0.5, 0.5, -0.5]):
        out = mx.nd.empty((3,))
        packed.pushpull("packed", mx.nd.array([0.3, 0.6, -0.9]), out=out)
        if kind == "dist_sync_mpi":
            holds(out, ranks * np.array(codes, "float32"))
    # Compression works also by push and then pull, with an optimizer, for a tensor whose codes do not fill whole words.
    packed.set_optimizer(mx.optimizer.create("test", rescale_grad=RATE))
    packed.init("ragged", mx.nd.zeros((37, 3)))
    said = 0.0
    for gradient, code in ((0.375, 0), (0.125, 0.5), (-0.25, 0), (-0.25, -0.5), (0.5, 0.5)):
        packed.push("ragged", mx.nd.ones((37, 3)) * gradient)
        out = mx.nd.empty((37, 3))
        packed.pull("ragged", out=out)
        said += code
        holds(out, RATE * ranks * said)

# An optimizer of MXNet whose states are divided over the ranks gives the same weights as one on each rank, also with a trainer.
if kind == "dist_sync_mpi":
    divided, whole = mx.kv.create(kind), mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=0.1))
    divided.set_optimizer(mx.optimizer.Adam(learning_rate=0.1), sharded=True)
    expected = mx.nd.ones((5, 7))
    divided.init("divided", expected)
    for step in range(1, 4):
        divided.push("divided", mx.nd.ones((5, 7)) * (rank + 1) * step)
        whole("divided", mx.nd.ones((5, 7)) * total * step, expected)
        out = mx.nd.empty((5, 7))
        divided.pull("divided", out=out)
        assert np.allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-5), (out, expected)
    trained = mx.kv.create(kind)
    trained.set_optimizer(mx.optimizer.Adam(learning_rate=0.1), sharded=True)
    dense = mx.gluon.nn.Dense(1, in_units=4)
    dense.initialize()
    trainer = mx.gluon.Trainer(
        dense.collect_params(), "adam", {"learning_rate": 0.1}, kvstore=trained, update_on_kvstore=True
    )
    before = dense.weight.data().asnumpy()
    with mx.autograd.record():
        loss = dense(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2 * ranks)
    assert np.allclose(dense.weight.data().asnumpy(), before - 0.1, atol=1e-4), (dense.weight.data(), before)
    refusing = mx.kv.create(kind)
    refusing.init("norms", mx.nd.ones(3))
    try:
        refusing.set_optimizer(mx.optimizer.LAMB(), sharded=True)
    except ringpull.UnsupportedError as error:
        assert "LAMB" in str(error), error
    else:
        raise AssertionError("LAMB needs norms of whole keys, and was taken")
    # The error has changed nothing: the ranks can still run this optimizer themselves.
    refusing.set_optimizer(mx.optimizer.LAMB())
    refusing.push("norms", mx.nd.ones(3))
    try:
        refusing.set_optimizer(mx.optimizer.Adam(), sharded=True)
    except ringpull.UnsupportedError as error:
        assert "before the first push" in str(error), error
    else:
        raise AssertionError("the ranks have the values, and the store was to update them")

# With a trainer, ranks that begin with different weights get equal weights, and a distributed store is not reset.
if kind == "dist_sync_mpi":
    mx.random.seed(rank)
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kind)
    for _ in range(3):
        with mx.autograd.record():
            loss = (net(mx.nd.ones((4, 3)) * (rank + 1)) ** 2).sum()
        loss.backward()
        trainer.step(4 * ranks)
    gathered = mx.nd.zeros((ranks, 6))
    gathered[rank] = net.weight.data().reshape((-1,))
    other = mx.kv.create(kind)
    other.init("weights", mx.nd.zeros((ranks, 6)))
    other.pushpull("weights", gathered)
    assert (gathered.asnumpy() == gathered.asnumpy()[0]).all()
    with tempfile.TemporaryDirectory() as folder:
        net.save_parameters(f"{folder}/weights")
        try:
            net.load_parameters(f"{folder}/weights")
            raise SystemExit("a distributed store was reset")
        except RuntimeError as error:
            assert "reset" in str(error)
    # Checks the settings of a trainer that a distributed store allows and those that it refuses, then row-sparse weights, and sums that are
    # not divided.
    for stype, grad_stype, on_store, outcome in (
        ("default", "default", None, True),
        ("default", "default", False, False),
        ("default", "row_sparse", None, True),
        ("default", "row_sparse", False, ValueError),
        ("row_sparse", "row_sparse", None, True),
        ("row_sparse", "row_sparse", False, ValueError),
    ):
        parameters = mx.gluon.ParameterDict()
        parameters.get("x", shape=(10, 1), stype=stype, grad_stype=grad_stype)
        parameters.initialize(ctx=[mx.cpu(0), mx.cpu(1)], init="zeros")
        trainer = mx.gluon.Trainer(parameters, "sgd", {}, kvstore=mx.kv.create(kind), update_on_kvstore=on_store)
        try:
            trainer._init_kvstore()
            assert trainer._update_on_kvstore is outcome
        except ValueError:
            assert outcome is ValueError
    for stype in ("default", "row_sparse"):
        x = mx.gluon.Parameter("x", shape=(2, 10), stype=stype, grad_stype=stype)
        x.initialize(init="ones")
        trainer = mx.gluon.Trainer([x], "sgd", {"learning_rate": 1.0}, kvstore=mx.kv.create(kind))
        rows = mx.nd.arange(0, 2)
        with mx.autograd.record():
            y = (rank + 1) * (x.row_sparse_data(rows) if stype == "row_sparse" else x.data())
            y.backward()
        trainer.step(1)
        holds(x.row_sparse_data(rows) if stype == "row_sparse" else x.data(), 1 - total)
store._barrier()
print(f"rank {rank} of {ranks} is done", flush=True)
