"""Ranks whose children try to join the job as the same rank. The first argument is the case."""

import multiprocessing
import os
import re
import subprocess
import sys

import ringpull

KIND = "dist_sync_mpi"
#: A child's program. It tries calls and prints their results.
CREATE = """
import ringpull, sys
calls = {kind: lambda kind=kind: ringpull.create(kind) for kind in sys.argv[1:]}
if calls.pop("communicator", None):
    calls["communicator"] = ringpull.communicator
if calls.pop("horovod", None):
    from ringpull.horovod import basics
    calls["horovod"] = basics.init
for name, call in calls.items():
    try:
        made = call()
        print(name, "made", made and made.rank, made and getattr(made, "num_workers", None), flush=True)
    except ringpull.KVStoreError as error:
        print(name, str(error).replace(chr(10), " "), flush=True)
"""


def child(*arguments, without=()):
    """The output of a child that tries each kind of store. Its environment lacks variables that begin with one of `without`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(tuple(without))}
    words = [sys.executable, "-c", CREATE, *arguments]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def of_pool(kind):
    """The result of creating a store in a child of multiprocessing. Such a child ends without Python's `atexit`."""
    try:
        return f"made {ringpull.create(kind).rank}"
    except ringpull.UnavailableError as error:
        return str(error)


def is_inherited(text, rank):
    """Checks that an error names the child's rank. Returns the prefixes of the variables to unset."""
    assert f"rank {rank}" in text and "only inherited" in text and '__name__ == "__main__"' in text, text
    return re.findall(r"[A-Z]+_", text.rpartition("that begin with ")[2])


def after_the_store():
    """A rank that has a store starts children of every kind."""
    store = ringpull.create(KIND)
    rank, size = store.rank, store.num_workers
    said = dict(line.split(" ", 1) for line in child(KIND, "communicator", "horovod", "local"))
    assert said.pop("local") == "made 0 1" and len(said) == 3, said
    (unset,) = {tuple(is_inherited(text, rank)) for text in said.values()}
    # The error's hint is right: without these variables the child can create a store.
    assert child(KIND, without=unset) == [f"{KIND} made 0 1"]
    for method in "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(1) as pool:
            is_inherited(pool.apply(of_pool, (KIND,)), rank)
    store.init("w", __import__("numpy").zeros(3, "f"))
    store.barrier()
    print("ranks", size, flush=True)


def before_the_store():
    """A rank without a store starts two children. The child that comes first becomes the rank."""
    words = [sys.executable, "-c", CREATE + "sys.stdin.read()", KIND]
    # The child keeps the descriptors of its parent, as with a launcher's wrapper.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "close_fds": False}
    children = [subprocess.Popen(words, **pipes) for _ in range(2)]
    said = sorted((one.stdout.readline() for one in children), key=lambda line: "only inherited" in line)
    for one in children:
        one.stdin.close()
    assert [one.wait() for one in children] == [0, 0]
    assert said[0].endswith(" 2\n") and "made" in said[0] and "only inherited" in said[1], said
    print("ranks", said[0].split()[-1], flush=True)


def of_a_worker():
    """A worker of a job with servers starts a child."""
    store = ringpull.create("dist_sync")
    (said,) = child("dist_sync")
    assert f"is a child of worker {store.rank}" in said and "kind local" in said, said
    print("ranks", store.num_workers, flush=True)


if __name__ == "__main__":
    {"after": after_the_store, "before": before_the_store, "worker": of_a_worker}[sys.argv[1]]()
