"""Tests values and outputs that share memory, in one call and in several calls under way: there are exact sums or a clear error."""

import signal
import sys

import numpy as np

import ringpull

store = ringpull.create(sys.argv[1])
rank, ranks = store.rank, store.num_workers
total = ranks * (ranks + 1) // 2
LEN = 50_000
ROUNDS = 20


def made(length, value, memory):
    array = ringpull.zeros(length) if memory == "shared" else np.zeros(length, np.float32)
    array[:] = value
    return array


def refused(words, call):
    """Checks that the call raises an error with these words, and pushes nothing."""
    pushes = store.stats()["pushes"]
    try:
        call()
    except ringpull.ArgumentError as error:
        assert all(word in str(error) for word in (*words, f"rank {rank}", "memory of its own")), error
        assert store.stats()["pushes"] == pushes
        return
    raise AssertionError(f"nothing was raised that says {words}")


keys = ["a", "b"]
store.init(keys, [np.zeros(LEN, np.float32)] * 2)
store.init(["short a", "short b"], [np.zeros(5, np.float32)] * 2)

for number in range(ROUNDS):
    memory = "shared" if number % 2 else "numpy"
    # The outputs of one key are another key's values.
    x, y = made(LEN, rank + 1, memory), made(LEN, 10 * (rank + 1), memory)
    store.pushpull(keys, [x, y], out=[y, x])
    assert (y == total).all() and (x == 10 * total).all(), (x, y)

    # Two keys have the same value.
    x, outs = made(LEN, rank + 1, memory), [np.empty(LEN, np.float32) for _ in keys]
    store.pushpull(keys, [x, x], out=outs)
    assert all((out == total).all() for out in outs) and (x == rank + 1).all(), (x, outs)

    # The value and the output of one key are two views that share memory.
    x = made(LEN + 3, 0, memory)
    x[:LEN] = np.arange(LEN) % 100 * (rank + 1)
    store.pushpull("a", x[:LEN], out=x[3:])
    assert (x[3:] == np.arange(LEN) % 100 * total).all(), x
    x = made(LEN + 3, 0, memory)
    x[3:] = np.arange(LEN) % 100 * (rank + 1)
    store.pushpull("a", [x[3:], x[3:]], out=[x[:LEN]])
    assert (x[:LEN] == np.arange(LEN) % 100 * 2 * total).all(), x

    # Several calls use one array, or views of it, one after the other. Each call gets the result of the previous one.
    x = made(LEN, rank + 1, memory)
    handles = [store.pushpull(key, x, wait=False) for key in keys]
    assert all(handle.wait() for handle in handles)
    assert (x == total * ranks).all(), x
    x = made(LEN + 3, rank + 1, memory)
    handles = [store.pushpull("a", x[:LEN], wait=False), store.pushpull("b", x[3:], wait=False)]
    assert all(handle.wait() for handle in reversed(handles))
    assert (x[:3] == total).all() and (x[3:LEN] == total * ranks).all() and (x[LEN:] == total).all(), x
    x, y = made(LEN, rank + 1, memory), made(LEN, 0, memory)
    handles = [store.pushpull("a", x, out=y, wait=False), store.pushpull("b", y, out=x, wait=False)]
    assert all(handle.wait() for handle in handles)
    assert (y == total).all() and (x == total * ranks).all(), (x, y)

    # A push copies the result of the previous call, and a pull writes after the previous call is done.
    x = made(LEN, rank + 1, memory)
    handle = store.pushpull("a", x, wait=False)
    store.push("b", x)
    out = np.empty(LEN, np.float32)
    store.pull("b", out)
    assert (out == total * ranks).all(), out
    store.push("b", np.full(LEN, 3, np.float32))
    store.pushpull("a", made(LEN, 1, memory), out=x, wait=False)
    store.pull("b", x)
    assert handle.wait() and (x == 3 * ranks).all(), x

    # The first handle is dropped. The call of the other key still waits, because the store knows the memory, not the handle.
    x = made(LEN, rank + 1, memory)
    store.pushpull("a", x, wait=False)
    store.pushpull("b", x)
    assert (x == total * ranks).all(), x

# One memory cannot hold two results.
x, short = made(LEN, 1, "numpy"), made(8, 1, "shared")
refused(['keys "a" and "b"'], lambda: store.pushpull(keys, [x, x]))
refused(['keys "a" and "b"'], lambda: store.pushpull(keys, [x.copy(), x.copy()], out=[x, x]))
refused(['"short a"', '"short b"'], lambda: store.pushpull(["short b", "short a"], [short[:5], short[3:]]))
refused(['two outputs of key "short a"'], lambda: store.pushpull("short a", [short[:5], short[3:]]))
refused(['of key "short a"'], lambda: store.pull("short a", [short[:5], short[3:]]))
# The same memory with another element type is another tensor.
for value, out in (x, x.view(np.int32)), (x.view(np.int32), x):
    try:
        store.pushpull("a", value, out=out)
    except ringpull.ArgumentError:
        continue
    raise AssertionError("bits of another type were summed")
assert (x == 1).all() and (short == 1).all()

# A call that waits for memory of an unfinished call can be interrupted.
if ranks > 1:
    x = made(LEN, rank + 1, "numpy")
    if rank == 0:
        handle = store.pushpull("a", x, wait=False)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            store.pushpull("b", x)
            raise AssertionError("there was no interrupt")
        except KeyboardInterrupt:
            store.barrier()
        assert handle.wait()
    else:
        store.barrier()
        store.pushpull("a", x)
    assert (x == total).all(), x
store.wait_all()
print(f"rank {rank} of {ranks} is done", flush=True)
