"""Tests programs with a store that fork, exec, get signals, or end in the middle of an operation: `jobs/processes.py`."""

import re

import pytest
from ranks import HERE, launch, mpi, well

JOB = HERE / "jobs/processes.py"

#: Cases that an MPI job and a job with servers must survive in the same way.
FORKS = ["child_exits", "child_drops_the_store", "child_uses_the_store", "child_creates_a_store", "child_is_terminated", "multiprocessing"]


def quietly(done):
    """Checks that every rank has reached its end, and printed nothing else."""
    for rank, printed in enumerate(well(done).ranks):
        assert printed.text == f"rank {rank} is done\n", f"{done}"


@pytest.mark.parametrize("case", [*FORKS, "child_writes_an_array", "ends_while_pushing"])
def test_a_job_goes_on_whatever_a_forked_child_does(case):
    quietly(mpi(2, JOB, "dist_sync_mpi", case))


@pytest.mark.parametrize("case", FORKS)
def test_a_job_with_servers_goes_on_whatever_a_forked_child_does(case):
    quietly(launch(2, 1, JOB, "dist_sync", case))


@pytest.mark.parametrize("case", ["after", "before"])
def test_a_child_of_a_rank_does_not_take_its_place_in_the_job(case):
    """Such a child once waited in MPI_Init for the rest of the job."""
    done = well(mpi(2, HERE / "jobs/children.py", case))
    assert [printed.out for printed in done.ranks] == ["ranks 2\n"] * 2, f"{done}"


def test_a_child_of_a_worker_is_told_whose_it_is():
    done = well(launch(2, 1, HERE / "jobs/children.py", "worker"))
    assert [printed.out for printed in done.ranks] == ["ranks 2\n"] * 2, f"{done}"


def test_a_script_that_makes_its_store_while_it_is_imported_works_by_every_start_method():
    """The script's children import it too. They once became a second job, which failed when everything was done."""
    done = well(mpi(2, HERE / "jobs/unguarded.py"))
    assert [printed.out for printed in done.ranks] == ["ranks 2\n"] * 2, f"{done}"


def test_a_store_of_servers_that_is_dropped_while_a_call_is_under_way_ends_its_job():
    """The store's thread needs the interpreter to give the array back."""
    done = well(launch(1, 1, HERE / "jobs/dropped.py", "dist_sync"))
    assert done.ranks[0].text == "dropped\n", f"{done}"


def test_a_rank_may_end_while_a_thread_of_it_waits_in_a_call():
    quietly(mpi(2, JOB, "dist_sync_mpi", "ends_in_a_call"))
    quietly(launch(2, 1, JOB, "dist_sync", "ends_in_a_call"))


def test_another_program_inherits_nothing_of_a_stores():
    quietly(launch(2, 1, JOB, "dist_sync", "exec"))


def test_another_program_inherits_nothing_of_a_stores_over_mpi():
    pytest.importorskip("mpi4py")
    quietly(mpi(2, JOB, "dist_sync_mpi", "exec"))


def test_a_rank_is_missed_at_once_although_its_child_lives_on():
    is_missed(mpi(2, JOB, "dist_sync_mpi", "parent_is_killed"), "is lost", 1)


def test_a_worker_is_missed_at_once_although_its_child_lives_on():
    # A process counts as lost shortly after its connection breaks, or after 5 seconds of silence.
    is_missed(launch(2, 1, JOB, "dist_sync", "parent_is_killed"), "is lost", 2.5)


@pytest.mark.parametrize(("case", "words"), [("exits_at_once", "is lost"), ("exits_in_a_step", "has ended")])
def test_a_rank_that_ends_in_the_middle_is_missed_at_once(case, words):
    is_missed(mpi(2, JOB, "dist_sync_mpi", case), words, 1)


def is_missed(done, words, limit):
    found = re.search(rf"^.*rank 1.* {words} after ([-\d.]+) s$", done.ranks[0].out, re.MULTILINE)
    assert done.status and found and float(found[1]) < limit, f"{done}"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_that_handles_sigterm_has_the_time_it_takes(when, tmp_path):
    quietly(mpi(2, JOB, "dist_sync_mpi", f"handler_{when}", tmp_path))
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text().endswith("19\ncomplete\n")


def test_a_program_that_ignores_sigterm_goes_on():
    quietly(mpi(2, JOB, "dist_sync_mpi", "is_ignored"))


def test_a_program_that_leaves_sigterm_alone_ends_by_it():
    done = mpi(2, JOB, "dist_sync_mpi", "is_default")
    assert done.status and not any(printed.out for printed in done.ranks), f"{done}"


def ends_alike(done):
    ends = [re.fullmatch(rf"rank {rank} ends with (\S+)\n", printed.out) for rank, printed in enumerate(well(done).ranks)]
    assert all(ends) and len({end[1] for end in ends}) == 1 and not any(printed.err for printed in done.ranks), f"{done}"


def test_torchs_data_loader_has_workers():
    pytest.importorskip("torch")
    ends_alike(mpi(2, HERE / "jobs/torch_loader.py"))


def test_mxnets_data_loader_has_workers():
    pytest.importorskip("mxnet")
    ends_alike(mpi(2, HERE / "jobs/mxnet_loader.py"))


def test_a_second_store_of_servers_in_a_worker_is_an_error_that_says_so():
    """After the first was closed it used to wait for a scheduler that had ended."""
    quietly(launch(2, 1, JOB, "dist_sync", "second_store"))
