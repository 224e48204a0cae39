"""An elastic job of `test_elastic.py`: each step counts its samples. It reads the test's settings in FOLDER.

    elastic.py FOLDER EPOCHS LENGTH BATCH
"""

import os
import pathlib
import signal
import sys

import numpy

import ringpull
from ringpull.elastic import Sampler, State, generation, run

folder, (epochs, length, batch) = pathlib.Path(sys.argv[1]), map(int, sys.argv[2:])
job = ringpull.communicator()
lost = int(os.environ.get("LOST_AT", 0))


def say(text):
    """Writes a line to this rank's file, which stays when the rank ends."""
    with open(folder / f"said-{generation()}-{job.rank}", "a") as file:
        file.write(f"{text}\n")


def offer(slots):
    """Sets the hosts from now on. The launcher reads either the old line or the new one, never a part."""
    (folder / "new").write_text(f"localhost:{slots}\n")
    os.replace(folder / "new", folder / "hosts")


@run
def train(state):
    say(f"begins with {job.size} at step {state.step}")
    while state.epoch < epochs:
        for rows in state.sampler.batches(batch):
            counts = numpy.bincount(rows, minlength=length).astype(numpy.float64)
            state.seen[state.epoch] += job.allreduce(counts, out=counts).wait()
            state.step += 1
            if state.step == lost and generation() == 0 and job.rank == job.size - 1:
                offer(job.size - 1)
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step % 2 == 0:
                state.commit()
                say(f"has committed step {state.step}")
            while generation() == 1 and state.step == lost + 4:
                # Commits until the launcher has seen the new host.
                if job.rank == 0:
                    offer(job.size + 1)
                state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
    say(f"ends with {job.size} at step {state.step}")
    if job.rank == 0:
        numpy.save(folder / "seen.npy", state.seen)


train(State(seen=numpy.zeros((epochs, length)), step=0, epoch=0, sampler=Sampler(length, seed=3)))
