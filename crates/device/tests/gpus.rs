//! Tests the CUDA code with a fake driver, which computes without a GPU: every operation once, and with each
//! call of the driver and of NCCL failing in turn. Each case is a separate process, since a device that has
//! failed stays failed.
#![cfg(feature = "cuda")]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use ringpull_base::{DType, Error, Result, Tensor};
use ringpull_device::{
    Collective, CollectiveKind, Devices, JoinedDevices, Layout, Loan, Meeting, Memory, Operation, Slice, Stream,
    SumScratch, Work, array_of,
};
use ringpull_processes::{FakeGpus, Processes, own_path};

/// The environment variable with the part of the test that a process runs.
const PART: &str = "RINGPULL_DEVICE_TEST_PART";
const LEN: usize = 1003;
/// The time limit of a device, and of a process.
const LIMIT: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one process on these GPUs with this fault. Returns its output, and the findings of the fake driver.
fn process(gpus: &FakeGpus, part: &str, fault: &str) -> (String, String) {
    let mut processes = Processes::new();
    let mut command = Command::new(own_path());
    command.args(["one_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.envs(gpus.envs()).env(PART, part).env("FAKE_CUDA_FAULT", fault);
    processes.start("process", &mut command);
    let ended = processes.ends_by(Instant::now() + PATIENCE);
    assert!(ended && processes.succeeded(), "{part} with {fault:?}: ended {ended}:\n{processes}{}", gpus.findings());
    (processes.written("process").out.clone(), gpus.findings())
}

/// Runs processes of `part` on two GPUs, each with a fault. Checks that each output names the fault's call
/// and that `is_right` returns true for it.
fn with_each(part: &str, faults: &[(&str, &str)], is_right: impl Fn(&str, &str) -> bool) {
    let mut wrong = Vec::new();
    for (fault, named) in faults {
        let Some(gpus) = FakeGpus::new("2") else { return };
        let (out, findings) = process(&gpus, part, fault);
        if !out.contains("outcome: ") || !out.contains(named) || !is_right(fault, &out) || !findings.is_empty() {
            wrong.push(format!("{fault}: {out}{findings}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "one process, which the other tests start"]
fn one_process() {
    let part = ringpull_base::config::text(PART).unwrap_or_default();
    let outcome = match part.as_str() {
        "open" => ringpull_device::open("cuda").map(drop),
        "survey" => {
            survey();
            Ok(())
        }
        "operations" => operations(),
        "slices" => slices(),
        "refused" => refused(),
        "step" => step(),
        "pinned" => pinned(),
        "ranks" => ranks(),
        "alone" => alone(),
        other => panic!("{PART}={other:?}"),
    };
    match outcome {
        Ok(()) => println!("outcome: all is right"),
        Err(error) => println!("outcome: {}", error.to_string().replace('\n', " ")),
    }
}

/// Everything that a platform does, with sums that are checked.
fn step() -> Result<()> {
    let devices = ringpull_device::open("cuda")?;
    let layout = Layout::new(LEN, 4, devices.count());
    let tensors = (0..devices.count()).map(|device| upload(&devices, device, 1.0)).collect::<Result<Vec<_>>>()?;
    let slices: Vec<Slice> = tensors.iter().filter_map(|one| Some(array_of(one.remote())?.slice().clone())).collect();
    let parts = devices.parts(&layout)?;
    let follow = || -> Result<()> {
        for (device, tensor) in tensors.iter().enumerate() {
            let array = devices.array(tensor.remote())?;
            devices.lane(device).follow(array.stream())?;
        }
        devices.join()
    };
    let back = || -> Result<()> {
        devices.join()?;
        for (device, tensor) in tensors.iter().enumerate() {
            let array = devices.array(tensor.remote())?;
            array_stream(array).follow(devices.lane(device))?;
        }
        Ok(())
    };
    // Sum once by collectives, with a tensor on each device, and once by copies and kernels, with two tensors
    // on one device.
    follow()?;
    devices.sum_parts(DType::F32, &layout, &slices, &parts, &mut SumScratch::default())?;
    devices.join()?;
    devices.gather_parts(DType::F32, &layout, &parts, &slices)?;
    back()?;
    let sum = devices.count() as f32;
    expect(&devices, &tensors, sum)?;
    follow()?;
    let twice = [slices[0].clone(), slices[0].clone()];
    let mut scratch = SumScratch::default();
    devices.sum_parts(DType::F32, &layout, &twice, &parts, &mut scratch)?;
    devices.join()?;
    devices.gather_parts(DType::F32, &layout, &parts, &slices[..1])?;
    back()?;
    devices.drain(LIMIT)?;
    expect(&devices, &tensors[..1], 2.0 * sum)?;
    drop(scratch);
    for kind in [CollectiveKind::AllReduce, CollectiveKind::Broadcast(0), CollectiveKind::Reduce(0)] {
        follow()?;
        devices.collective(&[Collective { kind, dtype: DType::F32, send: slices.clone(), receive: slices.clone() }])?;
        back()?;
    }
    devices.drain(LIMIT)?;
    for dtype in DType::ALL {
        let full = |value| Tensor::full(dtype, &[LEN], value);
        let of_dtype = |device| devices.upload(device, &full(2.0));
        let tensors = (0..devices.count()).map(of_dtype).collect::<Result<Vec<_>>>()?;
        let slices: Vec<Slice> =
            tensors.iter().filter_map(|one| Some(array_of(one.remote())?.slice().clone())).collect();
        let kind = CollectiveKind::AllReduce;
        devices.collective(&[Collective { kind, dtype, send: slices.clone(), receive: slices }])?;
        devices.drain(LIMIT)?;
        for tensor in &tensors {
            let seen = devices.download(tensor)?;
            assert_eq!(seen.read()?.bytes(), full(2.0 * f64::from(sum)).read()?.bytes(), "{dtype}");
        }
    }
    let copy = devices.copy_beside(&tensors[0])?;
    devices.download(&copy)?;
    lend(&devices)?;
    for tensor in &tensors {
        devices.settle(tensor)?;
    }
    Ok(())
}

/// Copies both ways through pinned memory that is long enough to be shared with other ranks.
fn pinned() -> Result<()> {
    let devices = ringpull_device::open("cuda")?;
    let memory = Memory::pinned(devices.platform(), 4 << 20)?;
    let slice = Slice::all(&memory);
    let is_shared = ringpull_base::buffer::arena::of_process()
        .is_some_and(|arena| slice.host_bytes().is_ok_and(|bytes| arena.offset_of(&bytes).is_some()));
    println!("shared: {is_shared}");
    let tensor = devices.upload(0, &Tensor::full(DType::F32, &[1 << 20], 3.0))?;
    expect(&devices, &[tensor], 3.0)
}

fn array_stream(array: &ringpull_device::Array) -> &Stream {
    array.stream()
}

fn upload(devices: &Devices, device: usize, value: f64) -> Result<Tensor> {
    devices.upload(device, &Tensor::full(DType::F32, &[LEN], value))
}

fn expect(devices: &Devices, tensors: &[Tensor], value: f32) -> Result<()> {
    for tensor in tensors {
        let seen = devices.download(tensor)?.to_vec::<f32>()?;
        assert!(seen.iter().all(|one| *one == value), "{} instead of {value}", seen[0]);
    }
    Ok(())
}

/// Memory of another owner is taken, and refused if it is on another device.
#[allow(unsafe_code)]
fn lend(devices: &Arc<Devices>) -> Result<()> {
    let memory = Memory::on(devices.platform(), 0, LEN * 4)?;
    assert_eq!(devices.holder_of(memory.address())?, 0);
    // SAFETY: the memory lives in the lender, and nobody else uses it.
    let loan = unsafe { Loan::new(memory.address(), LEN * 4) };
    let lent = devices.lent(0, (DType::F32, &[LEN]), &loan, None, Box::new(Arc::clone(&memory)))?;
    let array = devices.array(lent.remote())?;
    devices.platform().enqueue(array.stream(), &Work::zero(array.slice().clone()))?;
    devices.settle(&lent)?;
    if devices.count() > 1 {
        let refused = devices.lent(1, (DType::F32, &[LEN]), &loan, None, Box::new(memory)).err();
        let text = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("memory of GPU 0 was given as memory of GPU 1"), "{text}");
    }
    Ok(())
}

#[test]
fn every_operation_is_right_and_gives_everything_back() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (out, findings) = process(&gpus.with("FAKE_CUDA_LEAKS", "1"), "step", "");
    assert!(out.contains("outcome: all is right"), "{out}");
    // Objects that are made once for the process are kept.
    assert_eq!(findings, "");
    let one = FakeGpus::new("1").unwrap();
    let (out, findings) = process(&one, "step", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

#[test]
fn ranks_of_a_host_share_the_memory_that_copies_go_through_where_the_driver_pins_it() {
    for (ranks, fault, is_shared) in [
        ("2", "", true),
        ("2", "cuMemHostRegister_v2@1=801", false),
        ("2", "cuMemHostUnregister@1=999", true),
        ("1", "", false),
    ] {
        let Some(gpus) = FakeGpus::new("1") else { return };
        let gpus = gpus.with("OMPI_COMM_WORLD_LOCAL_SIZE", ranks).with("FAKE_CUDA_LEAKS", "1");
        let (out, findings) = process(&gpus, "pinned", fault);
        assert!(
            out.contains(&format!("shared: {is_shared}")) && out.contains("outcome: all is right"),
            "{fault}: {out}"
        );
        assert!(findings.is_empty() != fault.contains("Unregister"), "{fault}: {findings}");
    }
}

/// The call that fails, with its number among calls of its kind and its code, and the text that the error
/// must contain.
const FAILING: &[(&str, &str)] = &[
    ("cuInit@1=100", "cuInit"),
    ("cuDeviceGetCount@1=3", "cuDeviceGetCount"),
    ("cuDeviceGet@2=101", "cuDeviceGet"),
    ("cuDeviceGetName@1=1", "cuDeviceGetName"),
    ("cuDriverGetVersion@1=1", "cuDriverGetVersion"),
    ("cuDeviceGetAttribute@3=1", "cuDeviceGetAttribute"),
    ("cuDevicePrimaryCtxRetain@2=2", "cuDevicePrimaryCtxRetain"),
    ("cuCtxSetCurrent@1=201", "cuCtxSetCurrent"),
    ("cuCtxSetCurrent@3=201", "cuCtxSetCurrent"),
    ("cuCtxSetCurrent@12=201", "cuCtxSetCurrent"),
    ("cuModuleLoadData@2=218", "cuModuleLoadData"),
    ("cuModuleGetFunction@5=500", "cuModuleGetFunction"),
    ("cuCtxEnablePeerAccess@1=217", "cuCtxEnablePeerAccess"),
    ("ncclCommInitAll@1=5", "ncclCommInitAll"),
    ("cuStreamCreate@3=2", "cuStreamCreate"),
    ("cuMemAlloc_v2@1=2", "cuMemAlloc"),
    ("cuMemAlloc_v2@4=2", "cuMemAlloc"),
    ("cuMemHostAlloc@2=2", "cuMemHostAlloc"),
    ("cuEventCreate@2=2", "cuEventCreate"),
    ("cuEventRecord@3=400", "cuEventRecord"),
    ("cuEventQuery@2=719", "cuEventQuery"),
    ("cuStreamWaitEvent@2=400", "cuStreamWaitEvent"),
    ("cuMemsetD8Async@1=1", "cuMemsetD8Async"),
    ("cuMemcpyHtoDAsync_v2@2=1", "cuMemcpyHtoDAsync"),
    ("cuMemcpyDtoHAsync_v2@1=1", "cuMemcpyDtoHAsync"),
    ("cuMemcpyDtoDAsync_v2@1=1", "cuMemcpyDtoDAsync"),
    ("cuMemcpyPeerAsync@1=1", "cuMemcpyPeerAsync"),
    ("cuLaunchKernel@1=701", "sum_f32"),
    ("cuPointerGetAttribute@1=1", "cuPointerGetAttribute"),
    ("ncclGroupStart@1=3", "ncclGroupStart"),
    ("ncclGroupEnd@1=1", "ncclGroupEnd"),
    ("ncclReduceScatter@2=4", "ncclReduceScatter"),
    ("ncclReduce@1=4", "ncclReduce"),
    ("ncclAllGather@1=4", "ncclAllGather"),
    ("ncclBroadcast@2=4", "ncclBroadcast"),
    ("ncclAllReduce@1=4", "ncclAllReduce"),
    ("ncclCommGetAsyncError@3=3", "ncclCommGetAsyncError"),
];

#[test]
fn every_call_that_fails_is_one_error_that_names_it() {
    with_each("step", FAILING, |fault, out| fault.split('=').nth(1).is_some_and(|code| out.contains(code)));
}

#[test]
fn work_that_fails_later_or_never_ends_is_one_error_too() {
    let begun = Instant::now();
    let faults = [
        ("run:cuMemsetD8Async@2=719", "719"),
        ("run:cuMemcpyHtoDAsync_v2@1=700", "700"),
        ("run:cuLaunchKernel@1=715", "715"),
        ("run:ncclReduceScatter@1=719", "failed"),
        ("run:ncclAllGather@2=719", "failed"),
        ("hang:cuLaunchKernel@1", "not done in 5s"),
        ("hang:ncclAllReduce@1", "not done in 5s"),
    ];
    with_each("step", &faults, |_, _| true);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_cannot_be_given_back_changes_nothing() {
    for (part, entry) in [
        ("step", "cuMemFree_v2"),
        ("step", "cuMemFreeHost"),
        ("step", "cuStreamDestroy_v2"),
        ("step", "cuEventDestroy_v2"),
        ("ranks", "ncclCommFinalize"),
    ] {
        let Some(gpus) = FakeGpus::new("2") else { return };
        let (out, findings) = process(&gpus, part, &format!("{entry}@1=999"));
        assert!(out.contains("outcome: all is right") && findings.is_empty(), "{entry}: {out}{findings}");
    }
}

#[test]
fn a_driver_older_than_nvrtc_gets_code_that_it_runs_or_one_error_with_a_remedy() {
    for (driver, part, named, finding) in [
        ("13000", "open", "outcome: all is right", ""),
        ("13000", "step", "operation not supported", "as a GPU's own code"),
        ("12040", "open", "this driver is of CUDA 12.4   hint: install a driver of CUDA 13", ""),
    ] {
        let Some(gpus) = FakeGpus::new("1") else { return };
        let (out, findings) = process(&gpus.with("FAKE_CUDA_DRIVER", driver), part, "");
        assert!(out.contains(named), "{driver} {part}: {out}");
        assert!(findings.contains(finding) && findings.is_empty() == finding.is_empty(), "{driver} {part}: {findings}");
    }
}

#[test]
fn kernels_are_compiled_also_where_nothing_can_be_kept() {
    let Some(gpus) = FakeGpus::new("1") else { return };
    let (out, findings) = process(&gpus.with("XDG_CACHE_HOME", "/proc/none"), "open", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

/// Runs two ranks as threads, with one GPU each, and joins them.
fn ranks() -> Result<()> {
    let first = ringpull_device::open("cuda:0")?;
    let ids = vec![first.platform().unique_id()?];
    let second = ringpull_device::open("cuda:1")?;
    let running: Vec<_> = [first, second]
        .into_iter()
        .enumerate()
        .map(|(rank, devices)| {
            let meeting = Meeting { ids: ids.clone(), rank, size: 2 };
            std::thread::spawn(move || one_rank(&devices, &meeting))
        })
        .collect();
    let outcomes: Vec<Result<()>> = running.into_iter().map(|rank| rank.join().unwrap()).collect();
    for (rank, outcome) in outcomes.iter().enumerate() {
        println!("rank {rank}: {outcome:?}");
    }
    let is_cause = |outcome: &Result<()>| matches!(outcome, Err(cause) if !matches!(cause, Error::PeerLost { .. }));
    let at = outcomes.iter().position(is_cause).unwrap_or(0);
    outcomes.into_iter().nth(at).unwrap_or(Ok(()))
}

fn one_rank(devices: &Arc<Devices>, meeting: &Meeting) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(2);
    let go_on = || if Instant::now() < until { Ok(()) } else { Err(Error::argument("another rank is late", "wait")) };
    assert!(devices.platform().can_join());
    let joined = JoinedDevices::at(devices.platform(), meeting, &go_on)?;
    for _ in 0..3 {
        let tensor = upload(devices, 0, (meeting.rank + 1) as f64)?;
        let array = devices.array(tensor.remote())?;
        devices.lane(0).follow(array.stream())?;
        let part = array.slice().clone();
        devices.sum_over_ranks(&joined, (DType::F32, &[part]), LIMIT, (LIMIT, &go_on))?;
        array.stream().follow(devices.lane(0))?;
        expect(devices, &[tensor], 3.0)?;
    }
    Ok(())
}

/// Runs one of two ranks. The other never comes.
fn alone() -> Result<()> {
    let devices = ringpull_device::open("cuda:0")?;
    let meeting = Meeting { ids: vec![devices.platform().unique_id()?], rank: 0, size: 2 };
    one_rank(&devices, &meeting)
}

#[test]
fn a_rank_whose_peer_never_comes_stops_waiting_when_it_is_told() {
    let Some(gpus) = FakeGpus::new("1") else { return };
    let (out, findings) = process(&gpus, "alone", "");
    assert!(out.contains("outcome: another rank is late"), "{out}");
    assert_eq!(findings, "");
}

#[test]
fn ranks_that_join_sum_and_part() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (out, findings) = process(&gpus, "ranks", "");
    assert!(out.contains("outcome: all is right"), "{out}");
    assert_eq!(findings, "");
}

#[test]
fn ranks_join_from_nccl_2_14_on() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (out, findings) = process(&gpus.with("FAKE_NCCL_VERSION", "21400"), "ranks", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

#[test]
fn ranks_whose_nccl_fails_get_an_error_each_and_wait_for_nobody() {
    let faults = [
        ("ncclGetUniqueId@1=2", "ncclGetUniqueId"),
        ("ncclCommInitRankConfig@1=3", "ncclCommInitRankConfig"),
        ("ncclCommInitRankConfig@1=5", "refuses ranks that share a GPU"),
        ("ncclCommInitRankConfig@2=2", "ncclCommInitRankConfig"),
        ("ncclCommGetAsyncError@2=2", "ncclCommGetAsyncError"),
        ("ncclAllReduce@3=4", "ncclAllReduce"),
        ("hang:ncclAllReduce@2", "late"),
    ];
    with_each("ranks", &faults, |_, out| !out.contains("Ok(())"));
}

/// Checks every kernel against the bits of the reference.
fn operations() -> Result<()> {
    let checks = ringpull_device::check_operations(&ringpull_device::open("cuda")?, 4 << 10);
    let wrong = checks.into_iter().filter_map(|(name, outcome)| Some(format!("{name}: {}", outcome.err()?)));
    let wrong: Vec<String> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(Error::bug(wrong.join("; "))) }
}

#[test]
fn every_kernel_gives_the_bits_of_the_reference() {
    let Some(gpus) = FakeGpus::new("1") else { return };
    let (out, findings) = process(&gpus, "operations", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

/// Checks that an impossible request is an error with a text, even if the layers above never make it.
#[allow(unsafe_code)]
fn refused() -> Result<()> {
    let says = |outcome: Result<()>, named: &str| {
        let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(named), "{text:?} instead of {named}");
    };
    says(ringpull_device::open("cuda:7").map(drop), "the driver shows 2");
    let devices = ringpull_device::open("cuda")?;
    let (platform, lane) = (devices.platform(), devices.lane(0));
    assert_eq!(platform.describe(1), "Fake GPU 1 (GPU 1)");
    let (memory, pinned) = (Slice::all(&Memory::on(platform, 0, 8)?), Slice::all(&Memory::pinned(platform, 8)?));
    let other = ringpull_device::open("cuda:1")?.holder_of(memory.address()).map(drop);
    says(other, "memory of GPU 0 for a store that works on GPUs 1");
    let put = |operation, reads, writes| platform.enqueue(lane, &Work { operation, reads, writes });
    put(Operation::Zero, Vec::new(), vec![memory.part(0..0)])?;
    says(put(Operation::Zero, Vec::new(), vec![memory.clone(); 2]), "with 0 reads and 2 writes");
    says(put(Operation::Copy, vec![pinned.clone()], vec![pinned]), "from host to host");
    // SAFETY: there is no memory.
    let loan = unsafe { Loan::new(0, 0) };
    devices.lent(0, (DType::F32, &[0]), &loan, None, Box::new(()))?;
    says(platform.collective(&[], &[]), "libnccl.so.2");
    says(platform.unique_id().map(drop), "libnccl.so.2, libnccl.so, 2.14 or later");
    let meeting = Meeting { ids: Vec::new(), rank: 0, size: 2 };
    says(platform.join(&meeting, &|| Ok(())).map(drop), "ncclCommInitRankConfig");
    says(platform.sum_joined(1, &[], DType::F32, &[], &|| Ok(())), "the ranks have parted");
    assert!(!platform.can_join() && !platform.has_collectives());
    Ok(())
}

#[test]
fn what_cannot_be_done_is_an_error_in_words() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (out, findings) = process(&gpus.without_nccl(), "refused", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

/// cudarc's slices as tensors.
#[allow(unsafe_code)]
fn slices() -> Result<()> {
    let devices = ringpull_device::open("cuda:0")?;
    let lend = |ordinal: usize, of_thread: bool| {
        let context = CudaContext::new(ordinal).unwrap();
        let stream = if of_thread { context.per_thread_stream() } else { context.new_stream().unwrap() };
        let slice = Arc::new(stream.clone_htod(&[3f32; LEN]).unwrap());
        // SAFETY: the lender keeps the slice, and nobody else uses it.
        unsafe { devices.lent_slice(&*slice, &[LEN], Box::new(Arc::clone(&slice))) }
    };
    expect(&devices, &[lend(0, false)?], 3.0)?;
    for (ordinal, of_thread, named) in [(1, false, "a slice on GPU 1"), (0, true, "per-thread default stream")] {
        let text = lend(ordinal, of_thread).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains(named), "{text}");
    }
    Ok(())
}

#[test]
fn slices_of_cudarc_are_tensors_on_their_stream() {
    let Some(gpus) = FakeGpus::new("2") else { return };
    let (out, findings) = process(&gpus, "slices", "");
    assert!(out.contains("outcome: all is right") && findings.is_empty(), "{out}{findings}");
}

fn survey() {
    let survey = ringpull_device::survey();
    println!("{} {:?} {} {}", survey.driver, survey.devices, survey.nccl, survey.peer_access());
}

#[test]
fn a_machine_is_surveyed_without_keeping_anything_open() {
    let Some(gpus) = FakeGpus::new("3") else { return };
    for (gpus, words) in [(gpus, "2.28.5"), (FakeGpus::new("3").unwrap().without_nccl(), "libnccl.so.2")] {
        let (out, findings) = process(&gpus, "survey", "");
        for word in ["CUDA 13.5", "Fake GPU 2", "0->1 0->2 1->0 1->2 2->0 2->1", words] {
            assert!(out.contains(word), "{word}: {out}");
        }
        assert_eq!(findings, "");
    }
    let faults = [
        ("cuInit@1=100", "cuInit"),
        ("cuDriverGetVersion@1=1", "cuDriverGetVersion"),
        ("cuDeviceGetCount@1=3", "cuDeviceGetCount"),
        ("cuDeviceGetName@1=1", "invalid argument"),
        ("cuDeviceCanAccessPeer@1=1", "1->0"),
        ("ncclGetVersion@1=1", "libnccl.so.2"),
    ];
    with_each("survey", &faults, |_, _| true);
}
