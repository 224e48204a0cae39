//! Tests of what the other tests rely on: ranks that write at the same time, and a launcher that is killed.

use std::process::Command;
use std::time::Duration;

use ringpull_processes::{Processes, has_mpi};

const LIMIT: Duration = Duration::from_secs(30);

/// Starts four ranks of a shell program. Prints a line and returns `None` if no rank can be started.
fn start(program: &str) -> Option<Processes> {
    if !has_mpi() {
        println!("skipped: there is no mpirun");
        return None;
    }
    let mut processes = Processes::new();
    let mut command = processes.mpirun(4, "/bin/sh");
    processes.start("mpirun", command.args(["-c", program]));
    Some(processes)
}

#[test]
fn lines_that_ranks_write_in_pieces_at_the_same_time_are_not_joined() {
    let halves =
        "i=0; while [ $i -lt 200 ]; do printf first; printf fault >&2; echo second; echo s >&2; i=$((i + 1)); done";
    let Some(mut processes) = start(halves) else { return };
    assert!(processes.ends_by(std::time::Instant::now() + LIMIT) && processes.succeeded(), "{processes}");
    assert_eq!(processes.names(), ["mpirun", "rank 0", "rank 1", "rank 2", "rank 3"]);
    for rank in 0..4 {
        let written = processes.rank(rank);
        assert_eq!((written.out, written.err), ("firstsecond\n".repeat(200), "faults\n".repeat(200)));
    }
    assert_eq!(processes.written("mpirun").out, "");
}

#[test]
fn ranks_whose_launcher_was_killed_end_with_the_job() {
    let Some(mut processes) = start("trap '' TERM HUP; echo runs; while :; do sleep 1; done") else { return };
    (0..4).for_each(|rank| processes.wait_for(&format!("rank {rank}"), "runs", 1, LIMIT));
    assert!(processes.living().len() > 4, "{processes}");
    processes.child("mpirun").kill().unwrap();
    processes.kill();
    assert_eq!(processes.living(), [0; 0]);
}

#[test]
fn a_job_that_is_not_done_in_time_is_killed() {
    let Some(mut processes) = start("sleep 600") else { return };
    assert!(!processes.ends_by(std::time::Instant::now() + Duration::from_millis(300)));
    assert_eq!(processes.living(), [0; 0]);
    assert!(!processes.succeeded());
}

#[test]
#[should_panic(expected = "it did not write \"done\" 1 times before it ended:\nit: up")]
fn a_process_that_has_ended_without_the_words_is_waited_for_no_longer() {
    let mut processes = Processes::new();
    processes.start("it", Command::new("sh").args(["-c", "echo up"]));
    processes.wait_for("it", "done", 1, ringpull_processes::LIMIT);
}

#[test]
#[should_panic(expected = "rank 0 did not write \"done\" 1 times before it ended")]
fn a_rank_whose_launcher_has_ended_is_waited_for_no_longer() {
    let mut processes = Processes::new();
    processes.start("mpirun", Command::new("sh").args(["-c", "exit 1"]));
    processes.wait_for("rank 0", "done", 1, ringpull_processes::LIMIT);
}
