//! Tests of parameter servers as real processes on loopback: of their results, and of their errors.

mod cases;
mod elastic;
mod job;
mod odd_one;
mod secrets;

use std::net::TcpListener;

use job::{Job, LIMIT};

/// This is no test. The other tests start this binary with it as a node of a job.
#[test]
fn one_node_of_a_job() {
    let Ok(case) = std::env::var("RINGPULL_TEST_CASE") else { return };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    ringpull_base::notice::to_stderr();
    match ringpull::run_node() {
        Ok(true) => return,
        Ok(false) => {}
        Err(error) => {
            eprintln!("ringpull {}: {error}", std::env::var("DMLC_ROLE").unwrap());
            std::process::exit(1);
        }
    }
    if let Err(error) = cases::run(&case) {
        eprintln!("error: {error}");
        std::process::exit(3);
    }
}

#[test]
fn sums_are_exact_for_every_dtype_length_and_number_of_nodes() {
    for (workers, servers) in [(1, 1), (2, 2), (3, 1), (4, 3)] {
        Job::start("sums", workers, servers).succeeds();
    }
}

#[test]
fn optimizers_run_on_the_servers_and_a_new_learning_rate_holds_at_once() {
    Job::start("optimizer", 2, 2).succeeds();
}

#[test]
fn optimizer_states_are_saved_from_the_servers_and_loaded_back() {
    Job::start("states", 2, 2).succeeds();
}

#[test]
fn rows_travel_alone_and_the_others_are_zero() {
    Job::start("rows", 3, 2).succeeds();
}

#[test]
fn a_worker_that_pushes_and_pulls_later_is_a_few_segments_ahead_at_most() {
    Job::start("ahead", 2, 2).succeeds();
}

#[test]
fn ranks_may_init_and_push_in_different_orders() {
    Job::start("order", 3, 3).succeeds();
}

#[test]
fn a_worker_that_pushes_twice_contributes_to_two_rounds() {
    Job::start("twice", 2, 1).succeeds();
}

#[test]
fn integers_sum_on_servers() {
    Job::start("ints", 2, 1).succeeds();
}

#[test]
fn async_servers_apply_every_push_as_it_comes() {
    Job::start("async_optimizer", 3, 2).succeeds();
}

#[test]
fn async_without_an_optimizer_is_one_clear_error() {
    Job::start("async_bare", 2, 1).succeeds();
}

#[test]
fn wrong_arguments_are_errors_where_they_are_made_and_the_job_goes_on() {
    Job::start("local_errors", 2, 2).succeeds();
}

#[test]
fn ranks_that_disagree_on_a_shape_all_hear_of_it() {
    for workers in [2, 3] {
        let words =
            ["\"odd_one\" in init: rank", "rank 1 has f32 of shape [8]", "f32 of shape [6]", "one shape and dtype"];
        Job::start("shapes", workers, 2).fails(&[], &words);
    }
}

#[test]
fn a_rank_that_never_pushes_is_named_to_every_worker() {
    Job::start("lazy", 3, 2).fails(&[], &["late_key", "[1]", "RINGPULL_TIMEOUT"]);
}

#[test]
fn ranks_that_wait_for_each_other_get_an_error_soon() {
    for workers in [2, 3] {
        let words: Vec<String> = (0..workers)
            .map(|rank| format!("rank {rank} waits for push of key \"of rank {rank}\", which rank(s) ["))
            .collect();
        let words = words.iter().map(String::as_str).chain(["every rank waits for another"]);
        Job::start("deadlock", workers, 1).fails(&[], &words.collect::<Vec<_>>());
    }
}

#[test]
fn a_rank_that_does_not_come_to_a_barrier_is_named() {
    Job::start("barrier", 2, 1).fails(&[], &["barrier", "[1]"]);
}

#[test]
fn a_worker_that_panics_is_an_error_for_every_other() {
    Job::start("panics", 3, 1).fails(&["worker 1"], &["rank 1", "panicked"]);
}

/// Kills `name` in a job that transfers data all the time.
fn kill(name: &str, words: &[&str]) {
    let mut job = Job::start("forever", 3, 2);
    job.wait_for("worker 0", "moving");
    job.kill(name);
    job.fails(&[name], words);
}

fn kill_a_worker() {
    kill("worker 2", &["worker rank 2 (pid", "is lost"]);
}

fn kill_a_server() {
    kill("server 1", &["server 1 (pid", "is lost"]);
}

fn kill_the_scheduler() {
    kill("scheduler", &["the scheduler (127.0.0.1:", "is lost"]);
}

#[test]
fn a_killed_worker_is_an_error_for_every_other() {
    kill_a_worker();
}

#[test]
fn a_killed_server_is_an_error_for_every_worker() {
    kill_a_server();
}

#[test]
fn a_killed_scheduler_is_an_error_for_every_worker() {
    kill_the_scheduler();
}

/// `cargo test --test ps -- --ignored twenty`.
#[test]
#[ignore = "takes minutes; the tests above do the same once"]
fn twenty_kills_of_each_role_in_a_row_leave_nothing() {
    for _ in 0..20 {
        kill_a_worker();
        kill_a_server();
        kill_the_scheduler();
    }
}

#[test]
fn ranks_that_disagree_on_a_dtype_all_hear_of_it() {
    Job::start("dtypes", 3, 2).fails(&[], &["\"odd_one\"", "disagree", "rank 1", "f64", "f32"]);
}

#[test]
fn ranks_that_disagree_on_the_optimizer_all_hear_of_it() {
    Job::start("optimizers", 3, 2).fails(&[], &["disagree", "set_optimizer", "rank 1", "0.5", "0.25"]);
}

#[test]
fn a_rank_that_pushes_twice_waits_for_those_that_pushed_once() {
    Job::start("uneven", 3, 2).fails(&[], &["uneven_key", "[1, 2]"]);
}

#[test]
fn the_others_get_the_error_by_which_a_worker_ends() {
    let words = ["rank 1", "this error: push_pull of key \"next_key\" on rank 1: shape [7], but init gave [6]"];
    Job::start("ends_by_error", 3, 2).fails(&["worker 1"], &words);
    Job::start("exits_after_error", 3, 2).fails(&["worker 1"], &words);
}

#[test]
fn a_rank_that_ends_early_with_success_is_named_to_every_other() {
    // With 3 workers, the 2 workers that go on could be reported as a deadlock. With 2 workers, they cannot.
    for workers in [2, 3] {
        let words = ["worker rank 1 (pid", "ended its run without calling push of key \"next_key\""];
        Job::start("ends_early", workers, 2).fails(&["worker 1"], &words);
    }
}

#[test]
fn a_push_that_no_call_waits_for_fails_when_a_worker_that_it_needs_has_ended() {
    let ends = Job::start("ends_with_a_push", 2, 1).ends(LIMIT);
    let told = ends.iter().filter(|end| end.written.contains("ended its run without calling push of key \"next_key\""));
    assert_eq!(told.map(|end| end.name.as_str()).collect::<Vec<_>>(), ["scheduler", "server 0", "worker 0"]);
}

#[test]
fn a_port_in_use_is_one_error_with_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = Job::empty(taken.local_addr().unwrap().port());
    job.add("sums", "scheduler", None, 1, 1);
    let port = job.port.to_string();
    let ends = job.ends(LIMIT);
    assert_eq!(ends[0].code, Some(1));
    let written = &ends[0].written;
    assert!(written.contains(&port) && written.contains("DMLC_PS_ROOT_PORT"), "{written}");
}

#[test]
fn nodes_that_never_come_are_counted() {
    let mut job = Job::empty(job::free_port());
    job.add("sums", "scheduler", None, 2, 1);
    job.add("sums", "worker", Some(0), 2, 1);
    job.fails_slowly(&["only 1 of 2 workers and 0 of 1 servers"]);
}

#[test]
fn a_scheduler_that_never_comes_is_one_error() {
    let mut job = Job::empty(job::free_port());
    job.add("sums", "worker", Some(0), 1, 1);
    job.fails_slowly(&["DMLC_ROLE=scheduler"]);
}

#[test]
fn outside_a_job_the_error_says_how_to_launch_one() {
    for (kind, words) in [
        ("dist_sync", "ringpull launch -n 2 -s 2 -- CMD"),
        ("dist_async", "ringpull launch"),
        ("dist_sync_device", "ringpull launch"),
        ("dist_async_device", "ringpull launch"),
        ("device", "GPU"),
    ] {
        let error = ringpull::create(kind).err().unwrap().to_string();
        assert!(error.contains(kind) && error.contains(words), "{error}");
    }
}

/// Has no limit. `cargo test --test ps -- --ignored --nocapture speed` prints the speed.
#[test]
#[ignore = "a measurement"]
fn speed_on_loopback() {
    for end in Job::start("speed", 4, 2).succeeds() {
        println!("{}: {}", end.name, end.written.lines().filter(|line| line.contains("seconds")).collect::<String>());
    }
}
