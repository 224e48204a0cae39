//! The meaning of `KvStore`: each promise once, run for every kind.
//!
//! A promise is a function of a [`world::World`] that every worker of a job runs. It only knows its rank and
//! the number of workers. Sums have closed forms and inputs are small integers, so `==` is right. The values
//! that a worker pulls go into a hash that must be the same on all workers. The promises of one job share one
//! store; each uses keys of its own.

mod compressed;
mod devices;
mod errors;
mod gpus;
mod job;
mod optimizers;
mod rows;
mod threads;
mod values;
mod world;

use job::Job;
use threads::Threads;
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
        "strings-device-async" => &[values::ANY, optimizers::ASYNC, devices::ASYNC],
        "compressed" => &[compressed::SYNC],
        "compressed-async" => &[compressed::ASYNC],
        "sharded" => &[optimizers::SYNC],
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
        Job { kind: "local", workers: 1, group }.run();
    }
}

/// The groups of promises that `dist_sync_mpi` keeps.
const BY_ALLREDUCE: [&str; 4] = ["strings", "integers", "compressed", "sharded"];

/// Rates at which ranks send and receive. No two ranks have equal rates.
const LINKS: [(f64, f64); 5] = [(1e-3, 2e-3), (2e-3, 2e-3), (3e-3, 1e-3), (2e-3, 4e-3), (2e-3, 2e-3)];

#[test]
fn ranks_that_are_threads_keep_every_promise_for_1_to_5_workers() {
    for workers in 1..6 {
        for group in BY_ALLREDUCE {
            Threads { workers, ..Threads::default() }.run(group, &promises_of(group));
        }
    }
}

#[test]
fn ranks_that_are_threads_keep_every_promise_in_memory_that_they_share() {
    for (workers, on_host) in [(2, 2), (3, 3), (4, 4), (4, 2), (5, 3)] {
        for group in BY_ALLREDUCE {
            Threads { workers, on_host, ..Threads::default() }.run(group, &promises_of(group));
        }
    }
}

#[test]
fn ranks_that_are_threads_keep_every_promise_on_links_that_are_not_alike() {
    for workers in 2..6 {
        for group in BY_ALLREDUCE {
            Threads { workers, links: &LINKS[..workers], ..Threads::default() }.run(group, &promises_of(group));
        }
    }
}

#[test]
fn ranks_that_are_threads_keep_every_promise_with_helpers() {
    for (workers, helpers) in [(1, 1), (2, 3), (3, 1), (3, 5), (4, 2)] {
        for group in BY_ALLREDUCE {
            Threads { workers, helpers, ..Threads::default() }.run(group, &promises_of(group));
        }
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_on_1_2_and_4_ranks() {
    for workers in [1, 2, 4] {
        for group in ["strings", "integers"] {
            Job { kind: "dist_sync_mpi", workers, group }.run();
        }
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_with_a_helper() {
    for group in BY_ALLREDUCE {
        Job { kind: "dist_sync_mpi", workers: 3, group }.run_with_helpers(1);
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_by_messages_on_links_that_are_not_alike() {
    for group in BY_ALLREDUCE {
        Job { kind: "dist_sync_mpi", workers: 4, group }.run_on_links(&LINKS[..4]);
    }
}

#[test]
fn every_kind_keeps_the_promises_of_optimizers_with_states_divided_over_the_ranks() {
    for workers in [1, 2, 4] {
        Job { kind: "dist_sync_mpi", workers, group: "sharded" }.run();
    }
    Job { kind: "local", workers: 1, group: "sharded" }.run();
    Job { kind: "dist_sync", workers: 2, group: "sharded" }.run();
}

#[test]
fn dist_sync_keeps_every_promise_on_1_to_4_workers() {
    for workers in [1, 2, 4] {
        for group in ["strings-servers", "integers"] {
            Job { kind: "dist_sync", workers, group }.run();
        }
    }
}

#[test]
fn dist_hybrid_keeps_every_promise_on_1_to_4_workers() {
    for workers in [1, 2, 4] {
        for group in ["strings-servers", "integers"] {
            Job { kind: "dist_hybrid", workers, group }.run();
        }
    }
    for group in ["compressed", "sharded"] {
        Job { kind: "dist_hybrid", workers: 2, group }.run();
    }
}

#[test]
fn dist_async_keeps_every_promise_on_1_to_4_workers() {
    for workers in [1, 2, 4] {
        Job { kind: "dist_async", workers, group: "strings-async" }.run();
    }
}

#[test]
fn compressed_gradients_sum_to_the_same_bits_by_allreduce_on_servers_and_on_devices() {
    for workers in 1..6 {
        let by_threads = Threads { workers, ..Threads::default() }.run("compressed", &promises_of("compressed"));
        let mut kinds = Vec::new();
        if [1, 2, 4].contains(&workers) {
            kinds.extend(["dist_sync_mpi", "dist_sync"]);
        }
        if workers < 4 {
            kinds.push(if workers == 2 { "dist_sync_mpi on 2" } else { "dist_sync_mpi on 1" });
        }
        for kind in kinds {
            if let Some(hash) = (Job { kind, workers, group: "compressed" }).run() {
                assert_eq!(hash, by_threads, "{kind} on {workers} workers");
            }
        }
    }
}

#[test]
fn dist_async_applies_compressed_pushes_one_by_one() {
    Job { kind: "dist_async", workers: 2, group: "compressed-async" }.run();
}

#[test]
fn device_keeps_every_promise_on_1_2_and_4_devices() {
    for kind in ["device on 1", "device on 2", "device on 4"] {
        for group in ["strings-devices", "integers"] {
            Job { kind, workers: 1, group }.run();
        }
    }
}

#[test]
fn dist_sync_mpi_keeps_every_promise_on_devices() {
    for (workers, kind) in [
        (1, "dist_sync_mpi on 4"),
        (2, "dist_sync_mpi on 1"),
        (2, "dist_sync_mpi on 2"),
        (3, "dist_sync_mpi on 2"),
        (4, "dist_sync_mpi on 1"),
    ] {
        Job { kind, workers, group: "strings-devices" }.run();
    }
    Job { kind: "dist_sync_mpi on 2", workers: 2, group: "integers" }.run();
}

#[test]
#[ignore = "takes minutes; the test above runs five of these jobs"]
fn dist_sync_mpi_keeps_every_promise_on_1_to_4_ranks_with_1_2_and_4_devices() {
    for workers in 1..5 {
        for kind in ["dist_sync_mpi on 1", "dist_sync_mpi on 2", "dist_sync_mpi on 4"] {
            Job { kind, workers, group: "strings-devices" }.run();
        }
    }
}

#[test]
fn the_device_kinds_with_servers_keep_every_promise() {
    for (workers, kind) in [(1, "dist_sync_device on 4"), (2, "dist_sync_device on 2"), (4, "dist_sync_device on 1")] {
        Job { kind, workers, group: "strings-device-servers" }.run();
    }
    Job { kind: "dist_async_device on 2", workers: 2, group: "strings-device-async" }.run();
}
