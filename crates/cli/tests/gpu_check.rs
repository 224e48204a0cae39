//! Tests `doctor --gpu`, `info` and `doctor` over simulated devices, and on fake GPUs.

use std::process::Command;

use ringpull_processes::{FakeGpus, Processes, has_mpi};

/// Runs the command on these GPUs. Returns its output and exit code. The GPUs' driver must have found no
/// fault.
fn run(gpus: &FakeGpus, words: &str) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    let output = command.args(words.split(' ')).envs(gpus.envs()).output().unwrap();
    assert_eq!(gpus.findings(), "", "{words}");
    (String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr), output.status.code())
}

#[test]
fn gpu_check_passes_on_gpus_that_compute_without_one() {
    let Some(gpus) = FakeGpus::new("2x512") else { return };
    let (text, code) = run(&gpus, "doctor --gpu --bytes 256KiB");
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "device          Fake GPU 1 (GPU 1)",
        "ok       collectives over 2 device(s)",
        "2 ranks whose devices",
        "staging",
        "allreduce over 2 devices, busbw",
        "allgather over 2 devices, busbw",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("FAILED") && !text.contains("skipped") && text.contains("GB/s"), "{text}");
}

#[test]
fn the_bundle_runs_a_promise_of_stores_that_needs_no_gpus_of_its_own() {
    let script = include_str!("../../../scripts/gpu-check");
    let name = script.split("\"$contract\" --exact ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(include_str!("../../../tests/contract/main.rs").contains(&format!("fn {name}()")), "{name}");
}

#[test]
fn info_and_doctor_say_what_gpus_there_are() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (text, _) = run(&gpus, "info");
    for part in ["CUDA 13.5", "2.28.5", "Fake GPU 0", "0->1 1->0"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (text, _) = run(&gpus, "doctor");
    for part in ["2 GPUs (Fake GPU 0, Fake GPU 1)", "peer access: 0->1 1->0, NCCL 2.28.5"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let wrong = FakeGpus::new("2").unwrap().with("NCCL_SOCKET_IFNAME", "none").with("NCCL_P2P_DISABLE", "1");
    let (text, code) = run(&wrong, "doctor");
    assert_eq!(code, Some(1), "{text}");
    for part in ["NCCL_SOCKET_IFNAME=none matches no interface of this host", "NCCL_P2P_DISABLE is set"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (text, _) = run(&FakeGpus::new("1").unwrap().without_nccl(), "doctor");
    assert!(text.contains("1 GPUs (Fake GPU 0)") && text.contains("without it GPUs sum by copies"), "{text}");
    let (text, code) = run(&FakeGpus::new("0").unwrap(), "doctor --gpu");
    assert!(code == Some(1) && text.contains("no CUDA-capable device is detected"), "{text}");
}

#[test]
fn ranks_that_share_a_gpu_check_a_store() {
    if !has_mpi() {
        return eprintln!("skipped: mpirun is not installed");
    }
    let Some(gpus) = FakeGpus::new("1") else { return };
    let mut processes = Processes::new();
    let mut command = processes.mpirun(2, env!("CARGO_BIN_EXE_ringpull"));
    processes.succeed("mpirun", command.args(["doctor", "--gpu=cuda:0"]).envs(gpus.envs()));
    assert!(processes.rank(1).out.contains("rank 1 of 2 on cuda:0: sums and updates are right"), "{processes}");
    assert_eq!(gpus.findings(), "");
}

#[test]
fn processes_of_a_job_share_devices_as_gpu_check_starts_them() {
    if !has_mpi() {
        return eprintln!("skipped: mpirun is not installed");
    }
    for count in [2, 4] {
        let mut processes = Processes::new();
        let mut command = processes.mpirun(count, env!("CARGO_BIN_EXE_ringpull"));
        processes.succeed("mpirun", command.args(["doctor", "--gpu=sim:2"]));
        for rank in 0..count {
            let told = format!("rank {rank} of {count} on sim:2: sums and updates are right");
            assert!(processes.rank(rank).out.contains(&told), "{processes}");
        }
    }
}
