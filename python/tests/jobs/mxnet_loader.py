"""Trains with MXNet's DataLoader, whose workers are forked from a program with a store."""

import ringpull.mxnet  # noqa: F401, I001
import mxnet as mx
import numpy as np


def main():
    mx.random.seed(0)
    net = mx.gluon.nn.Dense(400, in_units=400)
    net.initialize(mx.init.Constant(0.01))
    store = mx.kv.create("dist_sync_mpi")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=store)
    data = mx.gluon.data.ArrayDataset(np.arange(64 * 400, dtype=np.float32).reshape(64, 400) / 25600)
    for _ in range(3):
        # New workers are forked in every epoch.
        for batch in mx.gluon.data.DataLoader(data, batch_size=8, num_workers=2):
            with mx.autograd.record():
                loss = (net(batch) ** 2).mean()
            loss.backward()
            trainer.step(store.num_workers)
    print(f"rank {store.rank} ends with {net.weight.data().sum().asscalar():.6f}", flush=True)


if __name__ == "__main__":
    main()
