"""Tests the output of a job that failed: one line with the rank, the error and its cause, then a hint, and nothing
twice."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from ranks import HERE, launch, mpi

#: The front ends through which jobs call stores.
FRONTS = ["ringpull", "mxnet", "torch"]
JOB = HERE / "jobs/last_words.py"
NAMES = {"ringpull": '"w"', "mxnet": r"\d \('dense0_(weight|bias)'\)", "torch": r"\"(parameter\.\d\" \('0\.(weight|bias)'\)|reached\.\d\" \('the gradients that a backward pass has reached'\))"}


def run(front, case, ranks=3, **env):
    pytest.importorskip(front)
    return mpi(ranks, JOB, front, case, "dist_sync_mpi", RINGPULL_TIMEOUT="", **env)


def spoken(done, rank, most):
    """The lines of a rank's stderr. Checks that there are at most `most`, and that no line repeats, except underlines in a traceback."""
    lines = done.ranks[rank].err.splitlines()
    said = [line for line in lines if line.strip(" ^")]
    assert 0 < len(lines) <= most and len(set(said)) == len(said), f"{done}"
    assert not any("/ringpull/" in line or "/mxnet/" in line or "/torch/" in line for line in lines if "File " in line), f"{done}"
    return lines


def speaks(done, rank, line, hint, most=12):
    """Checks the output of a rank with the fault: lines of its program, then our line, then the hint."""
    lines = spoken(done, rank, most)
    assert lines[0].startswith("Traceback") and "last_words.py" in lines[1], f"{done}"
    assert re.fullmatch(f"rank {rank}: failed: {line}", lines[-2]) and re.fullmatch(f"  hint: {hint}", lines[-1]), f"{done}"


def hears(done, rank, line, hint=None):
    """Checks the output of a rank that heard of the fault: one line, and a hint if no other rank can give it."""
    lines = spoken(done, rank, 2)
    assert re.fullmatch(f"rank {rank}: stopped: {line}", lines[0]), f"{done}"
    assert len(lines) == (1 if hint is None else 2) and (hint is None or re.fullmatch(f"  hint: {hint}", lines[1])), f"{done}"


@pytest.mark.parametrize("front", FRONTS)
def test_differing_shapes_are_reported_by_the_ranks_that_have_them(front):
    done = run(front, "shape")
    # The error names the first two ranks that call `init` with different shapes.
    said = rf"the ranks disagree on key {NAMES[front]} in init: rank \d has .*, rank \d has .*"
    speakers = {int(rank) for rank in re.findall(r"rank (\d) has", done.ranks[1].err)[:2]}
    assert 1 in speakers and len(speakers) == 2, f"{done}"
    for rank in range(3):
        if rank in speakers:
            speaks(done, rank, f"DisagreementError: {said}", "init the key with one shape and dtype on every rank")
        else:
            hears(done, rank, said)


@pytest.mark.parametrize("front", FRONTS)
def test_a_killed_rank_is_reported_once_by_each_survivor_with_a_hint_from_one(front):
    done = run(front, "kill")
    said = rf"rank 1 \(pid \d+ on .*\) is lost: its process ended \(during .* key {NAMES[front]} on rank 0\)"
    hears(done, 0, said, "see that process's own output and its host's log, and restart .*")
    hears(done, 2, said)


@pytest.mark.parametrize("front", FRONTS)
def test_an_exception_of_the_program_ends_with_its_rank_and_others_report_it_in_a_line(front):
    done = run(front, "raise")
    lines = done.ranks[1].err.splitlines()
    assert lines[-3:-1] == ["ZeroDivisionError: the batch is empty", "and so is the rest"] and len(lines) < 12, f"{done}"
    assert lines[-1] == "rank 1: failed: ZeroDivisionError: the batch is empty and so is the rest", f"{done}"
    for rank in 0, 2:
        hears(done, rank, rf"rank 1 failed: ZeroDivisionError: the batch is empty; rank \d waited for its push of key {NAMES[front]}")


@pytest.mark.parametrize("front", ["ringpull", "mxnet"])
def test_the_first_rank_reports_a_deadlock_in_full_and_each_other_its_own_wait(front):
    done = run(front, "deadlock")
    wait = r"rank {0} waits at \S*last_words.py:\d+ in wait_for_each_other for push of key \"key{0}\", which rank\(s\) \[[\d, ]+\] have not called"
    speaks(done, 0, "DeadlockError: every rank waits for another: " + "; ".join(wait.format(rank) for rank in range(3)), "call every key .*")
    for rank in 1, 2:
        hears(done, rank, f"every rank waits for another: {wait.format(rank)}")


@pytest.mark.parametrize("front", FRONTS)
def test_a_rank_that_leaves_early_is_hinted_at_with_what_every_framework_can_do(front):
    done = run(front, "leave", ranks=2)
    line = rf"rank 1 ended its run without calling push of key {NAMES[front]}, for which rank 0 waits"
    hears(done, 0, line, "give every rank the same number of steps")


@pytest.mark.parametrize("kind", ["dist_sync_mpi", "dist_sync"])
def test_a_report_outlives_the_calls_that_were_made_before_it(kind, tmp_path):
    pytest.importorskip("mxnet")
    fifo = tmp_path / "reported"
    os.mkfifo(fifo)
    job = (JOB, "mxnet", "reported", kind, str(fifo))
    done = launch(2, 1, *job, RINGPULL_TIMEOUT="") if kind == "dist_sync" else mpi(2, *job, RINGPULL_TIMEOUT="")
    named = r"worker rank 1 .*" if kind == "dist_sync" else "rank 1"
    hears(done, 0, rf"{named} failed: the data ends here; rank 0 waited for its push of key \"second\"")


def test_a_push_that_no_call_waits_for_and_that_fails_at_the_end_is_reported():
    done = run("ringpull", "push", ranks=2)
    line = 'rank 0 ended its run without calling push of key "w", for which rank 1 waits'
    hears(done, 1, line, "give every rank the same number of steps")


def test_the_rank_of_an_updater_reports_its_exception_with_its_lines_and_others_in_a_line():
    done = run("ringpull", "updater")
    lines = spoken(done, 1, 16)
    line = 'the updater of key "w" on rank 1 raised ZeroDivisionError: the updater\'s own and this'
    assert lines[0].startswith("Traceback") and "in updater" in lines[1], f"{done}"
    assert lines[-2:] == [f"rank 1: failed: UpdaterError: {line}", "  hint: see the traceback that this rank has printed"], f"{done}"
    for rank in 0, 2:
        hears(done, rank, line)


def test_an_exception_that_ends_a_forked_child_is_no_failure_of_its_rank():
    done = run("ringpull", "child", ranks=2)
    for rank in range(2):
        lines = done.ranks[rank].err.splitlines()
        assert not done.status and lines[-1] == "ZeroDivisionError: the child's own", f"{done}"


def test_a_store_of_one_process_hears_of_no_other_whatever_the_launcher_says():
    done = mpi(2, "-c", "import numpy, ringpull\nringpull.create('local').push('none', numpy.ones(3))")
    for rank in range(2):
        lines = done.ranks[rank].err.splitlines()
        assert lines[-2].startswith(f"rank {rank}: failed: UnknownKeyError: ") and lines[-1].startswith("  hint: "), f"{done}"


@pytest.mark.parametrize("front", ["ringpull", "mxnet"])
def test_with_servers_the_same_is_reported_and_servers_print_a_line(front):
    pytest.importorskip(front)
    cases = (
        ("kill", r"worker rank 1 .* is lost: .*", "see that process's own output .*"),
        ("raise", "worker rank 1 .* failed: ZeroDivisionError: the batch is empty; .*", None),
        ("leave", rf"worker rank 1 .* ended its run without calling push of key {NAMES[front]}, for which rank \d waits", "give every rank the same .*"),
    )
    with ThreadPoolExecutor(len(cases)) as pool:
        jobs = [pool.submit(launch, 3, 1, JOB, front, case, "dist_sync", RINGPULL_TIMEOUT="") for case, _, _ in cases]
    for job, (_, line, hint) in zip(jobs, cases, strict=True):
        done = job.result()
        hears(done, 0, line, hint)
        hears(done, 2, line)
        for name in "server0", "scheduler":
            lines = [text for text in done.others[name].err.splitlines() if " WARN" not in text]
            assert len(lines) == 1 and re.fullmatch(rf"ringpull {name.strip('0')}: stopped: {line}", lines[0]), f"{done}"


def test_the_log_can_have_whole_tracebacks_and_an_exception_that_is_caught_is_as_ever():
    done = run("ringpull", "shape", ranks=2, RINGPULL_LOG="ringpull=debug")
    assert "ringpull/kvstore.py" in done.ranks[0].err and "ringpull.errors.DisagreementError: the ranks" in done.ranks[0].err, f"{done}"
    assert " DEBUG ringpull_" in done.ranks[0].err and "\x1b" not in done.ranks[0].err, f"{done}"
    code = "import ringpull\ntry: ringpull.create('none')\nexcept ringpull.UnknownKindError as error: print(error)\nraise KeyError('own')"
    done = mpi(1, "-c", code)
    assert "\n  hint: " in done.ranks[0].out and done.ranks[0].err.splitlines()[-1] == "KeyError: 'own'", f"{done}"


def test_an_error_of_a_process_alone_is_reported_without_lines_of_ours():
    done = mpi(1, "-c", "import ringpull\nringpull.create('none')")
    lines = done.ranks[0].err.splitlines()
    assert lines[-2].startswith("ringpull: failed: UnknownKindError: unknown kind of store \"none\"") and len(lines) == 4, f"{done}"
