//! Runs the promises over the CUDA code, with the fake driver ([`FakeGpus`]), which computes without a GPU.
//! Results must have the bits of simulated devices, and the fake driver must find nothing wrong.

use ringpull_processes::FakeGpus;

use crate::job::Job;

/// Sums between ranks by way of the host, and by NCCL.
const STAGED: &[(&str, &str)] = &[("RINGPULL_ALGORITHM", "ring")];
/// Each route in turn, as with the first sums of a size.
const AUTO: &[(&str, &str)] = &[];
const JOINED: &[(&str, &str)] = &[("RINGPULL_ALGORITHM", "nccl")];

fn run(kind: &'static str, workers: usize, group: &'static str, env: &[(&str, &str)]) -> Option<String> {
    let gpus = FakeGpus::new("8x512")?;
    Job { kind, workers, group }.run_on(&gpus, env)
}

#[test]
fn device_keeps_every_promise_on_1_2_and_4_gpus() {
    for kind in ["device on 1", "device on 2", "device on 4"] {
        run(kind, 1, "strings-devices", &[]);
    }
    run("device on 2", 1, "integers", &[]);
}

#[test]
fn device_keeps_every_promise_on_gpus_that_are_late_and_without_nccl() {
    let Some(gpus) = FakeGpus::new("2x512") else { return };
    let job = Job { kind: "device on 2", workers: 1, group: "strings-devices" };
    job.run_on(&gpus, &[("FAKE_CUDA_LATE_US", "200")]);
    job.run_on(&gpus.without_nccl(), &[("FAKE_CUDA_PEERS", "0")]);
}

#[test]
fn dist_sync_mpi_keeps_every_promise_on_gpus_by_every_route() {
    for (workers, kind, route) in [
        (2, "dist_sync_mpi on 2", AUTO),
        (2, "dist_sync_mpi on 2", STAGED),
        (2, "dist_sync_mpi on 2", JOINED),
        (3, "dist_sync_mpi on 1", JOINED),
    ] {
        run(kind, workers, "strings-devices", route);
    }
}

#[test]
fn compressed_gradients_on_gpus_have_the_bits_of_the_host() {
    let in_memory = Job { kind: "dist_sync_mpi", workers: 2, group: "compressed" }.run();
    for route in [STAGED, JOINED] {
        let on_gpus = run("dist_sync_mpi on 2", 2, "compressed", route);
        assert!(on_gpus.is_none() || on_gpus == in_memory);
    }
}

#[test]
fn the_device_kinds_with_servers_keep_every_promise_on_gpus() {
    run("dist_sync_device on 2", 2, "strings-device-servers", &[]);
    run("dist_async_device on 2", 2, "strings-device-async", &[]);
}

#[test]
#[ignore = "takes minutes; the tests above run some of these jobs"]
fn every_kind_keeps_every_promise_on_1_to_4_ranks_with_1_2_and_4_gpus() {
    for workers in 1..5 {
        for kind in ["dist_sync_mpi on 1", "dist_sync_mpi on 2", "dist_sync_mpi on 4"] {
            let count: usize = kind.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(1);
            if workers * count <= 8 {
                for route in [STAGED, JOINED] {
                    run(kind, workers, "strings-devices", route);
                }
            }
        }
        for kind in ["dist_sync_device on 1", "dist_sync_device on 2"] {
            run(kind, workers, "strings-device-servers", &[]);
        }
        for kind in ["dist_async_device on 1", "dist_async_device on 2"] {
            run(kind, workers, "strings-device-async", &[]);
        }
    }
}
