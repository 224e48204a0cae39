"""Runs a script for Horovod. One rank is killed before it computes the loss of its eighth batch.

    in_place_horovod.py SCRIPT ARGS...
"""

import os
import signal
import sys

import torch
from ringpull.elastic import generation
from ringpull.horovod.__main__ import main

computed = 0
cross_entropy = torch.nn.functional.cross_entropy


def cross_entropy_or_death(*words, **named):
    global computed
    computed += 1
    if computed == 8 and generation() == 0 and os.environ["HOROVOD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(*words, **named)


torch.nn.functional.cross_entropy = cross_entropy_or_death
if __name__ == "__main__":
    sys.argv = [__file__, *sys.argv[1:]]
    main()
