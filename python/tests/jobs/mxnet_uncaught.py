"""A trainer whose last rank does not reach a step. Nobody catches the other ranks' error."""

import time

import ringpull.mxnet  # noqa: F401
import mxnet as mx
from mxnet import autograd, gluon

store = mx.kv.create("dist_sync_mpi")
net = gluon.nn.Dense(3, in_units=4, prefix="head_")
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=store)
for step in range(4):
    with autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    if step == 2 and store.rank == store.num_workers - 1:
        time.sleep(60)
    trainer.step(1)
    loss.asscalar()
