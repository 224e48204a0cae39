"""PyTorch on our stores."""

import re

import pytest
from conftest import HAS_IMAGES, ROOT, job, mpi

pytest.importorskip("torch")


@pytest.mark.parametrize("how", ["optimizer", "hook"])
def test_ranks_end_where_one_process_with_the_whole_batch_ends(how):
    assert job(2, "torch_values", how).count("is done") == 2


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed")
def test_the_example_ends_with_equal_weights():
    short = ["--steps", 4, "--epochs", 1, "--limit-train", 512, "--limit-test", 200]
    status, output = mpi(2, ROOT / "examples/torch/train.py", "--kv-store", "dist_sync_mpi", *short)
    hashes = re.findall(r"rank \d of 2 weights (\w+)", output)
    assert status == 0 and len(hashes) == 2 and len(set(hashes)) == 1, output


