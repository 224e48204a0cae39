"""Communicators under `mpirun`, in shared memory and by messages."""

import pytest
from ranks import FOUR, HERE, all_done, job, mpi, well

WHERE = {"shared": "1", "apart": "0"}


@pytest.mark.parametrize("ranks", [1, 2, 3, FOUR])
@pytest.mark.parametrize("where", WHERE)
def test_collectives_keep_their_promises(ranks, where):
    all_done(job(ranks, "collectives", RINGPULL_SHARED_MEMORY=WHERE[where]))


def test_collectives_of_torch_tensors():
    pytest.importorskip("torch")
    all_done(job(2, "collectives", "torch"))


#: The code of each of three ranks, the ranks that wait in vain, and the exception and the words that these get.
FAULTS = {
    "late": ("time.sleep(60) if comm.rank == 0 else comm.allreduce(ones, name='late').wait()", [1, 2], "StalledError", "rank(s) [0] have not called it"),
    "late in a set": ("half.allreduce(ones).wait() if comm.rank == 0 else busy(60)", [0], "StalledError", "collective of ranks [0, 1]"),
    "gone": ("os._exit(3) if comm.rank == 0 else comm.allgather(ones).wait()", [1, 2], "PeerLostError", "rank 0"),
    "gone from a set": (
        # Rank 0 sleeps for a second, so that rank 1 waits already when rank 0 ends.
        "(busy(1), os._exit(3)) if comm.rank == 0 else half.allgather(ones).wait() if comm.rank == 1 else busy(60)",
        [1],
        "PeerLostError",
        "collective of ranks [0, 1]",
    ),
    "message of another length": (
        "comm.recv(numpy.zeros(4)).wait() if comm.rank == 0 else comm.send(ones, 0).wait() if comm.rank == 1 else None",
        [0, 1],
        "DisagreementError",
        "rank 1 has send and recv of f64 of shape [3]",
    ),
    "message of nobody": ("comm.recv(ones).wait()", [0, 1, 2], "DeadlockError", "from any rank to rank 0, tag 0"),
    "message that is late": (
        "comm.recv(ones).wait() if comm.rank == 0 else busy(60)",
        [0],
        "StalledError",
        "from any rank to rank 0, tag 0",
    ),
    "sender gone": (
        "comm.recv(ones).wait() if comm.rank == 0 else (busy(1), os._exit(3)) if comm.rank == 1 else busy(60)",
        [0],
        "PeerLostError",
        "rank 1",
    ),
    "circle": (
        "busy(60) if comm.rank == 2 else (half if comm.rank else flah).allreduce(ones).wait()",
        [0, 1],
        "DeadlockError",
        "collective of ranks [1, 0]",
    ),
}

PROGRAM = """
import os, sys, time, numpy, ringpull
comm = ringpull.communicator()
half, flah = comm.split([0, 1]), comm.split([1, 0])
ones = numpy.ones(3)
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10**5))
try:
    WHAT
except ringpull.KVStoreError as error:
    print(type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_whoever_waits_is_told_what_went_wrong(fault):
    what, waiting, name, words = FAULTS[fault]
    done = mpi(3, "-c", PROGRAM.replace("WHAT", what), RINGPULL_TIMEOUT=20 if name == "DeadlockError" else 2, deadline=50)
    for rank in waiting:
        assert done.ranks[rank].out.startswith(name) and words in done.ranks[rank].out, f"{done}"


def test_every_element_type_travels_and_is_reduced_where_that_makes_sense():
    done = well(mpi(2, HERE / "jobs/element_types.py"))
    assert [printed.out for printed in done.ranks] == ["rank 0 is done\n", "rank 1 is done\n"], f"{done}"


@pytest.mark.parametrize(("ranks", "case"), [(2, "groups"), (1, "numbers")])
def test_arguments_that_cannot_be_right_are_errors_that_say_so(ranks, case):
    done = well(mpi(ranks, HERE / "jobs/arguments.py", case))
    assert all(printed.out.endswith(" is done\n") for printed in done.ranks), f"{done}"
