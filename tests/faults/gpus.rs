//! A call of CUDA or NCCL fails on one rank, with each route between ranks, on fake GPUs. Every rank must get
//! an error, and no rank may wait.

use ringpull_processes::FakeGpus;

use crate::job::Job;

const STAGED: &[(&str, &str)] = &[("RINGPULL_ALGORITHM", "ring")];
/// Each route in turn, as with the first sums of a size.
const AUTO: &[(&str, &str)] = &[("FAKE_CUDA_LATE_US", "500")];
const JOINED: &[(&str, &str)] = &[("RINGPULL_ALGORITHM", "nccl")];

type Route = &'static [(&'static str, &'static str)];

/// By a route, with the fault, and what the error of the rank that has it names.
const SOME: &[(Route, &str, &str)] = &[
    (STAGED, "run:cuMemcpyDtoHAsync_v2@4=719", ""),
    (STAGED, "cuLaunchKernel@5=701", "701"),
    (JOINED, "ncclAllReduce@3=1", "ncclAllReduce"),
    (JOINED, "hang:ncclAllReduce@5", ""),
];
const MORE: &[(Route, &str, &str)] = &[
    (STAGED, "cuMemAlloc_v2@4=2", "cuMemAlloc"),
    (STAGED, "cuMemcpyHtoDAsync_v2@6=1", "cuMemcpyHtoDAsync"),
    (STAGED, "run:cuLaunchKernel@2=700", ""),
    (STAGED, "hang:cuMemcpyDtoHAsync_v2@4", ""),
    (STAGED, "run:ncclReduceScatter@3=719", ""),
    (JOINED, "ncclCommInitRankConfig@1=3", "ncclCommInitRankConfig"),
    (JOINED, "run:ncclAllReduce@4=719", ""),
    (JOINED, "ncclCommGetAsyncError@20=6", "ncclCommGetAsyncError"),
    (JOINED, "cuStreamWaitEvent@30=400", "cuStreamWaitEvent"),
];

fn all_end(faults: &[(Route, &str, &str)]) {
    for (route, fault, named) in faults {
        let Some(gpus) = FakeGpus::new("4x64") else { return };
        let fault = format!("{fault}#1");
        println!("{fault} by {route:?}");
        let errors = Job::start_on_gpus(&gpus.with("FAKE_CUDA_FAULT", &fault), route).errors(&[]);
        println!("{errors:#?}");
        assert!(errors[1].contains(named), "{fault}: {errors:#?}");
    }
}

#[test]
fn ranks_on_gpus_sum_by_every_route() {
    for route in [STAGED, JOINED, AUTO] {
        let Some(gpus) = FakeGpus::new("4x64") else { return };
        Job::start_on_gpus(&gpus, route).succeeds();
        assert_eq!(gpus.findings(), "");
    }
}

#[test]
fn a_fault_of_one_ranks_gpu_is_an_error_on_every_rank() {
    all_end(SOME);
}

#[test]
#[ignore = "takes a minute; the test above has some of these faults"]
fn every_fault_of_one_ranks_gpu_is_an_error_on_every_rank() {
    all_end(MORE);
}
