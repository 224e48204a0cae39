//! Tests the mistakes that the fake driver must find. Each is made once, beside a case without the mistake.
//! Also tests CUDA's rules of order, which it must keep. Each case is a separate process, since a real
//! mistake ends a context.
#![allow(unsafe_code)]
#![allow(clippy::borrow_as_ptr, clippy::semicolon_if_nothing_returned)]

use std::ffi::{CString, c_int, c_void};
use std::process::Command;
use std::ptr::null;
use std::thread;
use std::time::{Duration, Instant};

use ringpull_fake_cuda::codes::*;
use ringpull_fake_cuda::driver::*;
use ringpull_fake_cuda::nccl::*;

/// The variable with the name of a process's case.
const CASE: &str = "FAKE_CUDA_CASE";

struct Case {
    name: &'static str,
    run: fn(),
    /// The text that must be among the findings; nothing may be found if it is empty.
    finding: &'static str,
    env: &'static [(&'static str, &'static str)],
}

const fn case(name: &'static str, run: fn(), finding: &'static str) -> Case {
    Case { name, run, finding, env: &[] }
}

const CASES: &[Case] = &[
    case("a kernel that stays within its memory", || fill(1024, 256, 0), ""),
    case(
        "a kernel that writes beyond its memory",
        || fill(1000, 256, ILLEGAL_ADDRESS),
        "illegal address: kernel fill: 4 bytes at byte 1000 of 1000 bytes of GPU 0: 4 too many",
    ),
    case("a kernel that is given odd addresses", misaligned, "misaligned address: kernel fill: fill accesses 4 bytes"),
    case("a kernel on memory that was given back", freed, "40 bytes of GPU 0 that were given back"),
    case(
        "a copy to memory that was given back",
        copied_after_free,
        "illegal address: cuMemcpyHtoDAsync: 4 bytes at byte 0 of 4 bytes of GPU 0 that were given back",
    ),
    case(
        "memory given back twice",
        freed_twice,
        "cuMemFree: 1 bytes at byte 0 of 4 bytes of GPU 0 that were given back",
    ),
    case("pinned memory given back under a copy", unpinned, "a copy to a device: 4 bytes at"),
    case("the program's own memory, registered", || registered(false), ""),
    case(
        "registered memory given back as if it were the driver's",
        || registered(true),
        "cuMemFreeHost: memory that was only registered",
    ),
    case("two streams that nothing orders", || two_streams(false), "no order: a memset on stream"),
    case("two streams that an event orders", || two_streams(true), ""),
    case("two streams that the host orders", ordered_by_the_host, ""),
    case("two streams that write next to each other", neighbours, ""),
    case(
        "no current context",
        || {
            assert_eq!(cuInit(0), 0);
            assert_eq!(cuMemAlloc_v2(&mut 0, 4), INVALID_CONTEXT)
        },
        "wrong context: cuMemAlloc without a current context",
    ),
    case(
        "a stream of another context",
        || other_context(false),
        "wrong context: cuMemsetD8Async on a stream of GPU 0 while GPU 1 is current",
    ),
    case("a kernel of another context", || other_context(true), "wrong context: fill of GPU 0 on a stream of GPU 1"),
    case(
        "a peer copy with the wrong contexts",
        wrong_peers,
        "cuMemcpyPeerAsync: memory of GPU 0 with the context of GPU 1",
    ),
    case("a kernel that reaches a peer", || peer(true), ""),
    case(
        "a kernel that reaches a peer without access",
        || peer(false),
        "memory of GPU 1, which GPU 0 was not given access to",
    ),
    case("the host touches memory of a device", touch, "the host touched memory of GPU 1 at 0x"),
    Case {
        name: "the host touches memory of a device while NCCL sums with another process",
        run: || beside_nccl(true),
        finding: "the host touched memory of GPU 0 at 0x",
        env: &[("FAKE_CUDA_HOST_REACHES", "1")],
    },
    Case {
        name: "a host that may touches memory of a device before and after such a sum",
        run: || beside_nccl(false),
        finding: "",
        env: &[("FAKE_CUDA_HOST_REACHES", "1")],
    },
    case("a stream that was destroyed", destroyed, "wrong handle: cuStreamSynchronize"),
    case("a launch of no threads", empty_launch, "invalid launch: fill with grid [1, 1, 1] and block [0, 1, 1]"),
    case("PTX that the double does not know", unknown_ptx, "not in the double: fill: bar.sync 0"),
    case("a cubin of another GPU", foreign_cubin, "wrong cubin: for sm_90 on a device of [8, 0]"),
    case("copies of pinned and of pageable memory", copies, ""),
    case("the default streams", default_streams, ""),
    case("all memory of a device", exhausted, ""),
    case("memory is not given out again at once", reused, ""),
    Case {
        name: "what is left at the end",
        run: leak,
        finding: "leak: 4 bytes of Device(0)",
        env: &[("FAKE_CUDA_LEAKS", "1")],
    },
    Case {
        name: "nothing is left at the end",
        run: || fill(1024, 256, 0),
        finding: "",
        env: &[("FAKE_CUDA_LEAKS", "1")],
    },
    Case {
        name: "a call that is to fail",
        run: injected,
        finding: "",
        env: &[("FAKE_CUDA_FAULT", "cuMemAlloc_v2@2=2,run:cuMemsetD8Async@1=719")],
    },
    Case {
        name: "work that never ends",
        run: hanging,
        finding: "",
        env: &[("FAKE_CUDA_FAULT", "hang:cuMemsetD8Async@1")],
    },
    Case { name: "two GPUs of which one is seen", run: hidden, finding: "", env: &[("CUDA_VISIBLE_DEVICES", "1")] },
    Case { name: "an old driver and new PTX", run: old_driver, finding: "", env: &[("FAKE_CUDA_DRIVER", "12040")] },
    case("a collective in a group", || collective(4, 4, true), ""),
    case("collectives of different lengths", || collective(4, 2, false), "wrong use of NCCL: collective 0: rank"),
    case(
        "a collective beyond its memory",
        || collective(400, 400, false),
        "wrong use of NCCL: ncclAllReduce: 1600 bytes at byte 0 of 16 bytes of GPU 0",
    ),
    case(
        "a collective on another GPU's stream",
        foreign_stream,
        "wrong use of NCCL: ncclAllReduce of GPU 0 on a stream of GPU 1",
    ),
    case("a GPU that joins itself", || assert_eq!(join([0, 0]), [5, 5]), ""),
    case("GPUs that join", || assert_eq!(join([0, 1]), [0, 0]), ""),
    case("a collective that its peer never calls", abandoned, ""),
];

/// Stores a thread's index in its element.
const FILL: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 fill_0)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [fill_0];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r1;
    ret;
}";

#[test]
fn every_planted_mistake_is_found_and_nothing_else() {
    let mut wrong = Vec::new();
    for Case { name, finding, env, .. } in CASES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["one_case", "--exact", "--ignored", "--nocapture"]);
        command.env_remove("FAKE_CUDA_FAULT").env("FAKE_CUDA_DEVICES", "2x1").env(CASE, name).envs(env.iter().copied());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("fake-cuda: ")).collect();
        let as_expected =
            if finding.is_empty() { found.is_empty() } else { found.iter().any(|line| line.contains(finding)) };
        // A process that touches forbidden memory has no exit status.
        if !as_expected
            || (output.status.code().is_some() != output.status.success())
            || (output.status.code().is_none() != finding.starts_with("the host touched"))
        {
            wrong.push(format!("== {name}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stdout)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "a process of the test above"]
fn one_case() {
    let name = std::env::var(CASE).unwrap_or_default();
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    (case.run)();
}

/// Starts the driver and makes GPU 0 current.
fn start() {
    assert_eq!(cuInit(0), 0);
    current(0);
}

fn current(device: c_int) {
    let mut context = 0;
    assert_eq!(cuDevicePrimaryCtxRetain(&mut context, device), 0);
    assert_eq!(cuCtxSetCurrent(context), 0);
}

fn memory(len: usize) -> u64 {
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(&mut address, len), 0);
    address
}

fn pinned(len: usize) -> u64 {
    let mut address = 0;
    assert_eq!(cuMemHostAlloc(&mut address, len, 1), 0);
    address
}

/// Copies through memory of the program's own; `as_allocated` gives it back by the wrong call.
fn registered(as_allocated: bool) {
    start();
    let mut own = vec![1u32; 4096];
    let (address, len) = (own.as_mut_ptr() as u64, 4 * own.len());
    assert_eq!(cuMemHostRegister_v2(address, len, 1), 0);
    assert_eq!(cuMemHostRegister_v2(address + 4096, 4, 1), ALREADY_REGISTERED);
    let (memory, stream) = (memory(len), stream(1));
    assert_eq!(cuMemcpyHtoDAsync_v2(memory, address, len, stream), 0);
    assert_eq!(cuMemsetD8Async(memory, 0, 4, stream), 0);
    assert_eq!(cuMemcpyDtoHAsync_v2(address, memory, len, stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(own[..2], [0, 1]);
    if as_allocated {
        assert_eq!(cuMemFreeHost(address), INVALID_VALUE);
    }
    assert_eq!(cuMemHostUnregister(address), 0);
}

fn stream(flags: u32) -> usize {
    let mut stream = 0;
    assert_eq!(cuStreamCreate(&mut stream, flags), 0);
    stream
}

fn event() -> usize {
    let mut event = 0;
    assert_eq!(cuEventCreate(&mut event, 2), 0);
    event
}

fn function() -> usize {
    let (mut module, mut function) = (0, 0);
    let text = CString::new(FILL).unwrap();
    assert_eq!(cuModuleLoadData(&mut module, text.as_ptr()), 0);
    assert_eq!(cuModuleGetFunction(&mut function, module, c"fill".as_ptr()), 0);
    assert_eq!(cuModuleGetFunction(&mut 0, module, c"other".as_ptr()), NOT_FOUND);
    function
}

fn launch(function: usize, threads: u32, address: u64, stream: usize) -> c_int {
    let parameters = [(&raw const address).cast::<c_void>()];
    cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters.as_ptr(), null())
}

/// Returns the content at a device's address.
fn read<const LEN: usize>(address: u64) -> [u32; LEN] {
    let mut values = [0u32; LEN];
    assert_eq!(cuMemcpyDtoHAsync_v2(values.as_mut_ptr() as u64, address, LEN * 4, 0), 0);
    values
}

fn fill(len: usize, threads: u32, expected: c_int) {
    start();
    let (function, address) = (function(), memory(len));
    assert_eq!(launch(function, threads, address, 0), 0);
    assert_eq!(cuStreamSynchronize(0), expected);
    if expected == 0 {
        assert_eq!(read::<3>(address + 4), [1, 2, 3]);
        assert_eq!(cuMemFree_v2(address), 0);
    } else {
        // It is not forgotten.
        assert_eq!(cuMemAlloc_v2(&mut 0, 4), expected);
    }
}

fn misaligned() {
    start();
    assert_eq!(launch(function(), 1, memory(64) + 2, 0), 0);
    assert_eq!(cuCtxSynchronize(), MISALIGNED_ADDRESS);
}

fn freed() {
    start();
    let address = memory(40);
    assert_eq!(cuMemFree_v2(address), 0);
    assert_eq!(launch(function(), 1, address, 0), 0);
    assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
}

fn copied_after_free() {
    start();
    let address = memory(4);
    assert_eq!(cuMemFree_v2(address), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(address, (&raw const address) as u64, 4, 0), INVALID_VALUE);
}

fn freed_twice() {
    start();
    let address = memory(4);
    assert_eq!((cuMemFree_v2(address), cuMemFree_v2(address), cuMemFree_v2(0)), (0, INVALID_VALUE, 0));
}

fn unpinned() {
    start();
    let (from, to, own) = (pinned(4), memory(4), stream(1));
    // The stream is behind work of another that has not ended.
    let (other, mark) = (stream(1), event());
    (0..200).for_each(|_| assert_eq!(cuMemsetD8Async(to, 0, 4, other), 0));
    assert_eq!(launch(function(), 1024, memory(4096), other), 0);
    assert_eq!(cuEventRecord(mark, other), 0);
    assert_eq!(cuStreamWaitEvent(own, mark, 0), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(to, from, 4, own), 0);
    assert_eq!(cuMemFreeHost(from), 0);
    assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
}

fn two_streams(ordered: bool) {
    start();
    let (address, one, two, mark) = (memory(64), stream(1), stream(1), event());
    assert_eq!(cuMemsetD8Async(address, 1, 64, one), 0);
    if ordered {
        assert_eq!(cuEventRecord(mark, one), 0);
        assert_eq!(cuStreamWaitEvent(two, mark, 0), 0);
    }
    assert_eq!(cuMemsetD8Async(address + 60, 2, 4, two), 0);
    assert_eq!(cuCtxSynchronize(), if ordered { 0 } else { LAUNCH_FAILED });
}

fn ordered_by_the_host() {
    start();
    let (address, one, two, mark) = (memory(64), stream(1), stream(1), event());
    assert_eq!(cuEventQuery(mark), 0);
    assert_eq!(cuMemsetD8Async(address, 1, 64, one), 0);
    assert_eq!(cuEventRecord(mark, one), 0);
    while cuEventQuery(mark) == NOT_READY {
        thread::yield_now();
    }
    assert_eq!(cuMemsetD8Async(address, 2, 64, two), 0);
    assert_eq!(cuEventRecord(mark, two), 0);
    assert_eq!(cuEventSynchronize(mark), 0);
    assert_eq!(cuMemsetD8Async(address, 3, 64, one), 0);
    assert_eq!(cuStreamSynchronize(one), 0);
    assert_eq!(read::<1>(address), [0x0303_0303]);
}

fn neighbours() {
    start();
    let (address, one, two) = (memory(64), stream(1), stream(1));
    assert_eq!(cuMemsetD8Async(address, 1, 32, one), 0);
    assert_eq!(launch(function(), 8, address + 32, two), 0);
    assert_eq!(cuCtxSynchronize(), 0);
}

fn other_context(is_kernel: bool) {
    start();
    let (function, address, of_0) = (function(), memory(4), stream(1));
    current(1);
    if is_kernel {
        assert_eq!(launch(function, 1, address, stream(1)), INVALID_CONTEXT);
    } else {
        assert_eq!(cuMemsetD8Async(address, 0, 4, of_0), INVALID_CONTEXT);
    }
}

fn wrong_peers() {
    start();
    let (mut contexts, of_0) = ([0; 2], memory(4));
    for (device, context) in contexts.iter_mut().enumerate() {
        assert_eq!(cuDevicePrimaryCtxRetain(context, device as c_int), 0);
    }
    current(1);
    let of_1 = memory(4);
    assert_eq!(cuMemcpyPeerAsync(of_1, contexts[1], of_0, contexts[0], 4, 0), 0);
    assert_eq!(cuMemcpyPeerAsync(of_1, contexts[0], of_0, contexts[1], 4, 0), INVALID_VALUE);
}

fn peer(allowed: bool) {
    start();
    let mut other = 0;
    current(1);
    let address = memory(4);
    assert_eq!(cuCtxGetCurrent(&mut other), 0);
    current(0);
    if allowed {
        let mut can = 0;
        assert_eq!((cuDeviceCanAccessPeer(&mut can, 0, 1), can), (0, 1));
        assert_eq!(
            (cuCtxEnablePeerAccess(other, 0), cuCtxEnablePeerAccess(other, 0)),
            (0, PEER_ACCESS_ALREADY_ENABLED)
        );
    }
    assert_eq!(launch(function(), 1, address, 0), 0);
    assert_eq!(cuCtxSynchronize(), if allowed { 0 } else { ILLEGAL_ADDRESS });
}

fn touch() {
    start();
    current(1);
    let address = memory(8) as *const u64;
    // SAFETY: none; it must end this process.
    println!("{}", unsafe { address.read_volatile() });
}

fn destroyed() {
    start();
    let own = stream(1);
    assert_eq!((cuStreamDestroy_v2(own), cuStreamSynchronize(own)), (0, INVALID_HANDLE));
}

fn empty_launch() {
    start();
    assert_eq!(launch(function(), 0, memory(4), 0), INVALID_VALUE);
}

fn unknown_ptx() {
    start();
    let text = CString::new(FILL.replace("ret;", "bar.sync 0; ret;")).unwrap();
    assert_eq!(cuModuleLoadData(&mut 0, text.as_ptr()), INVALID_PTX);
}

fn foreign_cubin() {
    start();
    let mut header = [0u8; 64];
    header[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
    header[49] = 90;
    assert_eq!(cuModuleLoadData(&mut 0, header.as_ptr().cast()), NO_BINARY_FOR_GPU);
}

fn copies() {
    start();
    let (source, address, own) = (pinned(4), memory(4), stream(1));
    let (other, mark) = (stream(1), event());
    // A stream that stands until the host lets it go on cannot be had, so the copy waits for long work.
    let write = |value: u32| {
        // SAFETY: pinned memory is the host's.
        unsafe { (source as *mut u32).write(value) };
    };
    write(1);
    let (function, much) = (function(), memory(4096));
    (0..300).for_each(|_| assert_eq!(launch(function, 1024, much, other), 0));
    assert_eq!(cuEventRecord(mark, other), 0);
    assert_eq!(cuStreamWaitEvent(own, mark, 0), 0);
    let pageable = 7u32;
    let second = memory(4);
    assert_eq!(cuMemcpyHtoDAsync_v2(second, (&raw const pageable) as u64, 4, own), 0);
    assert_eq!(cuMemcpyHtoDAsync_v2(address, source, 4, own), 0);
    write(2);
    assert_eq!(cuEventQuery(mark), NOT_READY);
    assert_eq!(cuStreamSynchronize(own), 0);
    assert_eq!((read::<1>(address), read::<1>(second)), ([2], [7]));
}

fn default_streams() {
    start();
    let (address, blocking) = (memory(4), stream(0));
    for own in [blocking, 0, blocking, 1, 2, 0] {
        assert_eq!(cuMemsetD8Async(address, own as u8, 4, own), 0);
    }
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(read::<1>(address), [0]);
}

fn exhausted() {
    start();
    let (mut free, mut total) = (0, 0);
    let kept = memory(1 << 19);
    assert_eq!(cuMemAlloc_v2(&mut 0, (1 << 19) + 1), OUT_OF_MEMORY);
    assert_eq!((cuMemGetInfo_v2(&mut free, &mut total), free, total), (0, 1 << 19, 1 << 20));
    assert_eq!(cuMemFree_v2(kept), 0);
    // The addresses go round.
    for _ in 0..100 {
        let all = memory(1 << 20);
        assert_eq!(cuMemFree_v2(all), 0);
    }
}

fn reused() {
    start();
    let first = memory(64);
    assert_eq!(cuMemsetD8Async(first, 3, 64, 0), 0);
    assert_eq!(cuMemFree_v2(first), 0);
    let second = memory(64);
    assert_ne!(first, second);
    assert_eq!(read::<1>(second), [u32::MAX]);
}

fn leak() {
    start();
    memory(4);
}

fn injected() {
    start();
    let address = memory(4);
    assert_eq!(cuMemAlloc_v2(&mut 0, 4), OUT_OF_MEMORY);
    memory(4);
    assert_eq!(cuMemsetD8Async(address, 0, 4, 0), 0);
    assert_eq!(cuCtxSynchronize(), LAUNCH_FAILED);
}

fn hanging() {
    start();
    let (address, own, mark) = (memory(4), stream(1), event());
    assert_eq!(cuMemsetD8Async(address, 0, 4, own), 0);
    assert_eq!(cuEventRecord(mark, own), 0);
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        assert_eq!(cuEventQuery(mark), NOT_READY);
    }
}

fn hidden() {
    start();
    let (mut count, mut name) = (0, [0u8; 32]);
    assert_eq!((cuDeviceGetCount(&mut count), count), (0, 1));
    assert_eq!(cuDeviceGetName(name.as_mut_ptr().cast(), 32, 0), 0);
    assert!(name.starts_with(b"Fake GPU 1\0"));
    assert_eq!(cuDeviceGet(&mut 0, 1), 101);
}

fn old_driver() {
    start();
    let load = |version: &str| {
        let text = CString::new(FILL.replace("8.0", version)).unwrap();
        cuModuleLoadData(&mut 0, text.as_ptr())
    };
    assert_eq!((load("8.4"), load("8.5")), (0, UNSUPPORTED_PTX_VERSION));
}

/// Communicators of both GPUs, a stream of each, and memory of 16 bytes with ones.
fn group() -> ([usize; 2], [usize; 2], [u64; 2]) {
    start();
    let (mut comms, mut streams, mut memories) = ([0; 2], [0; 2], [0; 2]);
    assert_eq!(ncclCommInitAll(comms.as_mut_ptr(), 2, [0, 1].as_ptr()), 0);
    for device in [1, 0] {
        current(device);
        (streams[device as usize], memories[device as usize]) = (stream(1), memory(16));
        let ones = [1f32; 4];
        let own = streams[device as usize];
        assert_eq!(cuMemcpyHtoDAsync_v2(memories[device as usize], ones.as_ptr() as u64, 16, own), 0);
    }
    (comms, streams, memories)
}

fn collective(first: usize, second: usize, fits: bool) {
    let (comms, streams, memories) = group();
    assert_eq!(ncclGroupStart(), 0);
    let codes: Vec<c_int> = [first, second]
        .into_iter()
        .enumerate()
        .map(|(rank, len)| ncclAllReduce(memories[rank], memories[rank], len, 7, 0, comms[rank], streams[rank]))
        .collect();
    let ended = ncclGroupEnd();
    if first * 4 > 16 {
        assert_eq!((codes, ended), (vec![4, 4], 4));
        return;
    }
    assert_eq!((codes, ended), (vec![0, 0], 0));
    if fits {
        for (device, own) in [(1, streams[1]), (0, streams[0])] {
            current(device);
            assert_eq!(cuStreamSynchronize(own), 0);
            assert_eq!(read::<4>(memories[device as usize]), [2f32.to_bits(); 4]);
        }
        assert_eq!(comms.map(|comm| ncclCommDestroy(comm)), [0, 0]);
        return;
    }
    let mut code = 0;
    while code == 0 {
        assert_eq!(ncclCommGetAsyncError(comms[0], &mut code), 0);
    }
    assert_eq!(code, 5);
    assert_eq!(comms.map(|comm| ncclCommAbort(comm)), [0, 0]);
    assert_eq!(cuStreamSynchronize(streams[0]), 0);
}

fn foreign_stream() {
    let (comms, streams, memories) = group();
    assert_eq!(ncclAllReduce(memories[0], memories[0], 4, 7, 0, comms[0], streams[1]), 5);
}

/// Returns the results of two threads' communicators that join on these GPUs.
fn join(devices: [c_int; 2]) -> [c_int; 2] {
    start();
    let mut id = UniqueId::default();
    assert_eq!(ncclGetUniqueId(&mut id), 0);
    let ranks = [0, 1].map(|rank| {
        thread::spawn(move || {
            current(devices[rank as usize]);
            let (mut comm, mut code) = (0, 7);
            let mut settings = ringpull_fake_cuda::nccl::Settings::not_blocking();
            assert_eq!(ncclCommInitRankConfig(&mut comm, 2, id, rank, &mut settings), 7);
            while code == 7 {
                assert_eq!(ncclCommGetAsyncError(comm, &mut code), 0);
            }
            if code == 0 {
                assert_eq!(ncclCommFinalize(comm), 7);
                let mut left = 7;
                while left == 7 {
                    assert_eq!(ncclCommGetAsyncError(comm, &mut left), 0);
                }
                assert_eq!((left, ncclCommDestroy(comm)), (0, 0));
            }
            code
        })
    });
    ranks.map(|rank| rank.join().unwrap())
}

/// Does the work of an MPI that takes memory of devices, before, during or after a sum over ranks.
fn beside_nccl(during: bool) {
    start();
    let (mut id, mut contexts) = (UniqueId::default(), [0; 2]);
    assert_eq!(ncclGetUniqueId(&mut id), 0);
    let mut comms = [0; 2];
    for device in [0, 1] {
        current(device);
        assert_eq!(cuCtxGetCurrent(&mut contexts[device as usize]), 0);
        let mut settings = ringpull_fake_cuda::nccl::Settings::not_blocking();
        assert_eq!(ncclCommInitRankConfig(&mut comms[device as usize], 2, id, device, &mut settings), 7);
    }
    for comm in comms {
        let mut code = 7;
        while code == 7 {
            assert_eq!(ncclCommGetAsyncError(comm, &mut code), 0);
        }
        assert_eq!(code, 0);
    }
    let (mut streams, mut memories) = ([0; 2], [0; 2]);
    for device in [0, 1] {
        assert_eq!(cuCtxSetCurrent(contexts[device]), 0);
        (streams[device], memories[device]) = (stream(1), memory(4));
        assert_eq!(cuMemsetD8Async(memories[device], 0, 4, streams[device]), 0);
        assert_eq!(cuStreamSynchronize(streams[device]), 0);
    }
    // SAFETY: memory of 4 bytes that the host may touch, and that no stream uses.
    let touch = || unsafe { (memories[0] as *mut u32).write_volatile(1f32.to_bits()) };
    touch();
    let sum = |rank: usize| ncclAllReduce(memories[rank], memories[rank], 1, 7, 0, comms[rank], streams[rank]);
    assert_eq!(sum(0), 0);
    if during {
        touch();
    }
    assert_eq!(sum(1), 0);
    for device in [0, 1] {
        assert_eq!(cuCtxSetCurrent(contexts[device]), 0);
        assert_eq!(cuStreamSynchronize(streams[device]), 0);
        assert_eq!(read::<1>(memories[device]), [1f32.to_bits()]);
    }
    touch();
}

fn abandoned() {
    let (comms, streams, memories) = group();
    assert_eq!(ncclAllReduce(memories[0], memories[0], 4, 7, 0, comms[0], streams[0]), 0);
    let mark = event();
    assert_eq!(cuEventRecord(mark, streams[0]), 0);
    assert_eq!(ncclCommAbort(comms[1]), 0);
    let mut code = 0;
    while code == 0 {
        assert_eq!(ncclCommGetAsyncError(comms[0], &mut code), 0);
    }
    // Its kernel holds the stream until it is aborted.
    assert_eq!((code, cuEventQuery(mark)), (6, NOT_READY));
    assert_eq!(ncclCommAbort(comms[0]), 0);
    assert_eq!(cuStreamSynchronize(streams[0]), 0);
}
