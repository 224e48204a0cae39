//! `libnccl.so.2`: the calls that we use, in the form that NCCL has had since 2.14.
//!
//! The ranks of a communicator meet at a hub (`hub`): in this process for `ncclCommInitAll`, otherwise in the
//! process that made the unique id, over a socket of the loopback (`link`). `sums` computes. A collective is
//! work of its stream. After a peer is lost it ends only when its communicator is aborted, like NCCL's
//! kernels.
#![allow(unsafe_code)]
#![allow(non_snake_case, missing_docs, clippy::not_unsafe_ptr_arg_deref)]

mod hub;
mod link;
mod sums;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::calls::{self, entries};
use crate::codes::Outcome;
use crate::findings::report;
use crate::machine;
use crate::memory::{self, MemoryHome};
use crate::order::{self, WorkStamp};
use crate::settings::{Effect, SETTINGS};
use crate::streams::{self, Stream};
use crate::work;
use hub::{Call, NcclHub};
use link::Link;
use sums::ElementKind;

const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// The time between two checks of a wait for an abort.
const LOOK: Duration = Duration::from_millis(1);

/// `ncclUniqueId`: the address of its hub.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

impl Default for UniqueId {
    fn default() -> Self {
        UniqueId([0; 128])
    }
}

/// The fields of `ncclConfig_t` that 2.14 had.
#[repr(C)]
pub struct Settings {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Settings {
    /// Calls return at once.
    pub fn not_blocking() -> Self {
        Settings { size: size_of::<Settings>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
    }
}

pub(crate) struct NcclComm {
    rank: usize,
    size: usize,
    device: usize,
    /// True if the ranks may be different processes.
    is_joined: bool,
    /// The link to the others, once all have come.
    link: OnceLock<Link>,
    /// The state of its calls.
    state: AtomicI32,
    is_aborted: AtomicBool,
    /// Collectives that were queued, and those that have run.
    queued: AtomicU64,
    ran: AtomicU64,
}

impl NcclComm {
    /// Returns a communicator of ranks that have yet to join, or of ranks that are all in this process.
    fn new(rank: usize, size: usize, device: usize, is_joined: bool) -> Arc<Self> {
        let state = AtomicI32::new(if is_joined { IN_PROGRESS } else { SUCCESS });
        let (link, is_aborted) = (OnceLock::new(), AtomicBool::new(false));
        let (queued, ran) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(NcclComm { rank, size, device, is_joined, link, state, is_aborted, queued, ran })
    }

    fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Returns true if a collective is queued that has not run.
    fn is_busy(&self) -> bool {
        self.ran.load(Ordering::Acquire) < self.queued.load(Ordering::Acquire)
    }

    fn set(&self, code: c_int) {
        self.state.store(code, Ordering::Release);
    }

    /// Waits like a kernel of NCCL whose peers never answer.
    fn await_abort(&self) {
        while !self.is_aborted() {
            thread::sleep(LOOK);
        }
    }
}

static COMMS: LazyLock<Mutex<HashMap<usize, Arc<NcclComm>>>> = LazyLock::new(Mutex::default);

fn comm(call: &str, id: usize) -> Outcome<Arc<NcclComm>> {
    COMMS.lock().get(&id).map(Arc::clone).ok_or_else(|| {
        report("wrong handle", &format!("{call}: {id:#x} is no communicator; was it destroyed?"));
        INVALID_ARGUMENT
    })
}

fn register(comm: Arc<NcclComm>) -> usize {
    let id = streams::fresh();
    COMMS.lock().insert(id, comm);
    id
}

fn wrong<T>(code: c_int, text: &str) -> Outcome<T> {
    report("wrong use of NCCL", text);
    Err(code)
}

/// A call that waits for the end of its group.
enum GroupedCall {
    Join { comm: Arc<NcclComm>, id: UniqueId, is_blocking: bool },
    Collective { comm: Arc<NcclComm>, stream: Arc<Stream>, call: Prepared, effect: Option<Effect> },
}

/// A collective of one rank.
struct Prepared {
    call: Call,
    send: u64,
    receive: u64,
    send_len: usize,
    receive_len: usize,
}

#[derive(Default)]
struct NcclGroup {
    depth: u32,
    pending: Vec<GroupedCall>,
    failed: Option<c_int>,
}

thread_local! {
    static GROUP: RefCell<NcclGroup> = RefCell::default();
}

/// Does `pending` now, or at the end of the group if one was begun.
fn put(pending: GroupedCall) {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(pending);
        }
        group.pending.push(pending);
        None
    });
    alone.into_iter().for_each(|alone| launch(vec![alone]));
}

fn launch(pending: Vec<GroupedCall>) {
    let mut together: Vec<usize> = Vec::new();
    for one in pending {
        match one {
            GroupedCall::Join { comm, id, .. } => {
                thread::spawn(move || join(&comm, &id));
            }
            GroupedCall::Collective { comm, stream, call, effect } => {
                // The hub is one for devices of one process: their streams wait for each other.
                if !matches!(call.call.kind, ElementKind::Broadcast | ElementKind::Reduce) {
                    together.push(stream.id);
                }
                let number = comm.queued.fetch_add(1, Ordering::AcqRel);
                if comm.is_joined {
                    memory::begin_joined(comm.device);
                }
                stream.put_as("a collective", effect, move |stamp| run(stamp, &comm, &call, number));
            }
        }
    }
    let clocks: Vec<order::VectorClock> = together.iter().map(|stream| order::known_to(*stream)).collect();
    for stream in &together {
        clocks.iter().for_each(|clock| order::learn(*stream, clock));
    }
}

fn join(comm: &Arc<NcclComm>, id: &UniqueId) {
    let physical = machine::known(comm.device).physical;
    match Link::to(&id.0, [comm.rank, comm.size, physical], &comm.is_aborted) {
        Ok(link) => {
            drop(comm.link.set(link));
            comm.set(SUCCESS);
        }
        Err(code) => comm.set(code),
    }
}

/// A collective, on its stream.
fn run(
    stamp: &WorkStamp,
    comm: &NcclComm,
    Prepared { call, send, receive, send_len, receive_len }: &Prepared,
    number: u64,
) -> Result<(), c_int> {
    let finish = |outcome: Result<(), c_int>| {
        comm.ran.fetch_add(1, Ordering::AcqRel);
        if comm.is_joined {
            memory::end_joined(comm.device);
        }
        outcome
    };
    if comm.is_aborted() {
        return finish(Ok(()));
    }
    let mut call = Call { number, ..call.clone() };
    if call.kind.gives(comm.rank, call.root) {
        let from = work::region(stamp, *send, *send_len, false)?.inner(*send);
        // SAFETY: the region has this many bytes, and is kept while work uses it.
        call.bytes = unsafe { std::slice::from_raw_parts(from, *send_len) }.to_vec();
    }
    let outcome = match comm.link.get() {
        Some(link) => link.exchange(comm.rank, call.clone(), &comm.is_aborted),
        None => Err(INVALID_USAGE),
    };
    match outcome {
        Ok(bytes) => {
            if call.kind.gets(comm.rank, call.root) {
                let to = work::region(stamp, *receive, *receive_len, true)?.inner(*receive);
                assert_eq!(bytes.len(), *receive_len, "the hub gives what was asked for");
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            }
        }
        Err(code) => {
            if !comm.is_aborted() {
                comm.set(code);
                comm.await_abort();
            }
        }
    }
    finish(Ok(()))
}

/// Queues a collective. A wrong collective fails its group.
fn collective(prepared: Outcome<GroupedCall>) -> Outcome<()> {
    prepared.map(put).inspect_err(|code| GROUP.with_borrow_mut(|group| group.failed = group.failed.or(Some(*code))))
}

fn prepare(
    kind: ElementKind,
    (send, receive, len): (u64, u64, usize),
    (dtype, operation, root): (c_int, c_int, c_int),
    comm_id: usize,
    stream: usize,
) -> Outcome<GroupedCall> {
    let name = &format!("nccl{kind:?}");
    let comm = comm(name, comm_id)?;
    match comm.state.load(Ordering::Acquire) {
        SUCCESS => {}
        code => return wrong(INVALID_USAGE, &format!("{name} on a communicator whose state is {code}")),
    }
    let Some(size) = sums::size_of(dtype) else { return wrong(INVALID_ARGUMENT, &format!("{name} of dtype {dtype}")) };
    if operation != 0 || root < 0 || root as usize >= comm.size {
        return wrong(INVALID_ARGUMENT, &format!("{name} with operation {operation} and root {root} of {}", comm.size));
    }
    let Some(stream) = streams::find(stream) else {
        return wrong(INVALID_ARGUMENT, &format!("{name} on {stream:#x}, which is no stream"));
    };
    if stream.device != comm.device {
        let text = format!("{name} of GPU {} on a stream of GPU {}", comm.device, stream.device);
        return wrong(INVALID_USAGE, &text);
    }
    machine::known(comm.device).check().map_err(|_| 1)?;
    let root = root as usize;
    let (send_len, receive_len) = kind.lengths(len * size, comm.size);
    let ends = [(send, send_len, kind.gives(comm.rank, root)), (receive, receive_len, kind.gets(comm.rank, root))];
    for (address, len, is_used) in ends {
        if !is_used || len == 0 {
            continue;
        }
        match memory::find(address, len) {
            Ok(region) if matches!(region.home, MemoryHome::Device(device) if device != comm.device) => {
                return wrong(
                    INVALID_ARGUMENT,
                    &format!("{name} of GPU {} on memory of {:?}", comm.device, region.home),
                );
            }
            Ok(_) => {}
            Err(text) => return wrong(INVALID_ARGUMENT, &format!("{name}: {text}")),
        }
    }
    let call = Call { number: 0, kind, dtype, root, len_bytes: len * size, bytes: Vec::new() };
    let call = Prepared { call, send, receive, send_len, receive_len };
    Ok(GroupedCall::Collective { comm, stream, call, effect: calls::later() })
}

/// Writes a result.
fn write<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: C's caller gave room for a result of this type.
    unsafe { to.write(value) };
    Ok(())
}

/// NCCL's words for a code.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

entries! {
    fn ncclGetVersion(version: *mut c_int) {
        write(version, SETTINGS.nccl_version)
    }

    fn ncclGetUniqueId(id: *mut UniqueId) {
        let made = link::serve(NcclHub::new()).map_err(|_| SYSTEM_ERROR)?;
        write(id, UniqueId(made))
    }

    fn ncclCommInitAll(made: *mut usize, count: c_int, devices: *const c_int) {
        let size = count as usize;
        // SAFETY: there is a number for each communicator.
        let devices = unsafe { std::slice::from_raw_parts(devices, size) };
        let known = machine::devices().map_or(0, <[machine::FakeDevice]>::len);
        let is_wrong = |at: usize| devices[at] as usize >= known || devices[..at].contains(&devices[at]);
        if size == 0 || (0..size).any(is_wrong) {
            return wrong(INVALID_USAGE, &format!("ncclCommInitAll of {devices:?}"));
        }
        let hub = NcclHub::new();
        for (rank, device) in devices.iter().enumerate() {
            hub.expect(rank, size, machine::known(*device as usize).physical).map_err(|_| INVALID_USAGE)?;
            let comm = NcclComm::new(rank, size, *device as usize, false);
            drop(comm.link.set(Link::here(Arc::clone(&hub))));
            // SAFETY: there is a place for each.
            write(unsafe { made.add(rank) }, register(comm))?;
        }
        Ok(())
    }

    fn ncclCommInitRankConfig(made: *mut usize, size: c_int, id: UniqueId, rank: c_int, settings: *mut Settings) {
        if size < 1 || rank < 0 || rank >= size {
            return wrong(INVALID_ARGUMENT, &format!("ncclCommInitRankConfig of rank {rank} of {size}"));
        }
        // SAFETY: the caller gave settings, or none.
        let settings = unsafe { settings.as_ref() };
        let is_right = settings.is_none_or(|one| {
            one.magic == 0xcafe_beef && one.size >= size_of::<Settings>()
                && (21_400..=SETTINGS.nccl_version as u32).contains(&one.version)
        });
        if !is_right {
            return wrong(INVALID_ARGUMENT, "ncclCommInitRankConfig with settings that are none of NCCL's");
        }
        let Some(device) = machine::current_if_any() else {
            return wrong(INVALID_USAGE, "ncclCommInitRankConfig without a current context");
        };
        let is_blocking = settings.is_none_or(|one| one.blocking != 0);
        let comm = NcclComm::new(rank as usize, size as usize, device, true);
        write(made, register(Arc::clone(&comm)))?;
        put(GroupedCall::Join { comm: Arc::clone(&comm), id, is_blocking });
        let is_in_group = GROUP.with_borrow(|group| group.depth > 0);
        while is_blocking && !is_in_group && comm.state.load(Ordering::Acquire) == IN_PROGRESS {
            thread::sleep(LOOK);
        }
        match comm.state.load(Ordering::Acquire) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    fn ncclCommGetAsyncError(id: usize, code: *mut c_int) {
        let comm = comm("ncclCommGetAsyncError", id)?;
        // A collective that the environment makes fail fails its device; NCCL sees that.
        let state = if machine::known(comm.device).check().is_err() { 1 } else { comm.state.load(Ordering::Acquire) };
        write(code, state)
    }

    fn ncclCommAbort(id: usize) {
        let comm = comm("ncclCommAbort", id)?;
        comm.is_aborted.store(true, Ordering::Release);
        if let Some(link) = comm.link.get() {
            link.end(comm.rank);
        }
        // It waits for its kernels.
        while comm.is_busy() && machine::known(comm.device).check().is_ok() {
            thread::sleep(LOOK);
        }
        COMMS.lock().remove(&id);
        Ok(())
    }

    fn ncclCommFinalize(id: usize) {
        let comm = comm("ncclCommFinalize", id)?;
        if comm.state.load(Ordering::Acquire) != SUCCESS {
            return wrong(INVALID_USAGE, "ncclCommFinalize of a communicator that is not whole");
        }
        comm.set(IN_PROGRESS);
        thread::spawn(move || {
            while comm.is_busy() && !comm.is_aborted() {
                thread::sleep(LOOK);
            }
            let parted = comm.link.get().map_or(Ok(()), |link| link.part(comm.rank, &comm.is_aborted));
            comm.set(parted.err().unwrap_or(SUCCESS));
        });
        Err(IN_PROGRESS)
    }

    fn ncclCommDestroy(id: usize) {
        let gone = comm("ncclCommDestroy", id)?;
        if gone.is_busy() {
            streams::drain(gone.device);
        }
        COMMS.lock().remove(&id);
        Ok(())
    }

    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    fn ncclGroupEnd() {
        let (pending, failed) = GROUP.with_borrow_mut(|group| {
            if group.depth == 0 {
                return wrong(INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
            }
            group.depth -= 1;
            if group.depth > 0 {
                return Ok((Vec::new(), None));
            }
            Ok((std::mem::take(&mut group.pending), group.failed.take().or(calls::failed_in_group())))
        })?;
        if let Some(code) = failed {
            // If a group has a wrong call, none of its calls is done.
            return Err(code);
        }
        let joining = |one: &GroupedCall| match one {
            GroupedCall::Join { comm, is_blocking, .. } => Some((Arc::clone(comm), *is_blocking)),
            GroupedCall::Collective { .. } => None,
        };
        let joining: Vec<(Arc<NcclComm>, bool)> = pending.iter().filter_map(joining).collect();
        launch(pending);
        let is_joining = |comm: &NcclComm| comm.state.load(Ordering::Acquire) == IN_PROGRESS;
        while joining.iter().any(|(comm, is_blocking)| *is_blocking && is_joining(comm)) {
            thread::sleep(LOOK);
        }
        if joining.iter().any(|(_, is_blocking)| !is_blocking) { Err(IN_PROGRESS) } else { Ok(()) }
    }

    fn ncclReduceScatter(
        send: u64, receive: u64, len: usize, dtype: c_int, operation: c_int, comm: usize, stream: usize,
    ) {
        collective(prepare(ElementKind::ReduceScatter, (send, receive, len), (dtype, operation, 0), comm, stream))
    }

    fn ncclAllGather(send: u64, receive: u64, len: usize, dtype: c_int, comm: usize, stream: usize) {
        collective(prepare(ElementKind::AllGather, (send, receive, len), (dtype, 0, 0), comm, stream))
    }

    fn ncclAllReduce(send: u64, receive: u64, len: usize, dtype: c_int, operation: c_int, comm: usize, stream: usize) {
        collective(prepare(ElementKind::AllReduce, (send, receive, len), (dtype, operation, 0), comm, stream))
    }

    fn ncclReduce(
        send: u64, receive: u64, len: usize, dtype: c_int, operation: c_int, root: c_int, comm: usize, stream: usize,
    ) {
        collective(prepare(ElementKind::Reduce, (send, receive, len), (dtype, operation, root), comm, stream))
    }

    fn ncclBroadcast(send: u64, receive: u64, len: usize, dtype: c_int, root: c_int, comm: usize, stream: usize) {
        collective(prepare(ElementKind::Broadcast, (send, receive, len), (dtype, 0, root), comm, stream))
    }
}
