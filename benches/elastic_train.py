"""One worker of the training of `elastic_peers.py`: `elastic_train.py PROGRAM FOLDER`.

Every program trains the same network on the same images, from the same first weights. The state has a count
for each sample of each epoch. The counts are summed over the workers in every step, as the gradients are. So at
the end they show which samples are in the weights, and how often. FOLDER has the images and the settings of the
trial; workers write there the times of their steps.
"""

import datetime
import json
import os
import pathlib
import signal
import sys
import time

# Workers share this machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy
import torch
from torch import nn


class Trial:
    """The settings of a worker, and the files that it writes."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name, value in json.loads((self.folder / "trial.json").read_text()).items():
            setattr(self, name, value)
        data = numpy.load(self.folder / "images.npz")
        self.images, self.labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])
        self.test = torch.from_numpy(data["test_images"]), torch.from_numpy(data["test_labels"])
        torch.set_num_threads(1)
        torch.manual_seed(1)
        convolutions = [nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
        self.net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * 7 * 7, 10))
        self.net.load_state_dict({name[7:]: torch.from_numpy(data[name]) for name in data.files if name.startswith("weight ")})
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=0.9)
        self.log = open(self.folder / f"steps-{os.getpid()}", "a", buffering=1)  # noqa: SIM115
        self.begun = time.time()

    def new_counts(self):
        return torch.zeros(self.epochs, len(self.labels))

    def loss(self, net, rows, divisor=None):
        """Returns the mean loss over these rows, or their sum divided by `divisor`, and this worker's counts of the rows. Takes at least `pace` seconds."""
        counts = torch.zeros(len(self.labels))
        counts[rows] = 1
        total = nn.functional.cross_entropy(net(self.images[rows]), self.labels[rows], reduction="sum")
        time.sleep(max(0.0, self.begun + self.pace - time.time()))
        return total / (divisor or max(len(rows), 1)), counts

    def may_be_lost(self, step, is_last):
        """Kills the last worker by SIGKILL, once, in step `lost_at`, before its sums."""
        marker = self.folder / "killed"
        if is_last and step == self.lost_at and not marker.exists():
            self.offer("fewer")
            marker.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    def offer(self, which):
        """Replaces the list of hosts at once, so that the launcher finds either the old list or the new one."""
        (self.folder / "next").write_text((self.folder / f"hosts-{which}").read_text())
        os.replace(self.folder / "next", self.folder / "hosts")

    def done(self, step, workers):
        """Records that a step of this number of workers is in the weights."""
        self.begun = time.time()
        print(self.begun, step, workers, file=self.log)

    def dropped(self):
        """Records that the work of a step was dropped."""
        self.begun = time.time()
        print(self.begun, -1, 0, file=self.log)

    def ended(self, counts, is_first):
        """Writes the result, on the first worker: the accuracy, and the missing and repeated samples by the counts of the state."""
        if not is_first:
            return
        with torch.no_grad():
            accuracy = (self.net(self.test[0]).argmax(1) == self.test[1]).float().mean().item()
        result = {"accuracy": accuracy, "missing": int((counts == 0).sum()), "repeated": int((counts > 1).sum())}
        (self.folder / "result").write_text(json.dumps(result))


def restarted(trial):
    """ringpull, started again from a commit in memory."""
    import ringpull.horovod.torch as hvd
    from ringpull.elastic import Sampler

    hvd.init()
    optimizer = hvd.DistributedOptimizer(trial.sgd, named_parameters=trial.net.named_parameters(), op=hvd.Sum)

    @hvd.elastic.run
    def train(state):
        sampler = state.sampler
        while sampler.epoch < trial.epochs:
            for rows in sampler.batches(trial.batch):
                optimizer.zero_grad()
                loss, counts = trial.loss(trial.net, rows, (sampler.position - 1) % trial.batch + 1)
                trial.may_be_lost(state.step, hvd.rank() == hvd.size() - 1)
                loss.backward()
                state.counts[sampler.epoch] += hvd.allreduce(counts, op=hvd.Sum, name="counts")
                optimizer.step()
                state.step += 1
                trial.done(state.step, hvd.size())
                if state.step % trial.commit == 0:
                    state.commit()
            sampler.set_epoch(sampler.epoch + 1)
        trial.ended(state.counts, hvd.rank() == 0)

    train(hvd.elastic.TorchState(trial.net, optimizer, step=0, counts=trial.new_counts(), sampler=Sampler(len(trial.labels), seed=1)))


def in_place(trial):
    """ringpull, on an MPI that goes on without a lost rank."""
    from ringpull.elastic import Sampler
    from ringpull.torch import DistributedOptimizer

    import ringpull

    store = ringpull.create("dist_sync_mpi")
    optimizer = DistributedOptimizer(trial.sgd, store, named_parameters=trial.net.named_parameters())
    store.init("counts", numpy.zeros(len(trial.labels), numpy.float32))
    counts, sampler, step = trial.new_counts(), Sampler(len(trial.labels), seed=1), 0
    while sampler.epoch < trial.epochs:
        workers = store.num_workers
        for rows in sampler.batches(trial.batch, store.rank, workers):
            optimizer.zero_grad()
            loss, own = trial.loss(trial.net, rows)
            trial.may_be_lost(step, store.rank == workers - 1)
            loss.backward()
            summed = own.numpy()
            store.pushpull("counts", summed, out=summed)
            optimizer.step()
            counts[sampler.epoch] += own
            step += 1
            trial.done(step, store.num_workers)
            if store.num_workers != workers:
                break
        else:
            sampler.set_epoch(sampler.epoch + 1)
    trial.ended(counts, store.rank == 0)


def horovod(trial):
    """Horovod's elastic mode."""
    import horovod.torch as hvd

    hvd.init()
    own = trial.batch // trial.workers
    sampler = hvd.elastic.ElasticSampler(range(len(trial.labels)), shuffle=True, seed=1)
    loader = torch.utils.data.DataLoader(range(len(trial.labels)), batch_size=own, sampler=sampler)
    optimizer = hvd.DistributedOptimizer(trial.sgd, named_parameters=trial.net.named_parameters())

    @hvd.elastic.run
    def train(state):
        while state.epoch < trial.epochs:
            for number, rows in enumerate(loader):
                optimizer.zero_grad()
                loss, counts = trial.loss(trial.net, rows)
                # This worker's host is missing in the shorter list of hosts.
                trial.may_be_lost(state.step, os.environ["HOROVOD_HOSTNAME"] == "127.0.0.1")
                loss.backward()
                counts = hvd.allreduce(counts, op=hvd.Sum, name="counts")
                optimizer.step()
                # A commit of Horovod's keeps a reference to the object, so it must not be changed in place.
                state.counts = state.counts.clone()
                state.counts[state.epoch] += counts
                state.sampler.record_batch(number, own)
                state.step += 1
                trial.done(state.step, hvd.size())
                if state.step % trial.commit == 0:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
        trial.ended(state.counts, hvd.rank() == 0)

    train(hvd.elastic.TorchState(trial.net, optimizer, epoch=0, step=0, counts=trial.new_counts(), sampler=sampler))


def torchft(trial):
    """torchft: a replica group of one worker, with gloo. `REPLICA` is its number.

    torchft's DistributedDataParallel cannot go on after an error of gloo, so without `ddp` the manager itself averages the gradients.
    """
    from torch.distributed import ReduceOp, TCPStore
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

    number = int(os.environ["REPLICA"])
    own = trial.batch // trial.workers
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    counts = trial.new_counts()

    def save():
        return {"net": trial.net.state_dict(), "sgd": trial.sgd.state_dict(), "counts": counts}

    def load(state):
        trial.net.load_state_dict(state["net"])
        trial.sgd.load_state_dict(state["sgd"])
        counts.copy_(state["counts"])

    seconds = datetime.timedelta(seconds=trial.torchft_seconds)
    manager = Manager(
        ProcessGroupGloo(timeout=seconds), load, save, min_replica_size=2, timeout=seconds, quorum_timeout=seconds, connect_timeout=seconds,
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, replica_id=f"replica_{number}",
    )  # fmt: skip
    net = DistributedDataParallel(manager, trial.net) if trial.ddp else trial.net
    optimizer, parameters = Optimizer(manager, trial.sgd), list(trial.net.parameters())
    sampler = DistributedSampler(range(len(trial.labels)), number, trial.workers, group_rank=0, num_replicas=1, shuffle=True, seed=1)
    steps = -(-len(sampler) // own)
    while manager.current_step() < trial.epochs * steps:
        step = manager.current_step()
        sampler.set_epoch(step // steps)
        rows = list(sampler)[step % steps * own :][:own]
        optimizer.zero_grad()
        loss, of_step = trial.loss(net, rows)
        trial.may_be_lost(step, number == trial.workers - 1)
        loss.backward()
        if not trial.ddp:
            gradients = [parameter.grad for parameter in parameters]
            averaged = parameters_to_vector(gradients)
            manager.allreduce(averaged).wait()
            vector_to_parameters(averaged, gradients)
        manager.allreduce(of_step, reduce_op=ReduceOp.SUM).wait()
        optimizer.step()
        if manager.current_step() == step:
            trial.dropped()
        else:
            # A worker that has just joined now has the others' state, and their step.
            counts[(manager.current_step() - 1) // steps] += of_step
            trial.done(manager.current_step(), manager.num_participants())
    trial.ended(counts, number == 0)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    {"restarted": restarted, "in place": in_place, "horovod": horovod, "torchft": torchft}[sys.argv[1]](Trial(sys.argv[2]))
