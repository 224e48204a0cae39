"""Trains a small network on Fashion-MNIST for a time, for `ringpull rehearse --together`: ``soak.py KIND SECONDS CHECKPOINTS``.

The store applies the optimizer. In each step the value of the key "control" is compared with the value that follows from the
optimizer's rule, and at times rank 0 writes checkpoints into the folder CHECKPOINTS. At times a rank forks children that write
arrays and end in three ways. At the end no rank may have grown between the second and the last quarter of the time: the median of its
resident memory may grow by at most 2 % and 2 MiB, and the medians of its numbers of descriptors and threads must not grow.
Events are printed to stdout, each line after its time.
"""

import gzip
import os
import re
import signal
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import ringpull

DATA = next(
    (folder for folder in (Path("/usr/share/datasets/fashion-mnist"), Path(__file__).resolve().parents[3] / ".deps/usr/share/datasets/fashion-mnist") if folder.is_dir()),
    None,
)
RATE, MOMENTUM, BATCH = 0.125, 0.5, 16
#: The number of steps between two checkpoints, and the seconds between two forks of a rank and between two samples of its size.
CHECKPOINTS, FORK, SAMPLE = 40, 60, 10
#: The seconds of rest after each step, which leave the processors to other programs.
REST = 0.5
SHAPES = {"w1": (784, 24), "b1": (24,), "w2": (24, 10), "b2": (10,), "control": (64,), "stop": (1,)}


def say(words):
    print(f"{time.time():.2f} {words}", flush=True)


def images(part, count):
    def read(name, offset, kind):
        with gzip.open(DATA / f"{part}-{name}-ubyte.gz") as file:
            return np.frombuffer(file.read(offset + count * (784 if kind else 1))[offset:], np.uint8)

    return read("images-idx3", 16, 1).reshape(-1, 784).astype(np.float32) / 255 - 0.3, read("labels-idx1", 8, 0).astype(np.int64)


def scores(weights, some):
    hidden = np.maximum(some @ weights["w1"] + weights["b1"], 0)
    return hidden, hidden @ weights["w2"] + weights["b2"]


def gradients(weights, some, labels, out):
    """Computes this rank's gradients, divided by the number of ranks: their sum over the ranks is the mean over all batches."""
    hidden, output = scores(weights, some)
    error = np.exp(output - output.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels) * store.num_workers
    back = (error @ weights["w2"].T) * (hidden > 0)
    np.matmul(some.T, back, out=out["w1"])
    np.matmul(hidden.T, error, out=out["w2"])
    back.sum(axis=0, out=out["b1"])
    error.sum(axis=0, out=out["b2"])


def added(rank, step):
    """The gradient of a rank for the control key in a step. It has whole numbers that change from step to step."""
    return (-1.0) ** step * (rank + 1) * (np.arange(64, dtype=np.float32) % 5 + step % 7)


def save(path, step, weights, momentum):
    """Replaces the checkpoint. If that fails, prints the reason, and the old checkpoint stays."""
    states, new = path.with_suffix(".states"), path.with_suffix(".new")
    try:
        store.save_optimizer_states(states, True)
        kept = np.frombuffer(states.read_bytes(), np.uint8)
        with new.open("wb") as file:
            np.savez(file, step=step, momentum=momentum, states=kept, **weights)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        say(f"checkpoint of step {step}")
    except OSError as error:
        say(f"no checkpoint of step {step}: {' '.join(str(error).split())}")
    finally:
        states.unlink(missing_ok=True)
        new.unlink(missing_ok=True)


def fork(arrays):
    """Forks children that write inherited arrays and end by exit, by `os._exit` and by a signal."""
    before = {name: array.copy() for name, array in arrays.items()}
    children = []
    for end in range(3):
        pid = os.fork()
        if pid:
            children.append(pid)
            continue
        for array in arrays.values():
            array *= 7
        try:
            store.pull("stop", np.zeros(1, np.float32))
            os._exit(9)
        except ringpull.UnavailableError:
            pass
        if end == 0:
            sys.exit(0)
        if end == 1:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    ends = [os.waitpid(pid, 0)[1] for pid in children]
    alike = all((array == before[name]).all() for name, array in arrays.items())
    if ends != [0, 0, signal.SIGKILL] or not alike:
        sys.exit(f"rank {rank} forked wrongly: {ends} {alike}")


class Size:
    """The memory (KiB) and the numbers of descriptors and threads of this process."""

    def __init__(self):
        self.samples, self.next = [], 0.0

    def sample(self):
        if time.time() >= self.next:
            self.next = time.time() + SAMPLE
            found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE))
            self.samples.append((int(found["VmRSS"]), len(os.listdir("/proc/self/fd")), int(found["Threads"])))

    def growth(self):
        quarter = len(self.samples) // 4
        grown = []
        for column, unit in enumerate(("KiB", "descriptors", "threads")):
            values = [sample[column] for sample in self.samples]
            if quarter >= 5:
                early, late = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
                if late > early + (max(0.02 * early, 2048) if column == 0 else 0):
                    grown.append(f"{unit}: {early:.0f} to {late:.0f}")
        return grown


def main(seconds, path):
    weights = {name: ringpull.zeros(shape) for name, shape in SHAPES.items()}
    sums = {name: ringpull.zeros(shape) for name, shape in SHAPES.items()}
    random = np.random.RandomState(1)
    for name in "w1", "w2":
        weights[name][:] = random.normal(size=SHAPES[name]) / np.sqrt(SHAPES[name][0])
    step, momentum = 0, np.zeros(64, np.float32)
    store.set_optimizer(ringpull.SGD(learning_rate=RATE, momentum=MOMENTUM))
    saved = np.load(path) if path.exists() else None
    if saved is not None:
        step, momentum = int(saved["step"]), saved["momentum"]
        for name, array in weights.items():
            array[:] = saved[name]
    for name, array in weights.items():
        store.init(name, array)
    if saved is not None:
        states = path.with_name(f"states{rank}")
        states.write_bytes(saved["states"].tobytes())
        store.load_optimizer_states(states)
        states.unlink()
    say(f"rank {rank} begins at step {step}")
    all_images, all_labels = images("train", 20000)
    mine, labels = all_images[rank :: store.num_workers].copy(), all_labels[rank :: store.num_workers].copy()
    del all_images, all_labels
    test_images, test_labels = images("t10k", 500)
    size, names = Size(), list(SHAPES)
    begun = time.time()
    forked = begun + rank * FORK / store.num_workers
    while True:
        chosen = np.random.RandomState(step).randint(len(labels), size=BATCH)
        gradients(weights, mine[chosen], labels[chosen], sums)
        sums["control"][:] = added(rank, step)
        sums["stop"][:] = rank == 0 and time.time() - begun > seconds
        control = weights["control"].copy()
        store.pushpull(names, [sums[name] for name in names], out=[weights[name] for name in names])
        momentum = MOMENTUM * momentum - RATE * sum(added(each, step) for each in range(store.num_workers))
        if not np.allclose(weights["control"], control + momentum, atol=1e-3):
            say(f"WRONG sum in step {step}: {weights['control'] - control - momentum}")
            sys.exit(4)
        # The momentum is taken from the store's values, because rounding errors would add up otherwise.
        momentum = weights["control"] - control
        step += 1
        if step % 500 == 0 and rank == 0:
            right = (scores(weights, test_images)[1].argmax(axis=1) == test_labels).mean()
            say(f"step {step} accuracy {100 * right:.1f} %")
        if time.time() - forked > FORK:
            forked = time.time()
            fork(weights | sums)
        size.sample()
        if weights["stop"][0]:
            break
        if step % CHECKPOINTS == 0 and rank == 0:
            save(path, step, weights, momentum)
        time.sleep(REST)
    store.close()
    if size.growth():
        sys.exit(f"rank {rank} has grown in {', '.join(size.growth())}")
    say(f"rank {rank} is done at step {step}, with KiB, descriptors and threads of {size.samples[0]} at first and {size.samples[-1]} at last")


rank = -1
try:
    store = ringpull.create(sys.argv[1])
    rank = store.rank
    main(float(sys.argv[2]), Path(sys.argv[3]) / "checkpoint")
except ringpull.KVStoreError as error:
    say(f"rank {rank} error {type(error).__name__} {' '.join(str(error).split())}")
    raise SystemExit(3) from None
