"""A job with one fault. Each rank prints the exception that it got."""

import os
import sys
import time

import numpy as np

import ringpull

case = sys.argv[1]
kind = sys.argv[2] if len(sys.argv) > 2 else "dist_sync_mpi"
store = ringpull.create(kind)
rank, last = store.rank, store.num_workers - 1
ones = np.ones(4, np.float32)


def arguments():
    """Calls that are wrong on each rank alone: each raises at once, and changes nothing. Keys are strings."""
    try_all("a", "b", 3)


def numbers():
    """The calls of `arguments` with integer keys."""
    try_all(3, 99, "a")


def try_all(known, unknown, mixed):
    store.init(known, ones)
    half, out = np.ones(4, np.float16), np.empty(4, np.float32)
    for name, call in {
        "UnknownKeyError of pull": lambda: store.pull(unknown, out),
        "UnknownKeyError of push": lambda: store.push(unknown, ones),
        "UnknownKeyError of pushpull": lambda: store.pushpull(unknown, ones.copy()),
        "DuplicateKeyError of init": lambda: store.init(known, ones),
        "DuplicateKeyError of broadcast": lambda: store.broadcast(known, ones, out),
        "MixedKeyTypesError of push": lambda: store.push(mixed, ones),
        "ShapeMismatchError of push": lambda: store.push(known, np.ones(5, np.float32)),
        "ShapeMismatchError of pushpull": lambda: store.pushpull(known, np.ones((4, 1), np.float32)),
        "ShapeMismatchError of pull": lambda: store.pull(known, np.empty(5, np.float32)),
        "DtypeMismatchError of one value": lambda: store.push(known, half),
        "DtypeMismatchError of two values": lambda: store.push(known, [half, half]),
        "DtypeMismatchError of a mixed list": lambda: store.push(known, [ones, half]),
        "ArgumentError of more keys than values": lambda: store.push([known, unknown], [ones]),
        "ArgumentError of a text": lambda: store.push(known, "no tensor"),
        "ArgumentError of a float as a key": lambda: store.push(1.5, ones),
    }.items():
        try:
            call()
            print(f"rank {rank} got nothing from {name}", flush=True)
        except ringpull.KVStoreError as error:
            if type(error).__name__ != name.split()[0]:
                print(f"rank {rank} got {type(error).__name__} from {name}: {error}", flush=True)
    store.pull(known, out)
    assert (out == 1).all()
    # Asynchronous servers apply another rank's push at once.
    store.barrier()
    if kind == "dist_async":
        store.set_optimizer(ringpull.Test())
    store.pushpull(known, ones.copy(), out)
    store.barrier()
    store.pull(known, out)
    assert (out == store.num_workers + (kind == "dist_async")).all(), out
    print(f"rank {rank} has tried all", flush=True)


def other_size_pushed_by_one():
    store.init("a", ones)
    store.pushpull("a", np.ones(5 if rank == last else 4, np.float32))


def other_dtype_pushed_by_one():
    store.init("a", ones)
    store.pushpull("a", np.ones(4, np.float16 if rank == last else np.float32))


def integers():
    for dtype in ("int8", "int32"):
        store.init(dtype, np.ones(4, dtype))
        value = np.ones(4, dtype)
        store.pushpull(dtype, value)
        assert (value == store.num_workers).all(), value


def other_size_initialised():
    store.init("a", np.ones(4 if rank == 0 else 5, np.float32))
    store.pull("a", np.empty(4 if rank == 0 else 5, np.float32))
    # With servers rank 0 may have its own value before another rank has called init.
    store.barrier()


def never_pushed():
    store.init("a", ones)
    store.barrier()
    if rank == last:
        # The error names the call that has waited longest. This must be the sum, also on a busy host.
        time.sleep(1.5)
        store.barrier()
    else:
        store.pushpull("a", ones.copy())


def pushed_twice():
    store.init("a", ones)
    store.barrier()
    if rank == 0:
        store.push("a", ones)
        store.push("a", ones)
        store.pull("a", np.empty(4, np.float32))
    # As above, but here the call must be the pull.
    time.sleep(1.5)
    store.barrier()


def peer_gone():
    store.init("a", ones)
    store.pushpull("a", ones.copy())
    if rank == last:
        os._exit(0)
    store.pushpull("a", ones.copy())


def ends_by_argument():
    """The last rank gives a value that no store sums, catches the exception, and ends."""
    store.init("a", ones)
    store.pushpull("a", ones.copy())
    if rank == last:
        try:
            store.push("a", np.ones(4, np.uint16))
        finally:
            sys.exit(3)
    store.pushpull("a", ones.copy())


def ends_by_exception():
    """An exception that does not come from the store ends the last rank."""
    store.init("a", ones)
    store.pushpull("a", ones.copy())
    if rank == last:
        raise ZeroDivisionError("the batch is empty\nand this line is not told")
    store.pushpull("a", ones.copy())


def leaves_by_exception():
    """Such an exception leaves a `with` of the store, and the program goes on."""
    store.init("a", ones)
    store.pushpull("a", ones.copy())
    try:
        with store:
            if rank == last:
                raise ZeroDivisionError("the batch is empty")
            store.pushpull("a", ones.copy())
    except ZeroDivisionError:
        sys.exit(0)


def replicas_differ():
    """The updater of the last rank does something else in the fifth step."""
    calls = []

    def updater(key, received, stored):
        calls.append(key)
        stored += received + (rank == last and len(calls) == 5)

    store.set_updater(updater)
    store.init("a", ones)
    for _ in range(9):
        store.pushpull("a", ones.copy())
    store.wait_all()


def updater_raises():
    def updater(key, received, stored):
        if rank == last:
            raise ZeroDivisionError("the updater's own\n  hint: not of this")

    use(updater)


def updater_exits():
    use(lambda key, received, stored: sys.exit(3))


def updater_pulls():
    use(lambda key, received, stored: store.pull("a", ones.copy()))


def updater_pushes():
    use(lambda key, received, stored: store.pushpull("b", ones.copy()))


def use(updater):
    store.init(["a", "b"], [ones, ones])
    store.set_updater(updater)
    store.pushpull("a", ones.copy())
    # A rank whose own updater works may have its sum before it hears of the other rank's error. The other rank's pull raises, so this rank
    # never calls the barrier.
    store.pull("a", np.empty(4, np.float32))
    store.barrier()


def no_optimizer():
    store.init("a", ones)
    store.push("a", ones)


begun = time.monotonic()
try:
    globals()[case]()
    outcome = "nothing"
except ringpull.KVStoreError as error:
    outcome = f"{type(error).__name__} rank={error.rank} key={error.key!r}"
    print(error, flush=True)
print(f"rank {rank} got {outcome} after {time.monotonic() - begun:.1f} s", flush=True)
try:
    # No rank leaves while another rank works. If every rank has had the fault, the barrier raises and is not needed.
    store.barrier()
except ringpull.KVStoreError:
    pass
