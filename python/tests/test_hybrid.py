"""Tests `dist_hybrid` from Python: the keys that ranks and servers keep, and errors of each of the two parts."""

import sys

import pytest

from ranks import HERE, ringpull_binary, start, well


def hybrid(workers, servers, *words, **more):
    """A job of `jobs/hybrid.py` with ranks and servers."""
    launcher = [ringpull_binary(), "launch", "-n", workers, "-s", servers, "--hybrid", "--launcher", "local", "--"]
    return start(launcher, workers, [sys.executable, HERE / "jobs/hybrid.py", *words], **more)


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (3, 2)])
def test_dense_keys_are_on_ranks_and_rows_on_servers_and_the_states_of_both_are_saved(workers, servers):
    done = well(hybrid(workers, servers))
    for rank, printed in enumerate(done.ranks):
        assert printed.out.endswith(f"rank {rank} of {workers} is done\n"), f"{done}"


@pytest.mark.parametrize(("fault", "words"), [("ranks", "alike"), ("servers", "is lost: its connection closed")])
def test_an_error_of_one_half_is_one_error_on_every_rank(fault, words):
    done = hybrid(3, 2, fault)
    assert done.status not in (0, None), f"{done}"
    for rank, printed in enumerate(done.ranks):
        # The call that waits raises it, or already `init` if the error comes early.
        assert f"rank {rank}" in printed.text and words in printed.text, f"{done}"
