"""Runs PyTorch's own tests of process groups with the backend `ringpull`. All ranks run the same tests in the same order.

    mpirun -n 2 python torch_suite.py FOLDER NAME...

FOLDER is shared by all ranks, and has the folders that PyTorch's tests need. `RINGPULL_TESTS_AS=gloo`
runs the tests that PyTorch has only for the backend gloo; the process groups are still ours. Each rank prints a line for
each test: its name, `ok`, `skipped` or `failed`, and the reason. A test that fails ends the rank and so the
job, because the ranks would no longer be in the same test.
"""

import faulthandler
import os
import sys
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

folder = sys.argv[1]
rank, size = (int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
os.environ |= {
    "BACKEND": os.environ.get("RINGPULL_TESTS_AS", "ringpull"),
    "WORLD_SIZE": str(size),
    "RANK": str(rank),
    "TEMP_DIR": folder,
}

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

# The backend's features, by the names in PyTorch's tests.
for feature in ("ddp", "subgroup"):
    common_distributed.DistTestCases.backend_feature[feature].add("ringpull")
if size >= 4:
    # These tests need only groups of ranks 1 and 2, but for backends other than MPI PyTorch requires eight ranks.
    common_distributed.skip_if_small_worldsize = lambda test: test

from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    CUSTOM_PG_TIMEOUT,
    Barrier,
    DistributedTest,
)


class Suite(TestCase, DistributedTest._DistTestBase):
    """PyTorch's tests, in a process that is already a rank."""

    world_size = str(size)

    @property
    def rank(self):
        return rank

    @property
    def file_name(self):
        return f"{folder}/init_dir/{self._testMethodName}"

    @property
    def init_method(self):
        return "env://"


def run(name):
    """Runs a test. Returns its outcome and the reason."""
    if getattr(getattr(Suite, name), "__unittest_skip__", False):
        return f"skipped {getattr(Suite, name).__unittest_skip_why__}"
    dist.init_process_group("ringpull", timeout=timedelta(seconds=CUSTOM_PG_TIMEOUT.get(name, 60)))
    if rank == 0:
        Barrier.init()
    Barrier.barrier_id = 0
    dist.barrier()
    suite = Suite(name)
    try:
        suite.setUp()
        getattr(suite, name)()
        suite.tearDown()
    except unittest.SkipTest as skip:
        outcome = f"skipped {skip}"
    except SystemExit as end:
        (outcome,) = [
            f"skipped {skip.message}" for skip in common_distributed.TEST_SKIPS.values() if skip.exit_code == end.code
        ] or [f"failed with exit code {end.code}"]
    except Exception as error:
        traceback.print_exc()
        outcome = f"failed {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    else:
        outcome = "ok"
    if not outcome.startswith("failed"):
        dist.barrier()
        dist.destroy_process_group()
    return outcome


for needed in ("barrier", "test_dir", "init_dir"):
    Path(folder, needed).mkdir(exist_ok=True)
faulthandler.dump_traceback_later(150, repeat=True)
for name in sys.argv[2:]:
    outcome = run(name)
    print(name, " ".join(outcome.split()), flush=True)
    if outcome.startswith("failed"):
        os._exit(1)
