"""Rank 2 is late. Meanwhile it asks for the state of the ranks: by `ringpull top`, over HTTP and by SIGUSR1.

    mpirun -n 3 python watched.py dist_sync_mpi COMMAND HOST:PORT 2>FILE

In jobs with servers it does not ask by SIGUSR1.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy

import ringpull

LATE = 2


#: The seconds within which a signal is answered.
PATIENCE_S = 30


def answered():
    """Waits until this process's stderr, which is a file, has a line for every rank after SIGUSR1."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        _, _, answer = Path("/proc/self/fd/2").read_text().partition("(SIGUSR1)")
        if len(re.findall(r"^  rank \d+ \(pid .*\n", answer, re.MULTILINE)) == 3 and "has not called" in answer:
            return
        time.sleep(0.01)
    print(f"SIGUSR1 was not answered within {PATIENCE_S} s")


def evaluate(kind, command, address):
    if kind == "dist_sync_mpi":
        # The others have waited for a while before the first question. Its answer has the line of the late rank too.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGUSR1)
        answered()
    begun = time.monotonic()
    for form in "json", "table":
        words = [command, "top", str(os.getpid()), "--format", form]
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print(f"<{form} took {time.monotonic() - begun:.2f} s>")
        begun = time.monotonic()
    for path in "metrics", "health", "nothing":
        try:
            with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
                print(answer.read().decode())
                print(f"<{path} {answer.status}>")
        except urllib.error.HTTPError as refused:
            print(f"<{path} {refused.code}>")


def main():
    kind, command, address = sys.argv[1:]
    store = ringpull.create(kind)
    gradient = numpy.zeros(1000, numpy.float32)
    for key in "first", "second":
        store.init(key, gradient)
    # During 60 steps the sequence of calls becomes frozen.
    for step in range(60):
        if step == 50 and store.rank == LATE:
            evaluate(kind, command, address)
        for key in "first", "second":
            gradient[:] = store.rank + step
            store.pushpull(key, gradient)
            assert gradient[0] == 3 * step + 3
    print(f"rank {store.rank} is done")


main()
