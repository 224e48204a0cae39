"""A program with a store that forks, gets a signal, or ends in the middle of an operation. Its arguments are the kind and the case."""

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

import ringpull

LEN = 1 << 18


def square(number):
    """The work of a child of multiprocessing. The child may import this file again."""
    return number * number


def sleep():
    """The work of a child that does not end by itself."""
    time.sleep(60)


def in_child(work):
    """Forks a child that does `work` and exits as a program does. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.exit(0)


def ended_well(pid):
    assert os.waitpid(pid, 0) == (pid, 0), "the child has failed"


class Turns:
    """Makes parent and child go on in turns."""

    def __init__(self):
        self.ends = [os.pipe(), os.pipe()]

    def say(self, side):
        os.write(self.ends[side][1], b".")

    def wait(self, side):
        assert os.read(self.ends[side][0], 1) == b"."


class Job:
    def __init__(self, kind):
        self.store = ringpull.create(kind)
        self.rank, self.ranks = self.store.rank, self.store.num_workers
        self.store.init("w", np.zeros(LEN, np.float32))

    def train(self, steps=4, array=None):
        """Makes sums with known results, and checks them."""
        array = np.empty(LEN, np.float32) if array is None else array
        for step in range(steps):
            array[:] = step + 1
            self.store.pushpull("w", array)
            assert (array == self.ranks * (step + 1)).all()

    # fork

    def child_exits(self):
        """Children exit before the sequence of steps is frozen, and after."""
        for _ in range(3):
            ended_well(in_child(lambda: None))
            self.train()

    def child_drops_the_store(self):
        def work():
            with self.store:
                pass
            self.store.close()
            del self.store

        ended_well(in_child(work))
        self.train()

    def child_writes_an_array(self):
        turns = Turns()
        array, other, small = ringpull.zeros(LEN), ringpull.zeros(LEN), ringpull.zeros(3)
        array[:], other[:], small[:] = 3, 4, 5
        self.train(1, ringpull.zeros(LEN))

        def work():
            array[:] *= 7
            turns.say(0)
            turns.wait(1)
            # The child does not see what the parent has written meanwhile, also into memory that the parent has freed.
            assert (array == 21).all() and (other == 4).all() and (small == 5).all(), (array, other, small)
            assert (ringpull.zeros(LEN) == 0).all()

        child = in_child(work)
        turns.wait(0)
        assert (array == 3).all() and (other == 4).all()
        array[:] = 8
        other = None
        again = [ringpull.zeros(LEN) for _ in range(4)]
        for memory in again:
            memory[:] = 9
        self.train(3, array)
        turns.say(1)
        ended_well(child)
        self.train(3, again[0])

    def child_uses_the_store(self):
        out, handle = np.empty(LEN, np.float32), self.store.pushpull("w", np.ones(LEN, np.float32), wait=False)
        store, parent = self.store, os.getpid()

        def work():
            for call in (
                lambda: store.init("x", out),
                lambda: store.push("w", out),
                lambda: store.pull("w", out),
                lambda: store.pushpull("w", out),
                lambda: store.broadcast("y", out, out),
                lambda: store.set_optimizer("sgd"),
                lambda: store.barrier(),
                lambda: store.wait_all(),
                lambda: store.stats(),
                lambda: handle.wait(),
                lambda: handle.done(),
            ):
                try:
                    call()
                except ringpull.UnavailableError as error:
                    text = str(error)
                    assert f"belongs to process {parent}; a forked child cannot use it\n" in text and "kind local" in text, text
                else:
                    raise AssertionError("a call has succeeded")
            store.report_failure("nobody is told this")
            assert (store.rank, store.num_workers) == (self.rank, self.ranks)
            if self.store.type == "dist_sync_mpi":
                try:
                    ringpull.create("dist_sync_mpi")
                except ringpull.UnavailableError as error:
                    assert str(error).startswith(f"MPI belongs to process {parent};"), error
                else:
                    raise AssertionError("a child has MPI")
            # The child prints a warning here, because the job has several processes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            own = ringpull.create("local")
            own.init("w", out)
            own.pushpull("w", np.ones(LEN, np.float32), out)
            assert (out == 1).all()

        child = in_child(work)
        handle.wait()
        ended_well(child)
        self.train()

    def parent_is_killed(self):
        self.train()
        if self.rank == 1:

            def work():
                # In a new session the launcher cannot end the child.
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                for stream in range(3):
                    os.dup2(null, stream)
                time.sleep(8)

            in_child(work)
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            self.train(2)
        except ringpull.PeerLostError as error:
            # Prints at once, before a launcher ends this rank.
            print(f"{error.peer} is lost after {time.monotonic() - begun - 0.5:.2f} s", flush=True)
        sys.exit(1)

    def child_is_terminated(self):
        """`terminate` of multiprocessing ends the child, and only the child."""
        child = multiprocessing.get_context("fork").Process(target=sleep)
        child.start()
        time.sleep(0.1)
        child.terminate()
        child.join(5)
        assert child.exitcode == -signal.SIGTERM, child.exitcode
        time.sleep(0.5)
        self.train()

    def multiprocessing(self):
        for method in ("fork", "forkserver", "spawn"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
            self.train()

    def exec(self):
        """A program that is started by exec gets no connection and no memory of the store."""

        def described(number):
            return os.readlink(f"/proc/self/fd/{number}")

        ended = subprocess.run(["/bin/sh", "-c", "ls -l /proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
        inherited = {line.split(" -> ")[1] for line in ended.stdout.splitlines() if " -> " in line}
        ours = {described(number) for number in after if number not in before}
        assert ours, "the store has opened nothing"
        assert not ours & inherited - {"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}, ours & inherited
        left = [described(number) for number in after if number not in before and os.get_inheritable(number)]
        assert not left, left
        self.train()

    # Signals.

    def handler(self, write):
        """A signal handler of the program writes a file for two seconds. The file must be complete at the end."""
        self.train(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(4)
        assert write.done, "the handler has not run"

    def is_ignored(self):
        self.train()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        self.train()

    def is_default(self):
        self.train()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        print("still here", flush=True)

    # Ends.

    def exits_at_once(self):
        self.train()
        if self.rank == 1:
            os._exit(3)
        begun = time.monotonic()
        try:
            self.train(2)
        except ringpull.PeerLostError as error:
            print(f"{error.peer} is lost after {time.monotonic() - begun:.2f} s", flush=True)
        sys.exit(1)

    def exits_in_a_step(self):
        """One rank ends while the other waits for its next push."""
        self.train()
        if self.rank == 1:
            self.store.push("w", np.ones(LEN, np.float32))
            sys.exit(0)
        self.store.push("w", np.ones(LEN, np.float32))
        begun = time.monotonic()
        try:
            self.train(1)
        except ringpull.PeerLostError as error:
            print(f"{error.peer} has ended after {time.monotonic() - begun:.2f} s", flush=True)
        sys.exit(1)

    def child_creates_a_store(self):
        def work():
            try:
                ringpull.create(self.store.type)
            except ringpull.UnavailableError as error:
                assert "a forked child cannot use it" in str(error), error
            else:
                raise AssertionError("it was created")

        ended_well(in_child(work))
        self.train()

    def ends_in_a_call(self):
        """Rank 0 ends while one of its threads waits in a call for rank 1."""
        self.store.init("late", np.zeros(LEN, np.float32))
        self.train()
        summed = np.ones(LEN, np.float32)
        if self.rank == 1:
            time.sleep(1)
            self.store.pushpull("late", summed)
            assert (summed == self.ranks).all()
            return
        threading.Thread(target=self.store.pushpull, args=("late", summed), daemon=True).start()
        while self.store.stats()["pushes"] <= 4:
            time.sleep(0.01)

    def ends_while_pushing(self):
        """Every rank ends while pushes are under way for which nobody has waited."""
        self.train()
        handles = [self.store.pushpull("w", np.ones(LEN, np.float32), wait=False) for _ in range(8)]
        del handles
        self.store.push("w", np.ones(LEN, np.float32))


    def second_store(self):
        """Another store of servers beside the first, and when the job has ended with it."""
        self.train()
        for close in self.store.barrier, self.store.close:
            close()
            try:
                ringpull.create(self.store.type)
            except ringpull.DisagreementError as error:
                assert f"worker {self.rank} of its job already" in str(error) and "create one store" in str(error), error
            else:
                raise AssertionError("a second store was made")


class Writing:
    """A handler that writes a checkpoint."""

    def __init__(self, path):
        self.path, self.done = path, False
        signal.signal(signal.SIGTERM, self)

    def __call__(self, *_):
        with self.path.open("w") as file:
            for part in range(20):
                print(part, file=file, flush=True)
                time.sleep(0.1)
            print("complete", file=file)
        self.done = True


def numbers():
    """The open descriptors, without those of pipes, terminals and folders, which may come from the launcher."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue
        if stat.S_ISSOCK(mode) or not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISDIR(mode)):
            found.append(int(name))
    return found


if __name__ == "__main__":
    kind, case = sys.argv[1:3]
    if case == "exec" and kind == "dist_sync_mpi":
        # MPI is initialised first, so that its own descriptors do not count.
        import mpi4py.MPI  # noqa: F401
    before = numbers()
    if case == "handler_before":
        path = Path(sys.argv[3], os.environ["OMPI_COMM_WORLD_RANK"])
        write = Writing(path)
    if case == "is_ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job = Job(kind)
    after = numbers()
    if case == "handler_after":
        write = Writing(Path(sys.argv[3], str(job.rank)))
    if case.startswith("handler"):
        job.handler(write)
    else:
        getattr(job, case)()
    print(f"rank {job.rank} is done", flush=True)
