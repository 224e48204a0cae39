"""Tests that optimizers of MXNet that the store runs itself end with the same bits as MXNet's own code: KIND names|numbers [sharded]

There are two workers, because a sum of two numbers is the same in both orders. MXNet's code runs in this process, with the values of both.
"""

import copy
import sys
import tempfile
import zlib

import numpy as np

import ringpull.mxnet  # noqa: F401  # before MXNet, in the servers
import mxnet as mx  # isort: skip

kind, keys, *words = sys.argv[1:]
is_sharded = "sharded" in words
store = mx.kv.create(kind)
rank, workers = store.rank, store.num_workers
assert workers == 2

SHAPES = {"weight": (30, 7), "bias": (30,), "slow_weight": (50,)}


def drawn(*words):
    seed = zlib.crc32(repr(words).encode())
    return np.random.RandomState(seed).randn(*SHAPES[words[1]]).astype("float32")


def poly():
    return mx.lr_scheduler.PolyScheduler(8, base_lr=0.1, warmup_steps=2)


CONFIGURATIONS = {
    "sgd": {},
    "ccsgd": {"momentum": 0.5},
    "sgd factor": {"rule": "sgd", "momentum": 0.9, "lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)},
    "nag": {"momentum": 0.9, "lr_scheduler": poly()},
    "adam": {"lr_scheduler": mx.lr_scheduler.CosineScheduler(8, base_lr=0.1)},
    "adagrad": {"eps": 1e-5},
    "rmsprop": {"clip_weights": 1.0},
    "rmsprop centered": {"rule": "rmsprop", "centered": True, "gamma1": 0.8, "gamma2": 0.7},
}


def made(rule, names, more):
    optimizer = mx.optimizer.create(
        rule, learning_rate=0.1, wd=0.01, rescale_grad=0.3, clip_gradient=0.5, param_idx2name=names, **copy.deepcopy(more)
    )
    slow = [name for name in names.values() if "slow" in name]
    # MXNet itself sets the weight decay of the bias to 0.
    optimizer.set_lr_mult({name: 0.25 for name in slow})
    optimizer.set_wd_mult({name: 2.0 for name in slow})
    return optimizer


def same(ours, theirs, what):
    assert np.array_equal(ours.asnumpy(), theirs.asnumpy()), f"{what}: {ours.asnumpy().flat[:4]} and {theirs.asnumpy().flat[:4]}"


def trained_by_hand():
    for number, (title, more) in enumerate(CONFIGURATIONS.items()):
        more = dict(more)
        rule = more.pop("rule", title)
        shapes = {100 + 10 * number + at: name for at, name in enumerate(SHAPES)}
        names = {key: f"{title}_{name}" for key, name in shapes.items()}
        key_of = names.get if keys == "names" else int
        weights = {key: mx.nd.array(drawn(title, name)) for key, name in shapes.items()}
        ours, theirs = made(rule, names, more), made(rule, names, more)
        updater = mx.optimizer.get_updater(theirs)
        store.set_optimizer(ours, sharded=is_sharded)
        for key, weight in weights.items():
            store.init(key_of(key), weight)

        def step(at):
            for key, name in shapes.items():
                gradients = [mx.nd.array(drawn(title, name, at, worker)) for worker in range(workers)]
                out = mx.nd.zeros(SHAPES[name])
                store.pushpull(key_of(key), gradients[rank], out=out)
                updater(key_of(key), gradients[0] + gradients[1], weights[key])
                same(out, weights[key], f"{title}, {name}, step {at}")

        for at in range(5):
            if at == 3:
                for one in (ours, theirs):
                    if one.lr_scheduler is None:
                        one.set_learning_rate(0.05)
                    one.set_lr_mult({names[key]: 0.5 for key, name in shapes.items() if name == "bias"})
            step(at)
        if "lr_scheduler" in more:
            continue
        with tempfile.NamedTemporaryFile() as file:
            saved = updater.get_states()
            store.save_optimizer_states(file.name)
            step(5)
            store.load_optimizer_states(file.name)
            updater.set_states(saved)
            step(6)


def net():
    """A symbol with normalisation, and with the learning rate of one variable in its attributes."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), weight=mx.sym.var("first_weight", lr_mult=0.5), num_hidden=8, name="first")
    data = mx.sym.Activation(mx.sym.BatchNorm(data, fix_gamma=False, name="norm"), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2, name="last"), name="softmax")


POINTS = np.random.RandomState(5).rand(4, workers, 4, 6).astype("float32")
LABELS = (POINTS.sum(-1) > 3).astype("float32")


def module(kvstore, contexts, points, labels):
    mx.random.seed(3)
    one = mx.mod.Module(net(), context=contexts)
    one.fit(
        mx.io.NDArrayIter(points, labels, len(contexts) * 4),
        num_epoch=3,
        kvstore=kvstore,
        optimizer_params={"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01, "lr_scheduler": mx.lr_scheduler.FactorScheduler(5, 0.5, base_lr=0.5)},
        initializer=mx.init.Xavier(),
    )
    return one.get_params()[0]


def gluon(kvstore, contexts, points, labels):
    mx.random.seed(3)
    net = mx.gluon.nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(8, in_units=6), mx.gluon.nn.BatchNorm(in_channels=8), mx.gluon.nn.Dense(2, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    for parameter in net.collect_params(".*gamma|.*beta|.*bias").values():
        parameter.wd_mult = 0.0
    net[0].weight.lr_mult = 0.1
    trainer = mx.gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": 0.1, "wd": 0.01}, kvstore=kvstore, update_on_kvstore=True)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    batch = 4 * len(contexts)
    for at in range(0, len(points), batch):
        if at == 2 * batch:
            trainer.set_learning_rate(0.05)
        pieces = [mx.gluon.utils.split_and_load(mx.nd.array(part[at : at + batch]), contexts) for part in (points, labels)]
        with mx.autograd.record():
            losses = [loss(net(x), y) for x, y in zip(*pieces, strict=True)]
        mx.autograd.backward(losses)
        trainer.step(4 * workers)
    return {name: parameter.data(contexts[0]) for name, parameter in net.collect_params().items() if parameter.grad_req != "null"}


trained_by_hand()
train = module if keys == "names" else gluon
if is_sharded:
    store.set_optimizer(mx.optimizer.SGD(), sharded=True)
mine = train(store, [mx.cpu()], POINTS[:, rank].reshape(-1, 6), LABELS[:, rank].reshape(-1))
whole = train("local", [mx.cpu(0), mx.cpu(1)], POINTS.reshape(-1, 6), LABELS.reshape(-1))
assert mine.keys() == whole.keys() and mine
for name, value in whole.items():
    same(mine[name], value, name)
store.barrier()
print(f"rank {rank} of {workers} is done")
