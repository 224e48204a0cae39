//! `gpu-check` over simulated devices.
#![cfg(feature = "mpi")]

use ringpull_cli::mpirun::{Hosts, Mpirun, Ranks};
use ringpull_processes::Processes;

#[test]
fn processes_of_a_job_share_devices_as_gpu_check_starts_them() {
    let Ok(mpirun) = Mpirun::find() else { return eprintln!("skipped: mpirun is not installed") };
    for count in [2, 4] {
        let mut processes = Processes::new();
        let command = [env!("CARGO_BIN_EXE_ringpull"), "gpu-check", "--rank", "--devices", "sim:2"];
        let ranks = Ranks { count, command: processes.redirected(command), env: Vec::new() };
        processes.succeed("mpirun", &mut mpirun.command(&Hosts::Local, ranks).unwrap().command);
        for rank in 0..count {
            let told = format!("rank {rank} of {count} on sim:2: sums and updates are right");
            assert!(processes.rank(rank).out.contains(&told), "{processes}");
        }
    }
}
