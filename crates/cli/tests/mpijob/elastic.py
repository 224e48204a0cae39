"""The program of the ranks in a simulated elastic job. It counts: after n steps the total is 1 + 2 + ... + n,
with any ranks.

    elastic.py FOLDER

It makes steps up to the number in FOLDER/limit. There it waits for another number, or ends if FOLDER/end
exists. Each step is committed. Every fifth step is also written to FOLDER/checkpoint, from which the job
begins if no host has a commit. FOLDER/log has a line for each event; FOLDER/beat/GENERATION-RANK is touched
while a rank is alive.
"""

import json
import os
import pathlib
import sys
import time

import numpy

import ringpull
from ringpull.elastic import State, generation, run

folder = pathlib.Path(sys.argv[1])
job = ringpull.communicator()
log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
beat = folder / "beat" / f"{generation()}-{job.rank}"


def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


def orders():
    """The limit, and True if the job is to end, as rank 0 reads them."""
    found = numpy.zeros(2)
    if job.rank == 0:
        # The order matters: the last limit is written before the end.
        ends = (folder / "end").exists()
        found[:] = int((folder / "limit").read_text()), ends
    job.broadcast(found, 0, out=found).wait()
    return found


@run
def train(state):
    if job.rank == 0:
        say("generation", generation(), "ranks", job.size, "step", state.step, "total", int(state.total))
    held = -1
    while True:
        beat.touch()
        limit, ends = orders()
        if state.step < limit:
            step = state.step + 1
            # One rank has the number and the others have 0, so the sum is the number.
            mine = numpy.array([step if step % job.size == job.rank else 0], numpy.float64)
            state.total += job.allreduce(mine).wait()[0]
            state.step = step
            if job.rank == 0 and step % 5 == 0:
                (folder / "part").write_text(json.dumps([step, state.total]))
                os.replace(folder / "part", folder / "checkpoint")
            state.commit()
        elif ends:
            break
        else:
            if job.rank == 0 and held != state.step:
                held = state.step
                say("holds at", state.step)
            time.sleep(0.02)
            state.check_host_updates()


say("begins", generation(), "rank", job.rank, "on", os.uname().nodename, time.time())
first = json.loads((folder / "checkpoint").read_text()) if (folder / "checkpoint").exists() else [0, 0.0]
state = State(step=first[0], total=first[1])
train(state)
if job.rank == 0:
    say("ends at", state.step, "total", int(state.total))
