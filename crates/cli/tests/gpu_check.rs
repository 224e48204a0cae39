//! `gpu-check` over simulated devices.
#![cfg(feature = "mpi")]

use std::process::Stdio;

use ringpull_cli::mpirun::{Hosts, Mpirun, Ranks};

#[test]
fn processes_of_a_job_share_devices_as_gpu_check_starts_them() {
    let Ok(mpirun) = Mpirun::find() else { return eprintln!("skipped: mpirun is not installed") };
    for count in [2, 4] {
        let command = [env!("CARGO_BIN_EXE_ringpull"), "gpu-check", "--rank", "--devices", "sim:2"];
        let ranks = Ranks { count, command: command.map(Into::into).to_vec(), env: Vec::new() };
        let output = mpirun.command(&Hosts::Local, ranks).unwrap().command.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        for rank in 0..count {
            assert!(told.contains(&format!("rank {rank} of {count} on sim:2: sums and updates are right")), "{told}");
        }
    }
}
