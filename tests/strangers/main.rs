//! Tests of strangers at every port on which a job listens. A table of attacks by raw sockets runs on real
//! jobs. No attack may change a sum, delay a job, use up its memory or fill its log.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `attacks` | what strangers do: a function each, and their table |
//! | `siege` | a job under attack, and what is checked after each attack |
//! | `job` | the jobs, the steps that they make, and their ports |
//! | `port` | a port as strangers see it, and how their connections must end |
//! | `open` | a job without a secret |
//! | `greetings` | how connections begin, by hand |
//! | `overheard` | a real greeting, recorded; resets of real connections |
//! | `vitals` | sockets, descriptors, threads and memory of a process |
//!
//! `scripts/long adversary` runs these tests and prints what each attack did.
#![cfg(feature = "ps")]

mod attacks;
mod greetings;
mod job;
mod open;
mod overheard;
mod port;
mod siege;
mod vitals;

use std::time::Duration;

use attacks::{ATTACKS, CROWDED};
use job::Job;
use siege::{Siege, among_strangers};

/// The time limit of a job's start while strangers connect. Without strangers the start takes a second or
/// two.
const START: Duration = Duration::from_secs(10);

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    job::be_one_process();
}

fn withstands_every_attack(job: Job) {
    job.wait_until_ready(Duration::from_secs(30));
    let siege = Siege::lay(job);
    for (name, attack, step) in ATTACKS {
        siege.withstand(name, *attack, *step);
    }
    siege.end();
}

#[test]
fn a_job_of_ranks_withstands_strangers_at_every_port() {
    if !ringpull_processes::has_mpi() {
        println!("skipped: no mpirun");
        return;
    }
    withstands_every_attack(Job::of_ranks(3));
}

#[test]
fn a_job_with_servers_withstands_strangers_at_every_port() {
    withstands_every_attack(Job::with_servers(2, 2));
}

#[test]
fn strangers_at_the_schedulers_port_before_anybody_else_delay_no_start() {
    let mut job = Job::scheduler(2, 1);
    let port = job.ports().remove(0);
    among_strangers(&port, CROWDED, || {
        job.add_nodes(2, 1);
        job.wait_until_ready(START);
    });
    job.ends_well();
}

#[test]
fn strangers_at_rank_0s_port_from_its_first_moment_delay_no_start() {
    if !ringpull_processes::has_mpi() {
        println!("skipped: no mpirun");
        return;
    }
    let job = Job::of_ranks(3);
    let port = job.port_of(&job.members()[0]).expect("rank 0 listens");
    among_strangers(&port, CROWDED, || job.wait_until_ready(START));
    job.ends_well();
}
