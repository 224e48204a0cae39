//! `gpu-check` over simulated devices.
#![cfg(feature = "mpi")]

use ringpull_processes::{Processes, has_mpi};

#[test]
fn processes_of_a_job_share_devices_as_gpu_check_starts_them() {
    if !has_mpi() {
        return eprintln!("skipped: mpirun is not installed");
    }
    for count in [2, 4] {
        let mut processes = Processes::new();
        let mut command = processes.mpirun(count, env!("CARGO_BIN_EXE_ringpull"));
        processes.succeed("mpirun", command.args(["gpu-check", "--rank", "--devices", "sim:2"]));
        for rank in 0..count {
            let told = format!("rank {rank} of {count} on sim:2: sums and updates are right");
            assert!(processes.rank(rank).out.contains(&told), "{processes}");
        }
    }
}
