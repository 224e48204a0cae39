"""Tests `ringpull top` with timelines of Python programs."""

import json
import subprocess

import pytest
from ranks import job, ringpull_binary


@pytest.mark.parametrize("how", ["numpy", pytest.param("torch", marks=pytest.mark.long), "mxnet"])
def test_a_rank_that_others_wait_for_is_the_straggler_and_every_step_counts(how, tmp_path):
    if how != "numpy":
        pytest.importorskip(how)
    binary = ringpull_binary()
    job(2, "late", how, RINGPULL_TIMELINE=tmp_path / "trace.json")
    files = [tmp_path / f"trace.{rank}.json" for rank in range(2)]
    said = subprocess.run([binary, "top", *files, "--format", "json"], capture_output=True, text=True, check=True)
    early, late = json.loads(said.stdout)["ranks"]
    # There are nine times from the first of ten steps to the last. The other ranks wait during most of the 60 ms.
    assert (early["steps"], late["steps"]) == (9, 9), said.stdout
    for share in early["share"], late["share"]:
        assert share["step_s"] >= 0.06, said.stdout
    assert early["share"]["straggler_s"] >= 0.5 * early["share"]["step_s"] and late["awaited_s"] >= 0.03, said.stdout
    assert late["share"]["straggler_s"] <= 0.2 * late["share"]["step_s"], said.stdout
