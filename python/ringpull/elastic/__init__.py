"""Jobs that go on when ranks are lost or hosts are added: ``ringpull launch --elastic`` starts them again, and a :class:`State` goes on from its last commit.

    @ringpull.elastic.run
    def train(state):
        while state.epoch < 10:
            for rows in state.sampler.batches(256):      # this rank's rows of each batch
                gradient = ...                           # of `rows`; summed by a store or a communicator
                state.weights -= gradient
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(ringpull.elastic.State(weights=weights, epoch=0, sampler=ringpull.elastic.Sampler(60000)))

A commit keeps the state in the memory of each host, where it outlives the ranks. After a restart ``run`` loads the newest commit
before it calls the function. In a job that is not elastic a commit stays in the process, and :meth:`State.restore` goes back to it.
"""

from .sampling import Sampler
from .state import HostsUpdatedInterrupt, State, generation, run

__all__ = ["HostsUpdatedInterrupt", "Sampler", "State", "generation", "run"]
