"""Tests MPI's messages if a link breaks in the middle of a long sum, by `ringpull rehearse` on emulated hosts."""

import json
import os
import subprocess
import sys

import pytest
from ranks import HERE, ROOT, environment, ringpull_binary

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="emulated hosts need root"),
]

FAULTS = """
- {cut: h2, for: 20s, expect: goes-on}
- {cut: h2, expect: ends}
- {block: h2, expect: ends}
"""


def test_messages_of_mpi_are_repeated_by_tcp_or_the_job_ends_with_an_error(tmp_path):
    words = [ROOT / "scripts/own-hosts", ringpull_binary(), "rehearse", "-n", 2, "--hosts", 2, "--faults", "-", "--out", tmp_path, "--format", "json"]
    program = [sys.executable, HERE / "jobs/nemesis.py", "dist_sync_mpi", 20, 16_000_000]
    command = [str(word) for word in [*words, "--", *program]]
    # A peer counts as lost after half a minute.
    done = subprocess.run(command, input=FAULTS, capture_output=True, text=True, timeout=600, check=False, env=environment(RINGPULL_SILENCE=30))
    assert done.returncode == 0 and "WRONG sum" not in done.stdout, done.stdout + done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert all("is lost" in job["said"]["error"] for job in jobs[2:]), done.stdout
