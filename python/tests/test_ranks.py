"""Tests that the output of each rank of a job is read separately."""

import pytest
from ranks import launch, mpi

#: A program that writes its line in two pieces, which a launcher may mix with another rank's line, and an error without a newline.
PIECES = """
import os, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or os.environ["DMLC_WORKER_ID"]
for piece in f"rank {rank} ", "has written\\n":
    os.write(1, piece.encode())
sys.stderr.write(f"error {rank}")
sys.exit(3 if rank == "1" else 0)
"""


def test_what_a_rank_writes_is_read_by_itself():
    done = mpi(2, "-c", PIECES)
    assert [rank.out for rank in done.ranks] == ["rank 0 has written\n", "rank 1 has written\n"], f"{done}"
    assert [rank.err for rank in done.ranks] == ["error 0", "error 1"] and done.status == 3, f"{done}"
    assert "has written" not in done.launcher and "rank 1 (stderr): error 1" in f"{done}".splitlines(), f"{done}"


def test_what_a_worker_writes_is_read_by_itself():
    program = f"import os\nif os.environ['DMLC_ROLE'] != 'worker': print('serves'); raise SystemExit\n{PIECES}"
    done = launch(2, 1, "-c", program)
    assert [rank.text for rank in done.ranks] == [f"rank {rank} has written\nerror {rank}" for rank in range(2)], f"{done}"
    assert {name: printed.out for name, printed in done.others.items()} == {"scheduler": "serves\n", "server0": "serves\n"}, f"{done}"


def test_a_job_that_hangs_is_killed_and_says_what_each_rank_had_written():
    with pytest.raises(pytest.fail.Exception, match="(?s)was not done after 3 s.*rank 0: before.*rank 1: before"):
        mpi(2, "-c", "import threading; print('before', flush=True); threading.Event().wait()", deadline=3)
