"""Drops a store that is not closed while its last call is under way.

    ringpull launch -n 1 -s 1 -- python dropped.py KIND
"""

import sys

import numpy

import ringpull


def train(kind):
    store = ringpull.create(kind)
    gradient = numpy.ones(4_000_000, numpy.float32)
    store.init("w", gradient)
    store.pushpull("w", gradient, wait=False)


train(sys.argv[1])
print("dropped")
