"""Runs an example of ours, and makes its last rank sleep in step 5: ``late_example.py SECONDS EXAMPLE ARGUMENTS``."""

import os
import runpy
import sys
import time

seconds, example, *arguments = sys.argv[1:]
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or os.environ.get("DMLC_WORKER_ID") or 0)
ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE") or os.environ.get("DMLC_NUM_WORKER") or 1)

if "mxnet" in example:
    import ringpull.mxnet  # noqa: F401
    from mxnet.gluon import Trainer as Stepping

    name = "step"
else:
    from ringpull.torch import DistributedOptimizer as Stepping

    name = "_step_combined"

step, count = getattr(Stepping, name), 0


def late_step(self, *words, **named):
    global count
    count += 1
    if count == 5 and rank == ranks - 1:
        time.sleep(float(seconds))
    return step(self, *words, **named)


setattr(Stepping, name, late_step)
sys.argv = [example, *arguments]
runpy.run_path(example, run_name="__main__")
print(f"rank {rank} made {count} steps", flush=True)
