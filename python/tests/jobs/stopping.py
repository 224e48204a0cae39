"""Training that one rank is asked to stop. Prints the step at which each rank stops, and checks the number of messages.

    stopping.py KIND WHO

WHO is one of four cases. `signal`: the last rank gets two signals in the middle. `behind`: every rank but the first wants to stop, each at
another step, while the first is slow. `last`: the last rank wants to stop in the last step. `nobody`: no rank stops.
"""

import os
import signal
import sys
import threading

import numpy

import ringpull

kind, who = sys.argv[1:]
STEPS, ASKED = 120, 60
heard: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
ringpull.stop_on(signal.SIGTERM, signal.SIGUSR1)

store = ringpull.create(kind)
rank, last = store.rank, store.num_workers - 1
gradient = numpy.ones(1000, numpy.float32)
store.init("w", gradient)
messages: dict[int, int] = {}
stopped = None
for step in range(STEPS):
    store.pushpull("w", gradient * 0)
    messages[step] = store.stats()["control_messages"]
    if who == "signal" and rank == last and step in (ASKED, ASKED + 1):
        os.kill(os.getpid(), signal.SIGTERM)
    if who == "behind" and rank == 0 and step in (ASKED, ASKED + 1):
        # Meanwhile the other ranks have called the next sum.
        threading.Event().wait(0.05)
    wants = (who == "behind" and rank > 0 and step >= ASKED + rank) or (who == "last" and rank == last and step == STEPS - 1)
    if ringpull.should_stop(wants):
        stopped = step
        break

if who == "signal":
    assert heard == ([signal.SIGTERM] * len(heard)) and (len(heard) >= 1) == (rank == last), heard
# In a frozen cycle no control messages are sent, although should_stop is called in every step.
assert messages[ASKED - 1] == messages[ASKED - 20], messages
if stopped is not None:
    # should_stop stays True, and sums still work.
    assert ringpull.should_stop()
    store.pushpull("w", gradient)
    assert (gradient == store.num_workers).all()
    if rank == 0:
        print(f"saves step {stopped}")
print(f"stopped at {stopped}")
