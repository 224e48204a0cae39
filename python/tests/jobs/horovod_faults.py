"""A fault of rank 0 in a call or in training by Horovod's names: FRAMEWORK WHERE FAULT. The other ranks print the error."""

import importlib
import os
import sys
import time

framework, where, fault = sys.argv[1:]
# The front end is imported first, so that it finds the MPI library before a framework loads its own libraries.
hvd = importlib.import_module(f"ringpull.horovod.{framework}")
import numpy  # noqa: E402

hvd.init()
rank, faulty = hvd.rank(), hvd.rank() == 0
folder = os.environ["FOLDER"]


def array(length):
    ones = numpy.ones(length, dtype="float32")
    if framework == "mxnet":
        import mxnet

        return mxnet.nd.array(ones)
    if framework == "torch":
        import torch

        return torch.from_numpy(ones)
    return ones


def fail():
    """Makes the faulty rank fail."""
    if fault == "dead":
        os._exit(3)
    # The rank calls nothing more, but lives on until the others have their errors.
    while len(os.listdir(folder)) < hvd.size() - 1:
        time.sleep(0.05)
    os._exit(0)


def call():
    hvd.allreduce(array(3), name="before")
    if faulty and fault != "mismatch":
        fail()
    done = hvd.allreduce(array(4 if faulty else 3), name="faulty")
    if framework == "mxnet":
        done.wait_to_read()


def train_torch():
    import torch

    model = torch.nn.Linear(4, 5 if faulty and fault == "mismatch" else 4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
    for step in range(5):
        if faulty and fault != "mismatch" and step == 3:
            fail()
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def train_mxnet():
    import mxnet

    net = mxnet.gluon.nn.Dense(5 if faulty and fault == "mismatch" else 4, in_units=4)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for step in range(5):
        if faulty and fault != "mismatch" and step == 3:
            fail()
        with mxnet.autograd.record():
            loss = net(mxnet.nd.ones((1, 4))).sum()
        loss.backward()
        trainer.step(1)
        loss.wait_to_read()
    mxnet.nd.waitall()


def train_keras():
    import keras

    class Fate(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if faulty and fault != "mismatch" and batch == 3:
                fail()

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5 if faulty and fault == "mismatch" else 4)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    inputs = numpy.ones((5, 4), dtype="float32")
    model.fit(inputs, numpy.zeros((5, model.output_shape[1]), dtype="float32"), batch_size=1, verbose=0, callbacks=[Fate()])


try:
    call() if where == "call" else globals()[f"train_{framework}"]()
    print(f"rank {rank}: no error", flush=True)
except Exception as error:  # noqa: BLE001
    kinds = [kind.__name__ for kind in type(error).__mro__]
    print(f"rank {rank}: {' '.join(kinds)}: {' '.join(str(error).split())}", flush=True)
# Each rank makes a file to show that it has its error.
open(f"{folder}/{rank}", "w").close()
