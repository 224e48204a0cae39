"""Rank 2 is late, and asks meanwhile what the ranks are doing: by `ringpull top`, over HTTP and by SIGUSR1.

    mpirun -n 3 python watched.py COMMAND PORT
"""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy

import ringpull

LATE = 2


def evaluate(command, port):
    begun = time.monotonic()
    for form in "json", "table":
        words = [command, "top", str(os.getpid()), "--format", form]
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(f"<{form} took {time.monotonic() - begun:.2f} s>")
        begun = time.monotonic()
    for path in "metrics", "health", "nothing":
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                print(answer.read().decode())
                print(f"<{path} {answer.status}>")
        except urllib.error.HTTPError as refused:
            print(f"<{path} {refused.code}>")
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(1.5)


def main():
    command, port = sys.argv[1:]
    store = ringpull.create("dist_sync_mpi")
    gradient = numpy.zeros(1000, numpy.float32)
    for key in "first", "second":
        store.init(key, gradient)
    # Enough steps for the sequence of calls to be frozen.
    for step in range(60):
        if step == 50 and store.rank == LATE:
            evaluate(command, port)
        for key in "first", "second":
            gradient[:] = store.rank + step
            store.pushpull(key, gradient)
            assert gradient[0] == 3 * step + 3
    print(f"rank {store.rank} is done")


main()
