//! The meaning of `KvStore`: each promise once, run for every kind.
//!
//! A promise is a function of a [`world::World`] that every worker of a job runs. It knows its rank and the number of workers, and
//! no more: sums have closed forms, inputs are small integers, so `==` is right. What a worker pulls goes into a hash that
//! must be the same on all workers. The promises of one job share one store; each uses keys of its own.

mod devices;
mod errors;
mod job;
mod optimizers;
#[path = "../processes/mod.rs"]
mod processes;
mod rows;
mod values;
mod world;

use job::Job;
use world::Promise;

/// Runs promises one after another as one worker of a job, in the order in which every worker runs them.
fn promises_of(group: &str) -> Vec<Promise> {
    let parts: &[&[Promise]] = match group {
        "strings" => &[values::SYNC, values::ANY, rows::SYNC, errors::ANY, optimizers::SYNC, optimizers::IN_PROCESS],
        "strings-servers" => {
            &[values::SYNC, values::ANY, rows::SYNC, errors::ANY, optimizers::SYNC, optimizers::ON_SERVERS]
        }
        "strings-async" => &[optimizers::ASYNC_FIRST, values::ANY, errors::ANY, optimizers::ASYNC],
        "strings-devices" => &[
            values::SYNC,
            values::ANY,
            devices::SYNC,
            rows::SYNC,
            errors::ANY,
            optimizers::SYNC,
            devices::OPTIMIZED,
            optimizers::IN_PROCESS,
        ],
        "strings-device-servers" => {
            &[values::SYNC, values::ANY, devices::SYNC, errors::ANY, optimizers::SYNC, optimizers::ON_SERVERS]
        }
        "strings-device-async" => &[values::ANY, errors::ANY, optimizers::ASYNC, devices::ASYNC],
        "integers" => &[errors::INTEGERS],
        _ => panic!("no group of promises is named {group:?}"),
    };
    parts.concat()
}

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    job::be_one_process(promises_of);
}

#[test]
fn local_keeps_every_promise() {
    for group in ["strings", "integers"] {
        Job { kind: "local", workers: 1, group, devices: None }.run();
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_on_1_to_5_workers() {
    for workers in 1..6 {
        for group in ["strings", "integers"] {
            Job { kind: "dist_sync_mpi", workers, group, devices: None }.run();
        }
    }
}

#[test]
fn dist_sync_keeps_every_promise_on_1_to_4_workers() {
    for workers in [1, 2, 4] {
        for group in ["strings-servers", "integers"] {
            Job { kind: "dist_sync", workers, group, devices: None }.run();
        }
    }
}

#[test]
fn dist_async_keeps_every_promise_on_1_to_4_workers() {
    for workers in [1, 2, 4] {
        Job { kind: "dist_async", workers, group: "strings-async", devices: None }.run();
    }
}

#[test]
fn device_keeps_every_promise_on_1_2_and_4_devices() {
    for devices in [1, 2, 4] {
        for group in ["strings-devices", "integers"] {
            Job { kind: "device", workers: 1, group, devices: Some(devices) }.run();
        }
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_on_devices() {
    for (workers, devices) in [(1, 4), (2, 1), (2, 2), (3, 2), (4, 1)] {
        Job { kind: "dist_sync_mpi", workers, group: "strings-devices", devices: Some(devices) }.run();
    }
    Job { kind: "dist_sync_mpi", workers: 2, group: "integers", devices: Some(2) }.run();
}

#[test]
fn the_device_kinds_with_servers_keep_every_promise() {
    for (workers, devices) in [(1, 4), (2, 2), (4, 1)] {
        Job { kind: "dist_sync_device", workers, group: "strings-device-servers", devices: Some(devices) }.run();
    }
    Job { kind: "dist_async_device", workers: 2, group: "strings-device-async", devices: Some(2) }.run();
}
