"""Tests wrong arguments: each raises an error of ours, and changes nothing."""

import inspect
import math
import resource
import sys

import numpy as np

import ringpull

comm = ringpull.communicator()
rank, size = comm.rank, comm.size


def raised(call, *arguments, **more):
    try:
        call(*arguments, **more)
    except ringpull.KVStoreError as error:
        return error
    raise AssertionError(f"{call} was done")


def groups_share_memory():
    """`grouped_allreduce` reads every input before it writes an output that shares memory with it."""
    total = size * (size + 1) // 2
    whole = np.zeros(4)
    for name in None, "group":
        a = np.full(10, 1.0 + rank)
        b = 10 * a
        comm.grouped_allreduce([a, b], outs=[b, a], name=name).wait()
        assert (a == 10 * total).all() and (b == total).all(), (a, b)
        comm.grouped_allreduce([a, a], outs=[a, b]).wait()
        assert (a == 10 * total * size).all() and (b == a).all()
        # One input is a part of another array's output.
        whole[:] = rank + 1
        other = np.full(2, 10.0)
        comm.grouped_allreduce([other, whole[:2]], outs=[whole[1:3], other]).wait()
        assert whole.tolist() == [rank + 1, 10 * size, 10 * size, rank + 1] and other.tolist() == [total] * 2, (whole, other)
    for outs in [a, a], [a[:5], a[4:9]]:
        error = raised(comm.grouped_allreduce, [b[: len(outs[0])]] * 2, outs=outs)
        assert "outputs 0 and 1 share memory" in str(error), error
    assert "with 1 outputs" in str(raised(comm.grouped_allreduce, [a, b], outs=[a]))
    for call in (
        lambda: comm.allreduce(whole[:2], out=whole[1:3]),
        lambda: comm.broadcast(whole[:2], 0, out=whole[1:3]),
        lambda: comm.reduce_scatter(whole[:size], out=whole[:1]),
        lambda: comm.allgather(whole[:1], lengths=[1] * size, out=whole[:size]),
        lambda: comm.alltoall(whole[:size], out=whole[:size]),
    ):
        assert "share" in str(error := raised(call)) or "memory of its own" in str(error), error
    store = ringpull.create("local")
    store.init(["a", "b"], [np.ones(2), np.ones(2)])
    one = np.zeros(2)
    for call in store.pull, store.pushpull:
        more = {} if call == store.pull else {"value": [np.ones(2), np.ones(2)]}
        assert "keys a and b share memory" in str(raised(call, ["a", "b"], out=[one, one], **more)).replace('"', "")


#: Values that programs give by mistake. Each is tried for each argument of each call.
HOSTILE = [1 << 70, -(1 << 70), -1, math.nan, math.inf, "\ud800", [], [1 << 70], [-1], object(), None, {}, b"x"]


def every_call_refuses_it():
    """Every call raises an error of ours or a Python error of types, and nothing that `except Exception` does not catch."""
    store = ringpull.create("local")
    store.init("w", np.zeros(2))
    handle = store.pushpull("w", np.zeros(2), wait=False)
    sample = {
        "key": "w", "value": np.zeros(2), "out": np.zeros(2), "array": np.zeros(size), "arrays": [np.zeros(2)], "ranks": [0], "root": 0,
        "to": 0, "row_ids": [0], "optimizer": "sgd", "capability": "optimizer", "why": "no reason", "work_load_list": [1.0], "len": 3,
        "compression_params": "none", "shape": 2, "kind": "local", "fname": "/nowhere/x", "timeout": 0.0, "batch": 4,
        "updater": lambda *_: None, "callback": lambda *_: None,
    }
    blocking = {"join", "barrier", "close", "recv", "send", "split", "subset", "suggest_shares", "finish", "wait_all", "barrier_async"}
    done = comm.allreduce(np.zeros(2))
    places = {"store": store, "comm": comm, "handle": handle, "operation": done, "ringpull": ringpull}
    calls = [
        (f"{place}.{name}", getattr(owner, name))
        for place, owner in places.items()
        for name in (["create", "zeros", "split"] if place == "ringpull" else dir(owner))
        if not name.startswith("_") and (name not in blocking or place == "ringpull")
    ]
    tried = 0
    for name, call in calls:
        if not callable(call):
            continue
        parameters = inspect.signature(call).parameters
        needed = {one: sample[one] for one, about in parameters.items() if about.default is about.empty and one in sample}
        for parameter in parameters:
            for value in HOSTILE:
                tried += 1
                try:
                    result = call(**{**needed, parameter: value})
                    if hasattr(result, "wait") and size == 1:
                        result.wait(5)
                except (ringpull.KVStoreError, TypeError, AttributeError, ValueError, TimeoutError):
                    pass
                except BaseException as error:
                    raise AssertionError(f"{name}({parameter}={value!r}) raised {type(error).__name__}: {error}") from error
    assert tried > 300, tried
    for call, kind in (
        (lambda: comm.allreduce(np.zeros(2)).wait(math.nan), ringpull.ArgumentError),
        (lambda: store.pushpull("w", np.zeros(2), wait=False).wait(math.nan), ringpull.ArgumentError),
        (lambda: ringpull.zeros(-1), ringpull.ArgumentError),
        (lambda: ringpull.zeros(1 << 70), ringpull.ArgumentError),
        (lambda: ringpull.zeros(1 << 45), ringpull.OutOfMemoryError),
        (lambda: store.init("v", []), ringpull.ArgumentError),
        (lambda: store.init(1 << 63, np.zeros(2)), ringpull.ArgumentError),
        (lambda: store.init("\ud800", np.zeros(2)), ringpull.ArgumentError),
        (lambda: store.push("w", np.zeros(2), priority=1 << 40), ringpull.ArgumentError),
        (lambda: store.pull("w", np.zeros(2), priority=-(1 << 40)), ringpull.ArgumentError),
        (lambda: comm.broadcast(np.zeros(2), -1), ringpull.ArgumentError),
        (lambda: comm.allreduce(np.zeros(2), prescale=10**400), ringpull.ArgumentError),
        (lambda: comm.recv(np.zeros(2), tag=-1), ringpull.ArgumentError),
        (lambda: comm.alltoall(np.zeros(size), splits=[1] * size, received_splits=[2] * size), ringpull.ArgumentError),
        (lambda: ringpull.create("\ud800"), ringpull.ArgumentError),
        (lambda: ringpull.communicator(timeout=math.nan), ringpull.ArgumentError),
    ):
        refused = raised(call)
        assert isinstance(refused, kind) and "\n  hint: " in str(refused), (type(refused), refused)


def memory_is_short():
    """A call that gets no memory raises an error, and the store goes on."""
    store = ringpull.create("local")
    big = np.zeros(1 << 27, np.float32)
    store.init("big", big)
    store.init("small", np.zeros(2))
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    for call in (
        lambda: store.push("big", big),
        lambda: store.push("big", [big, big]),
        lambda: comm.allreduce(big),
        lambda: comm.grouped_allreduce([big, big]),
        lambda: comm.alltoall(big),
        lambda: ringpull.zeros(1 << 28),
    ):
        error = raised(call)
        assert isinstance(error, MemoryError) and "there is no memory for" in str(error), (type(error), error)
    store.pushpull("small", out := np.ones(2))
    assert (out == 1).all()


if sys.argv[1] == "groups":
    groups_share_memory()
else:
    every_call_refuses_it()
    memory_is_short()
print(f"rank {rank} is done")
