"""PyTorch on our stores."""

import re

import pytest
from ranks import HAS_IMAGES, ROOT, job, mpi

pytest.importorskip("torch")


@pytest.mark.parametrize("how", ["optimizer", "hook"])
def test_ranks_end_where_one_process_with_the_whole_batch_ends(how):
    for rank, printed in enumerate(job(2, "torch_values", how).ranks):
        assert printed.out == f"rank {rank} is done\n"


@pytest.mark.parametrize("ranks", [2, 3])
def test_averages_of_halves_are_right_where_their_sums_are_too_large(ranks):
    for rank, printed in enumerate(job(ranks, "torch_halves").ranks):
        assert printed.out == f"rank {rank} is done\n"


@pytest.mark.skipif(not HAS_IMAGES, reason="Fashion-MNIST is not installed: scripts/setup")
def test_the_example_ends_with_equal_weights():
    short = ["--steps", 4, "--epochs", 1, "--limit-train", 512, "--limit-test", 200]
    done = mpi(2, ROOT / "examples/torch/train.py", "--kv-store", "dist_sync_mpi", *short)
    hashes = [re.findall(rf"^rank {rank} of 2 weights (\w+)$", printed.out, re.MULTILINE) for rank, printed in enumerate(done.ranks)]
    assert done.status == 0 and len(hashes[0]) == 1 and hashes[0] == hashes[1], f"{done}"
