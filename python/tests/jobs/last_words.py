"""A job that ends by an error that nobody catches, through ringpull, ringpull.mxnet or ringpull.torch: ``last_words.py FRONT CASE KIND [FIFO]``.

With RINGPULL_DEVICES=cuda PyTorch's tensors are on a GPU.
"""

import os
import signal
import sys

import numpy as np

front, case, kind, *fifo = sys.argv[1:]
if front == "mxnet":
    import ringpull.mxnet  # noqa: F401
    import mxnet as mx

    store = mx.kv.create(kind if kind == "dist_sync_mpi" else f"ringpull_{kind}")
else:
    import ringpull

    store = ringpull.create(kind)
    if front == "torch":
        import ringpull.torch
        import torch
rank = store.rank
#: Only rank 1's last layer is longer.
outputs = 5 if case == "shape" and rank == 1 else 4
place = "cuda" if os.environ.get("RINGPULL_DEVICES", "").startswith("cuda") else "cpu"


def mxnet_step():
    net = mx.gluon.nn.Dense(outputs, in_units=3, prefix="dense0_")
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=store)

    def step():
        with mx.autograd.record():
            loss = net(mx.nd.ones((2, 3))).sum()
        loss.backward()
        trainer.step(2)
        loss.asnumpy()

    return step


def torch_step():
    net = torch.nn.Sequential(torch.nn.Linear(3, outputs)).to(place)
    optimizer = ringpull.torch.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), store, named_parameters=net.named_parameters()
    )

    def step():
        optimizer.zero_grad()
        net(torch.ones(2, 3, device=place)).sum().backward()
        optimizer.step()

    return step


def ringpull_step():
    store.broadcast("w", np.zeros(outputs, np.float32), np.zeros(outputs, np.float32))
    return lambda: store.pushpull("w", np.ones(outputs, np.float32))


def wait_for_each_other():
    ones = mx.nd.ones(4) if front == "mxnet" else np.ones(4, np.float32)
    keys = [f"key{number}" for number in range(store.num_workers)]
    store.init(keys, [ones] * len(keys))
    store.pushpull(keys[rank], ones)
    if front == "mxnet":
        ones.asnumpy()


def report_before_a_call_is_done():
    """Rank 1 reports a failure while one of its calls in MXNet's engine waits for a sum. Rank 0 calls the sum afterwards."""
    first, second = mx.nd.ones(4), mx.nd.ones(4)
    store.init(["first", "second"], [first, second])
    if rank == 0:
        # This waits until the other rank opens the FIFO too.
        open(fifo[0]).close()
    store.pushpull("first", first)
    store.pushpull("second", first, out=second)
    if rank == 1:
        store.report_failure("the data ends here")
        open(fifo[0], "w").close()
    second.asnumpy()
    if rank == 1:
        sys.exit(1)
    store.pushpull("second", first)
    first.asnumpy()


def main():
    if case == "reported":
        report_before_a_call_is_done()
    if case == "updater":

        def updater(key, received, stored):
            if rank == 1:
                raise ZeroDivisionError("the updater's own\nand this")

        store.set_updater(updater)
    if case == "deadlock":
        wait_for_each_other()
    step = globals()[f"{front}_step"]()
    for number in range(100):
        if number == 3 and rank == 1:
            if case == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if case == "raise":
                raise ZeroDivisionError("the batch is empty\nand so is the rest")
            if case == "leave":
                sys.exit(0)
            if case == "push":
                # Nobody waits for this push.
                store.push("w", np.ones(outputs, np.float32))
        if number == 3 and case == "push":
            return
        if number == 3 and case == "child" and os.fork() == 0:
            raise ZeroDivisionError("the child's own")
        step()


main()
