"""A fault under MXNet. Prints the error of reading the output, and the store's next error."""

import os
import sys

import ringpull.mxnet  # noqa: F401
import mxnet as mx

case = sys.argv[1]
store = mx.kv.create("dist_sync_mpi")
last = store.num_workers - 1
shape = (4,) if case != "sizes" or store.rank == 0 else (5,)
try:
    value = mx.nd.ones(shape)
    store.init("a", value)
    if case == "gone" and store.rank == last:
        mx.nd.waitall()
        os._exit(0)
    if case != "stalled" or store.rank != last:
        store.pushpull("a", value)
    elif case == "stalled":
        store.barrier()
    value.asnumpy()
    if case == "sizes":
        mx.nd.waitall()
except mx.MXNetError as error:
    print(f"rank {store.rank}: MXNetError {' '.join(str(error).split())}", flush=True)
try:
    store.push("a", mx.nd.ones(shape))
except ringpull.KVStoreError as error:
    print(f"rank {store.rank}: and then KVStoreError {type(error).__name__}", flush=True)
os._exit(0)
