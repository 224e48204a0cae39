"""An elastic job whose processes go on without a lost process. Each step counts its samples.

    in_place.py WAY PAUSE

WAY is the way in which rank 1 of the first start ends at step 7: `kill` or `raise`. With `everyone` all ranks raise in every start. With
`store` each process has a store. With `end` every rank is killed at its end. Each step takes PAUSE seconds longer.
"""

import os
import signal
import sys
import time

import numpy

import ringpull
from ringpull.elastic import Sampler, State, generation, run

way, pause = sys.argv[1], float(sys.argv[2])
length, batch = 100, 8
job = ringpull.communicator()
began_as = job.rank
store = ringpull.create("dist_sync_mpi") if way == "store" else None
resets: list[int] = []


def is_to_end(step):
    if way == "everyone":
        return step == 7
    return way != "end" and step == 7 and began_as == 1 and generation() == 0


@run
def train(state):
    # Process sets end with a loss, and must be made again.
    pair = job.split([0, 1])
    while state.epoch < 2:
        for rows in state.sampler.batches(batch):
            if is_to_end(state.step):
                if way in ("raise", "everyone"):
                    raise LookupError("this rank has no data")
                os.kill(os.getpid(), signal.SIGKILL)
            counts = numpy.bincount(rows, minlength=length).astype(numpy.float64)
            state.seen += job.allreduce(counts, out=counts).wait()
            if pair is not None:
                both = pair.allreduce(numpy.full(3, 2.0**pair.rank)).wait()
                assert (both == 3).all(), both
            state.step += 1
            assert not ringpull.should_stop()
            time.sleep(pause)
            if state.step % 5 == 0:
                state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
    assert ringpull.should_stop(job.rank == job.size - 1)


state = State(seen=numpy.zeros(length), step=0, epoch=0, sampler=Sampler(length, seed=3))
state.register_reset_callbacks([lambda: resets.append(state.step)])
train(state)
assert (state.seen == 2).all(), state.seen
if way == "end":
    job.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
print(f"start {generation()}: rank {began_as} is {job.rank} of {job.size}, at step {state.step}, reset at {resets}", flush=True)
