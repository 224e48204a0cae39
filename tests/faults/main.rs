//! Faults in a job of `dist_sync_mpi`, under the real `mpirun`: one clear error on every surviving rank, in
//! time, and no process left. Wrong arguments that a single rank can notice are tested in the contract suite.

mod cases;
mod gpus;
mod job;
mod own_mpi;

use std::time::Duration;

use job::Job;
use rustix::process::Signal;

/// The limit for every other rank to report the loss of a rank.
const LOSS: Duration = Duration::from_secs(10);
/// `RINGPULL_TIMEOUT` if a rank is alive but does nothing.
const PATIENCE_S: u64 = 2;

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    job::be_one_process(cases::run);
}

#[test]
fn ranks_may_init_and_push_in_different_orders() {
    Job::start("orders", 3, None).succeeds();
}

#[test]
fn files_that_may_not_be_long_leave_ranks_without_shared_memory_and_with_right_sums() {
    for case in ["short_files", "short_files_of_rank_0"] {
        Job::start(case, 2, None).succeeds();
    }
}

#[test]
fn a_list_of_keys_that_is_too_long_to_be_sent_is_an_error_that_says_so_on_every_rank() {
    Job::start("long_list", 2, None).fails(&[], &["a control message of", "fewer or shorter keys"]);
}

#[test]
fn a_program_that_initialises_mpi_itself_needs_a_thread_level_that_lets_ours_call_it() {
    Job::start("serialized", 2, None).succeeds();
    Job::start("multiple", 2, None).succeeds();
}

#[test]
fn a_shape_that_differs_is_an_error_that_names_each_ranks_shape() {
    for ranks in [2, 3] {
        let words =
            ["\"odd_one\" in init: rank", "rank 1 has f32 of shape [8]", "f32 of shape [6]", "one shape and dtype"];
        Job::start("shapes", ranks, None).fails(&[], &words);
    }
}

#[test]
fn differing_shapes_of_two_ranks_are_an_error_of_init_while_a_third_has_not_called_it() {
    Job::start("shapes_of_two", 3, Some(60))
        .fails(&[], &["\"odd_one\" in init: rank 0 has", "rank 1 has", "[8]", "[6]"]);
}

#[test]
fn a_dtype_that_differs_is_an_error_that_names_each_ranks_dtype() {
    Job::start("dtypes", 3, None)
        .fails(&[], &["\"odd_one\"", "init", "rank 1 has f64 of shape [6]", "has f32 of shape [6]"]);
}

#[test]
fn optimizers_that_differ_are_an_error_that_names_the_key() {
    Job::start("optimizers", 3, None).fails(&[], &["\"weight\"", "push", "rank 1 has", "optimizer"]);
}

#[test]
fn an_optimizer_that_one_rank_alone_has_sharded_is_an_error_on_every_rank() {
    Job::start("sharded_by_one", 3, None)
        .fails(&[], &["\"weight\"", "push", "rank 1 has", "adam", "sharded over the ranks"]);
}

#[test]
fn a_rank_that_does_not_save_its_part_of_the_states_is_named() {
    Job::start("saves_alone", 3, Some(PATIENCE_S))
        .fails(&[], &["save_optimizer_states", "rank(s) [1] have not called it"]);
}

#[test]
fn a_rank_killed_while_each_updates_its_part_is_named_by_every_survivor() {
    for rank in [1, 0] {
        strike_job(Job::start("updates", 4, None), rank, Signal::KILL, LOSS);
        strike_job(Job::start_by_messages("updates", 4), rank, Signal::KILL, LOSS);
    }
}

#[test]
fn a_rank_that_never_pushes_is_named_to_every_rank() {
    let words = ["\"late\"", "push", "rank(s) [1] have not called it"];
    Job::start("never_pushes", 3, Some(PATIENCE_S)).fails(&[], &words);
}

#[test]
fn a_rank_that_pushes_twice_waits_for_those_that_pushed_once() {
    let words = ["\"twice\"", "push", "rank(s) [1, 2] have not called it"];
    Job::start("pushes_twice", 3, Some(PATIENCE_S)).fails(&[], &words);
}

#[test]
fn a_rank_that_does_not_come_to_a_barrier_is_named() {
    let words = ["barrier", "rank(s) [1] have not called it"];
    Job::start("barrier", 3, Some(PATIENCE_S)).fails(&[], &words);
}

#[test]
fn a_rank_that_ends_early_with_success_is_an_error_for_the_others_at_once() {
    let words = ["rank 1", "ended its run without calling", "\"next\"", "same number of steps"];
    Job::start("ends_early", 3, Some(60)).fails(&[1], &words);
}

#[test]
fn the_others_get_the_error_by_which_a_rank_ends() {
    let words = ["rank 1", "\"next\"", "this error: push_pull of key \"next\" on rank 1: shape [7], but init gave [6]"];
    Job::start("ends_by_error", 3, Some(60)).fails(&[1], &words);
    Job::start("aborts_after_error", 3, Some(60)).fails(&[1], &words);
    let words = ["rank 1", "\"next\"", "it met this error: the data ends in the middle of an image", "last checkpoint"];
    Job::start("reports_failure", 3, Some(60)).fails(&[1], &words);
}

#[test]
fn an_error_that_a_rank_recovered_from_is_not_reported_when_it_ends() {
    for error in Job::start("gets_over_error", 3, Some(60)).errors(&[1]) {
        assert!(error.contains("rank 1 ended its run") && !error.contains("this error"), "{error}");
    }
}

#[test]
fn a_rank_that_panics_is_an_error_for_the_others_at_once() {
    Job::start("panics", 3, Some(60)).fails(&[1], &["rank 1 (pid", "is lost", "panicked"]);
}

#[test]
fn an_optimizer_set_on_one_rank_in_step_100_is_an_error_on_every_rank_in_time() {
    let job = Job::start("mismatch", 3, Some(60));
    job.wait_for("counted", &[0, 1, 2]);
    job.wait_for_errors(&[0, 1, 2], LOSS);
    job.fails(&[], &["push", "rank 1 has", "sgd,lr=0.1"]);
}

#[test]
fn a_rank_that_is_late_is_warned_about_and_costs_time_alone() {
    let warnings = Job::start_with_warnings("late", 3).succeeds_with(0, "warning: ");
    assert!((1..=4).contains(&warnings.len()), "{warnings:?}");
    for warning in warnings {
        assert!(warning.contains("of key \"") && warning.contains("which rank 1 (pid"), "{warning}");
    }
}

#[test]
fn ranks_that_wait_for_each_other_get_an_error_soon() {
    for (case, ranks) in [("deadlock", 2), ("deadlock", 3), ("deadlock_in_step_20", 2), ("deadlock_in_step_20", 3)] {
        let job = Job::start(case, ranks, None);
        let all: Vec<usize> = (0..ranks).collect();
        // Long before `RINGPULL_TIMEOUT`, whose error has other words.
        job.wait_for_errors(&all, ringpull_processes::LIMIT);
        for error in job.errors(&[]) {
            assert!(error.contains("every rank waits for another"), "{case} of {ranks}: {error}");
            for rank in &all {
                assert!(error.contains(&format!("rank {rank} waits for push")), "{case} of {ranks}: {error}");
                assert!(
                    error.contains(&format!("of key \"of rank {rank}\", which rank")),
                    "{case} of {ranks}: {error}"
                );
            }
        }
    }
}

#[test]
fn ranks_that_sleep_or_compute_are_not_taken_for_waiting() {
    Job::start("crossing", 2, None).succeeds();
}

#[test]
fn a_rank_killed_after_it_has_joined_is_named_by_every_survivor() {
    let job = Job::start("joined", 3, Some(60));
    job.wait_for("moving", &[0, 2]);
    job.signal(1, Signal::KILL);
    job.wait_for_errors(&[0, 2], LOSS);
    job.fails(&[1], &["rank 1 (pid", "is lost"]);
}

/// Sends `signal` to `rank` of 4 that move data all the time, in shared memory.
fn strike(rank: usize, signal: Signal, patience_s: Option<u64>, limit: Duration) {
    strike_job(Job::start("transfers", 4, patience_s), rank, signal, limit);
}

fn strike_job(job: Job, rank: usize, signal: Signal, limit: Duration) {
    job.wait_for("moving", &[0, 1, 2, 3]);
    job.signal(rank, signal);
    let survivors: Vec<usize> = (0..4).filter(|other| *other != rank).collect();
    job.wait_for_errors(&survivors, limit);
    let silent = format!("rank(s) [{rank}] have not called it");
    let lost = format!("rank {rank} (pid");
    for error in job.errors(&[rank]) {
        let named = error.contains(&lost) && error.contains("is lost");
        // If a rank was stopped before it called, an error that names this is right too.
        let named = named || (signal == Signal::STOP && error.contains(&silent));
        assert!(named && error.contains("\"big\""), "rank {rank} or the key is not named in: {error}");
    }
}

#[test]
fn a_killed_rank_is_named_by_every_survivor() {
    (0..3).for_each(|_| strike(1, Signal::KILL, None, LOSS));
}

#[test]
fn a_killed_rank_0_is_named_by_every_survivor() {
    (0..3).for_each(|_| strike(0, Signal::KILL, None, LOSS));
}

#[test]
fn a_rank_killed_while_messages_move_is_named_by_every_survivor() {
    for rank in [1, 0] {
        strike_job(Job::start_by_messages("transfers", 4), rank, Signal::KILL, LOSS);
    }
}

#[test]
fn a_rank_killed_while_its_devices_sum_with_others_is_named_by_every_survivor() {
    for rank in [1, 0] {
        strike_job(Job::start_on_devices("transfers", 4), rank, Signal::KILL, LOSS);
    }
}

#[test]
fn a_collective_that_ranks_call_differently_is_an_error_on_every_rank_and_the_job_goes_on() {
    Job::start("collectives_differ", 3, None).succeeds();
}

#[test]
fn a_rank_that_does_not_come_to_a_collective_is_named() {
    let jobs = cases::COLLECTIVES.map(|which| (which, Job::start(&format!("missing {which}"), 3, Some(PATIENCE_S))));
    for (which, job) in jobs {
        job.fails(&[], &["\"big\"", which, "rank(s) [1] have not called it"]);
    }
}

#[test]
fn a_rank_killed_in_a_collective_is_named_by_every_survivor() {
    for which in cases::COLLECTIVES {
        strike_job(Job::start(&format!("moving {which}"), 4, None), 1, Signal::KILL, LOSS);
    }
    for which in ["reduce_scatter", "alltoall"] {
        strike_job(Job::start_by_messages(&format!("moving {which}"), 4), 0, Signal::KILL, LOSS);
    }
}

#[test]
fn a_stopped_rank_is_named_by_every_other_in_time() {
    let limit = Duration::from_secs(PATIENCE_S + 2);
    strike(1, Signal::STOP, Some(PATIENCE_S), limit);
    strike(0, Signal::STOP, Some(PATIENCE_S), limit);
}

#[test]
fn a_job_that_was_suspended_goes_on() {
    let job = Job::start("transfers", 4, Some(PATIENCE_S));
    job.wait_for("moving", &[0, 1, 2, 3]);
    (0..4).for_each(|rank| job.signal(rank, Signal::STOP));
    let moved = job.counts("moving");
    std::thread::sleep(Duration::from_secs(PATIENCE_S * 2));
    (0..4).for_each(|rank| job.signal(rank, Signal::CONT));
    job.wait_for_more("moving", &moved, 2);
    job.signal(1, Signal::KILL);
    for error in job.errors(&[1]) {
        assert!(error.contains("rank 1 (pid") && !error.contains("nothing was received"), "{error}");
    }
}

/// `cargo test --test faults -- --ignored twenty`.
#[test]
#[ignore = "takes a minute; the tests above do the same 3 times"]
fn twenty_kills_of_each_rank_in_a_row_leave_nothing() {
    for _ in 0..20 {
        strike(1, Signal::KILL, None, LOSS);
        strike(0, Signal::KILL, None, LOSS);
    }
}
