"""Tests MXNet's trainers and modules on our stores: they end with the same weights as with MXNet's own store."""

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

import ringpull.mxnet  # noqa: E402, F401


def linear():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Constant(0.5))
    return net


def step(net, trainer, size=4):
    with mx.autograd.record():
        loss = (net(mx.nd.ones((size, 3))) ** 2).sum()
    loss.backward()
    trainer.step(size)
    return net.weight.data().asnumpy()


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("rule", ["sgd", "nag", "adam", "rmsprop", "ftrl"])
def test_a_trainer_ends_where_mxnets_own_store_ends(rule, on_store):
    results = []
    for kind in ("local", "ringpull_local"):
        net = linear()
        trainer = mx.gluon.Trainer(
            net.collect_params(), rule, {"learning_rate": 0.1}, kvstore=mx.kv.create(kind), update_on_kvstore=on_store
        )
        for _ in range(3):
            step(net, trainer)
        trainer.set_learning_rate(0.01)
        results.append(step(net, trainer))
    assert (results[0] == results[1]).all()


def test_states_are_saved_and_go_on(tmp_path):
    def trainer_of(net):
        return mx.gluon.Trainer(net.collect_params(), "adam", {}, kvstore=mx.kv.create("ringpull_local"))

    net = linear()
    trainer = trainer_of(net)
    step(net, trainer)
    trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "weights"))
    expected = step(net, trainer)
    net = linear()
    net.load_parameters(str(tmp_path / "weights"))
    trainer = trainer_of(net)
    trainer._init_kvstore()
    trainer._init_params()
    trainer.load_states(str(tmp_path / "states"))
    assert (step(net, trainer) == expected).all()


@pytest.mark.parametrize(("on_store", "work_load_list"), [(True, None), (False, None), (False, [3, 1])])
def test_a_module_ends_where_mxnets_own_store_ends(on_store, work_load_list, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", str(int(on_store)))
    results = []
    for kind in ("local", "ringpull_local"):
        data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(data, name="softmax"), context=[mx.cpu(0), mx.cpu(1)], work_load_list=work_load_list)
        batches = mx.io.NDArrayIter(np.arange(24.0).reshape(8, 3) / 24, np.arange(8) % 2, 4)
        module.fit(
            batches,
            num_epoch=2,
            kvstore=mx.kv.create(kind),
            optimizer_params={"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01},
            initializer=mx.init.Constant(0.1),
        )
        results.append(module.get_params()[0])
    for name in results[0]:
        assert np.allclose(results[0][name].asnumpy(), results[1][name].asnumpy(), atol=1e-6), name


def test_a_sparse_embedding_is_trained():
    store = mx.kv.create("ringpull_local")
    net = mx.gluon.nn.Embedding(6, 2, sparse_grad=True)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=store)
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 3])).sum()
    loss.backward()
    trainer.step(1)
    assert net.weight.data().asnumpy()[:, 0].tolist() == [1, 0, 1, 0, 1, 1]


def test_a_sparse_weight_is_trained():
    store = mx.kv.create("ringpull_local")
    parameters = mx.gluon.ParameterDict()
    weight = parameters.get("x", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
    parameters.initialize(init="ones")
    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 1.0}, kvstore=store)
    rows = mx.nd.array([0, 2])
    with mx.autograd.record():
        loss = mx.nd.sparse.dot(mx.nd.array([[1.0, 0, 2, 0]]).tostype("csr"), weight.row_sparse_data(rows)).sum()
    loss.backward()
    trainer.step(1)
    assert weight.row_sparse_data(mx.nd.arange(0, 4)).asnumpy()[:, 0].tolist() == [0, 1, -1, 1]
