"""Steps in which the last rank sleeps for 60 ms, by NumPy, PyTorch or MXNet."""

import sys
import time

STEPS = 10


def sleep(store):
    if store.rank == store.num_workers - 1:
        time.sleep(0.06)


def by_numpy():
    import numpy

    import ringpull

    store = ringpull.create("dist_sync_mpi")
    values = [numpy.ones(1000, numpy.float32), numpy.ones(10, numpy.float32)]
    store.init(["v", "w"], values)
    for step in range(STEPS):
        sleep(store)
        if step % 2:
            store.pushpull(["v", "w"], values)
        else:
            for handle in [store.pushpull(key, value, wait=False) for key, value in zip("vw", values)]:
                while not handle.wait(0.01):
                    pass


def by_torch():
    import torch

    import ringpull.torch

    net = torch.nn.Linear(20, 20)
    optimizer = ringpull.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), "dist_sync_mpi")
    for _ in range(STEPS):
        sleep(optimizer.store)
        net(torch.ones(20)).sum().backward()
        optimizer.step()


def by_mxnet():
    import mxnet as mx

    import ringpull.mxnet

    store = mx.kv.create("dist_sync_mpi")
    arrays = [mx.nd.ones((1000,)), mx.nd.ones((10,))]
    store.init(["v", "w"], arrays)
    for _ in range(STEPS):
        sleep(store)
        for key, array in zip("vw", arrays):
            store.pushpull(key, array, out=array)
        arrays[0].wait_to_read()
        arrays[1].asnumpy()


globals()[f"by_{sys.argv[1]}"]()
