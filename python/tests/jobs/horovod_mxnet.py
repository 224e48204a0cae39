"""Tests Horovod's promises for `horovod.mxnet`, on any number of ranks."""

import itertools
import tempfile

import ringpull.horovod.mxnet as hvd  # isort: skip
import mxnet as mx
import numpy

hvd.init()
rank, size = hvd.rank(), hvd.size()
TYPES = ["int32", "int64", "float32", "float64"]
DIMS = [1, 2, 3]


def raises(kinds, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kinds as error:
        return error
    raise AssertionError(f"{call} raised nothing")


def whole(dim, dtype):
    return mx.nd.array(numpy.random.RandomState(7).randint(-50, 50, (9,) * dim), dtype=dtype)


def same(array, expected):
    expected = numpy.asarray(expected)
    assert array.shape == expected.shape and (array.asnumpy() == expected).all(), (array, expected)


def reductions():
    for dtype, dim in itertools.product(TYPES, DIMS):
        tensor = whole(dim, dtype)
        plain = tensor.asnumpy()
        same(hvd.allreduce(tensor, average=False, name=f"sum.{dtype}.{dim}"), plain * size)
        same(hvd.allreduce(tensor), plain)
        same(hvd.allreduce(tensor + rank, op=hvd.Max), plain + size - 1)
        mine = tensor.copy()
        hvd.allreduce_(mine, average=False)
        same(mine, plain * size)
        for got in hvd.grouped_allreduce([tensor, tensor], average=False):
            same(got, plain * size)
        hvd.grouped_allreduce_([mine], average=True)
        same(mine, plain * size)
        scaled = hvd.allreduce(tensor, average=False, prescale_factor=0.5).asnumpy()
        assert numpy.allclose(scaled, (plain * 0.5).astype(dtype) * size)
        parts = mx.nd.array(numpy.arange(size * 4) % 7, dtype=dtype)
        same(hvd.reducescatter(parts, op=hvd.Sum), (numpy.arange(size * 4) % 7)[rank * 4 : rank * 4 + 4] * size)


def what_travels():
    for dtype, dim in itertools.product(["uint8", "int8", *TYPES], DIMS):
        tensor = mx.nd.ones((rank + 1, *(2,) * (dim - 1)), dtype=dtype) * rank
        gathered = hvd.allgather(tensor).asnumpy()
        assert gathered.dtype == dtype and [int(row) for row in gathered.reshape(len(gathered), -1)[:, 0]] == [r for r in range(size) for _ in range(r + 1)]
        for root in range(size):
            same(hvd.broadcast(mx.nd.ones((3,), dtype=dtype) * rank, root), [root] * 3)
        rows = mx.nd.array([r for r in range(size) for _ in range(rank + 1)], dtype=dtype)
        collected, received = hvd.alltoall(rows, mx.nd.array([rank + 1] * size, dtype="int32"))
        same(collected, [rank] * (size * (size + 1) // 2))
        same(received, [r + 1 for r in range(size)])
        same(hvd.alltoall(rows), [rank] * (size * (size + 1) // 2))
    assert hvd.broadcast_object({"a": rank}) == {"a": 0} and hvd.allgather_object(rank) == list(range(size))


def mistakes():
    if size > 1:
        assert isinstance(raises(RuntimeError, hvd.allreduce, mx.nd.ones((3 + rank,))), hvd.HorovodInternalError)
        raises(RuntimeError, hvd.broadcast, mx.nd.ones((3,)), rank)
    raises(ValueError, hvd.allreduce, numpy.ones(3))
    scalar = mx.nd.array(1.0, dtype="float32")
    for call in hvd.alltoall, hvd.reducescatter:
        raises(ValueError, call, scalar)
    raises(ValueError, hvd.alltoall, mx.nd.ones(size), mx.nd.ones(size, dtype="float32"))
    for kind in RuntimeError, ValueError:
        raises(kind, hvd.alltoall, mx.nd.ones(size), mx.nd.zeros(size, dtype="int32"))
    if size > 1:
        # Averages of integers are rounded towards zero.
        same(hvd.allreduce(mx.nd.array([-1, 1] if rank == 0 else [0, 0], dtype="int32")), [0, 0])


def network(seed=1):
    mx.random.seed(seed)
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Normal(0.5))
    net(mx.nd.ones((1, 3)))
    return net


data = numpy.arange(3.0 * 4 * size).reshape(-1, 3) / (12 * size)


def weights(net):
    return numpy.concatenate([value.data().asnumpy().ravel() for _, value in sorted(net.collect_params().items())])


def train(net, trainer, rows):
    for _ in range(3):
        with mx.autograd.record():
            loss = (net(mx.nd.array(rows)) ** 2).sum(axis=1)
        loss.backward()
        trainer.step(len(rows))


def training_ends_where_one_process_ends():
    alone = network()
    train(alone, mx.gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None), data)
    for options in {}, {"num_groups": 1, "prefix": "b"}, {"gradient_predivide_factor": 2.0, "prefix": "c"}, {"compression": hvd.Compression.fp16, "prefix": "d"}:
        net = network(rank + 1)
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **options)
        train(net, trainer, data[rank::size])
        assert numpy.allclose(weights(net), weights(alone), atol=1e-2 if "compression" in options else 1e-5), (options, weights(net), weights(alone))


def a_module_is_trained():
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), name="softmax")
    results = []
    for rows, own in ((data, False), (data[rank::size], True)):
        batches = mx.io.NDArrayIter(rows, numpy.arange(len(data))[rank::size] % 2 if own else numpy.arange(len(data)) % 2, len(rows))
        module = mx.mod.Module(symbol)
        module.bind(batches.provide_data, batches.provide_label)
        module.init_params(mx.init.Constant(0.1 * (rank + 1) if own else 0.1))
        if own:
            arguments, others = module.get_params()
            hvd.broadcast_parameters(arguments)
            hvd.broadcast_parameters(others)
            module.set_params(arguments, others)
        optimizer = mx.optimizer.SGD(learning_rate=0.5, rescale_grad=1 / len(rows))
        module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(optimizer) if own else optimizer)
        for batch in batches:
            module.forward_backward(batch)
            module.update()
        results.append(module.get_params()[0]["fc_weight"].asnumpy())
    assert numpy.allclose(*results, atol=1e-5), results


def an_optimizer_is_of_its_class_and_takes_what_is_written_to_it():
    """In each step a trainer writes the factor of gradients to the optimizer, and the trainer's states hold the optimizer."""
    nets = network(), network()
    for net, own in zip(nets, (False, True)):
        optimizer = mx.optimizer.Adam(learning_rate=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer) if own else optimizer
        assert isinstance(optimizer, mx.optimizer.Adam)
        optimizer.wd = 0.1
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        for _ in range(2):
            train(net, trainer, data[rank::size] if own else data)
            with tempfile.TemporaryDirectory() as folder:
                trainer.save_states(f"{folder}/states")
                trainer.load_states(f"{folder}/states")
    assert numpy.allclose(weights(nets[0]), weights(nets[1]), atol=1e-5), (weights(nets[0]), weights(nets[1]))


def parameters_that_are_made_later_are_broadcast_then():
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Constant(rank + 1))
    hvd.broadcast_parameters(net.collect_params(), root_rank=size - 1)
    net(mx.nd.ones((1, 3)))
    assert (net.weight.data().asnumpy() == size).all()


for check in [value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"]:
    if check.__code__.co_argcount == 0:
        check()
print(f"rank {rank} is done", flush=True)
