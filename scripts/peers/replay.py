"""The common part of this folder's programs: its text is put before the text of each.

Inputs and checks are those of `ringpull bench`: element e of rank r in iteration i is (e + i + r) mod m, so the sum over the ranks has
a closed form. A step of training is replayed as in `ringpull bench train`, where it is explained.
"""
import statistics
import sys
import time

import numpy

#: The backward pass's part of a step's computing.
BACKWARD = 2 / 3


class Patterns:
    """A rank's inputs and their expected sums, both cut from strips that are made once."""

    def __init__(self, rank, ranks, longest):
        self.rank, self.period = rank, min(16, (1 << 24) // ranks) + 1
        ramp = numpy.arange(self.period)
        sums = sum((ramp + other) % self.period for other in range(ranks))
        self.inputs, self.sums = (numpy.resize(row, longest + self.period).astype(numpy.float32) for row in (ramp, sums))

    def of(self, length, iteration):
        """Returns this rank's input of `length` elements."""
        phase = (iteration + self.rank) % self.period
        return self.inputs[phase : phase + length]

    def sum_of(self, length, iteration):
        """Returns the sum of all ranks' inputs."""
        phase = iteration % self.period
        return self.sums[phase : phase + length]


class Device:
    """A device that computes by the clock, one piece after the other. The caller's own work during a piece costs no additional time."""

    def __init__(self):
        self.due = time.perf_counter()

    def work(self, seconds):
        """Computes for `seconds`, counted from the planned end of the previous piece."""
        self.due += seconds
        time.sleep(max(0.0, self.due - time.perf_counter()))

    def wait_for(self, call, *arguments):
        """Leaves the device idle until the call returns."""
        asked = time.perf_counter()
        call(*arguments)
        self.due += time.perf_counter() - asked


def traffic():
    """Returns the bytes that this host's interfaces, except the loopback, have sent and received."""
    sent = received = 0
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, colon, counters = line.partition(":")
            if colon and name.strip() != "lo":
                fields = counters.split()
                sent, received = sent + int(fields[8]), received + int(fields[0])
    return numpy.array([sent, received], dtype=numpy.float64)


def add_train_arguments(arguments):
    """Adds the options that describe a replayed step."""
    arguments.add_argument("--layers", help="replay training: FIRST:END:PART of each layer's keys and part of the computing")
    arguments.add_argument("--compute", type=float, help="seconds that a step computes for")
    arguments.add_argument("--batch", type=int, help="images of a rank in a step")


def replay(peer, lens, options):
    """Replays steps, and returns the fields of a record that do not depend on the peer.

    A step begins with the backward pass, layer by layer from the last: compute, then begin the sums of the layer's keys. Then comes the
    forward pass from the first layer: wait for the layer's sums, check them, compute. If `peer.waits_for_all`, the step waits for all
    sums between the two passes.
    """
    layers = []
    for words in options.layers.split(","):
        first, end, part = words.split(":")
        layers.append((range(int(first), int(end)), float(part) * options.compute))
    patterns = Patterns(peer.rank, peer.ranks, max(lens))
    peer.barrier()
    device, ends, before, begun = Device(), [], None, time.perf_counter()
    for step in range(options.warmup + options.iters):
        if step == options.warmup:
            before = traffic()
            ends.append(time.perf_counter() - begun)
        for index, (keys, seconds) in reversed(list(enumerate(layers))):
            for key in keys:
                peer.write(key, patterns.of(lens[key], step))
            device.work(BACKWARD * seconds)
            for key in reversed(keys):
                peer.begin(key, -index)
        if peer.waits_for_all:
            device.wait_for(peer.wait, range(len(lens)))
        for keys, seconds in layers:
            if not peer.waits_for_all:
                device.wait_for(peer.wait, keys)
            for key in keys:
                if not numpy.array_equal(peer.read(key), patterns.sum_of(lens[key], step)):
                    sys.exit(f"{peer.name}: wrong sum of key {key} on rank {peer.rank} in step {step}")
            device.work((1 - BACKWARD) * seconds)
        if step >= options.warmup:
            ends.append(time.perf_counter() - begun)
    megabytes = (traffic() - before) * 1e-6 / options.iters
    # A step's time is from the last rank's end of the previous step to the last rank's end of this step, since
    # the last rank is not always the same.
    last = peer.largest([*ends, *megabytes])
    times, payload = numpy.diff(last[: len(ends)]).tolist(), 4 * sum(lens)
    median = statistics.median(times)
    return {
        "op": "train", "ranks": peer.ranks, "hosts": peer.ranks, "bytes": payload, "dtype": "f32", "seconds": times, "median_s": median,
        "bound_s": None, "ratio_to_bound": None, "algbw_Bps": payload / median,
        "busbw_Bps": payload / median * 2 * (peer.ranks - 1) / peer.ranks, "verified": True,
        "host_bytes": int(max(last[len(ends) :]) * 1e6) or None,
        "train": {
            "compute_s": options.compute, "exposed_s": median - options.compute, "efficiency": options.compute / median,
            "shortest_s": None, "batch": options.batch, "images_per_s": options.batch and options.batch / median,
        },
    }


