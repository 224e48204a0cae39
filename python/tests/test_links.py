"""MPI's messages when a link or a connection breaks in the middle of a long sum: `scripts/partition` on
emulated hosts."""

import os
import subprocess

import pytest
from ranks import ROOT, ringpull_binary

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root"),
]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("20 s flap", "ended well after"),
        ("link down", "PeerLostError after"),
        ("RST of MPI's connections", "after"),
    ],
)
def test_messages_of_mpi_are_repeated_by_tcp_or_the_job_ends_with_one_error(fault, outcome):
    words = [ROOT / "scripts/partition", "--ringpull", ringpull_binary(), "--only", f"dist_sync_mpi, {fault}, large sum"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and outcome in done.stdout and "WRONG" not in done.stdout, done.stdout + done.stderr
