"""A program that ends while a thread of its store gives the memory of the last sums back. In Python this takes the number of seconds given
as argument."""

import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import test_devices

import ringpull

CPU = 1
begun = threading.Event()


@test_devices.DELETER
def delete_slowly(address):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        time.sleep(float(sys.argv[1]))
    del test_devices.alive[address]


test_devices.delete = delete_slowly
store = ringpull.create("dist_sync_mpi")
store.init("w", np.zeros(5, np.float32))
for _ in range(4):
    store.pushpull("w", test_devices.full(1, code=CPU), wait=False, keep=False)
assert begun.wait(10), "no thread of the store's has given it back"
