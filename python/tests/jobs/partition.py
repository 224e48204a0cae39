"""Steps with exact sums for `scripts/partition`: ``partition.py KIND PHASE STEPS``. A rank says where it is, and how it ended.

PHASE ``agree``: ranks call their keys in another order in each step, so each call is announced; ``frozen``: in one order;
``large``: each step sums one key of 64 MB; ``init``: keys are initialised, one after another; ``end``: steps end soon, and ranks
leave one after another.
"""

import random
import sys
import time

import numpy as np

import ringpull

kind, phase, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
begun = time.monotonic()


def say(words):
    print(f"{time.time():.2f} {words}", flush=True)


try:
    store = ringpull.create(kind)
    rank, size = store.rank, store.num_workers
    say(f"rank {rank} is there")
    if phase == "init":
        for number in range(40 * steps):
            store.init(f"early{number}", np.ones(100, np.float32))
            time.sleep(0.0005)
    keys, length, said = (list(range(6)), 20000, 20) if phase != "large" else ([0], 16_000_000, 2)
    for key in keys:
        store.init(f"key{key}", np.zeros(length, np.float32))
    order = random.Random(rank)
    for step in range(steps):
        if phase == "agree":
            order.shuffle(keys)
        arrays = {key: np.full(length, key + step % 7 + rank, np.float32) for key in keys}
        for handle in [store.pushpull(f"key{key}", array, wait=False) for key, array in arrays.items()]:
            handle.wait()
        for key, array in arrays.items():
            assert (array == size * (key + step % 7) + size * (size - 1) / 2).all(), (key, step)
        if step == said:
            say(f"rank {rank} steps")
        time.sleep(0.01)
    say(f"rank {rank} ends")
    if phase == "end":
        time.sleep(3 * rank)
    store.close() if hasattr(store, "close") else None
    say(f"rank {rank} is done")
except ringpull.KVStoreError as error:
    say(f"error {type(error).__name__} {' '.join(str(error).split())}")
    raise SystemExit(3) from None
