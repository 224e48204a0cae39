//! NCCL. The library is found at run time, its calls return errors, and its communicators have one owner.
//!
//! This binds the C functions directly, because cudarc does not suffice. It only looks for `libnccl.so`,
//! which the wheels and the distributions' run-time packages do not have, and its safe `Comm` does not ask
//! for asynchronous errors and panics at its end. The constants are those of NCCL 2, which are stable in its
//! ABI.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use libloading::Library;
use parking_lot::Mutex;

use ringpull_base::{DType, Error, Result, config};

use super::super::{GoOn, Meeting, UniqueId, failed, parted};
use crate::work::CollectiveKind;

/// The names under which the library is searched.
pub(super) const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const SUCCESS: c_int = 0;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;
const SUM: c_int = 0;

/// The time between two polls of a call that goes on by itself.
pub(super) const LOOK: Duration = Duration::from_micros(50);

/// The time limit of parting, and of aborting communicators.
pub(super) const LONG: Duration = Duration::from_secs(3);

type Comm = *mut c_void;
type RawStream = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
struct Id(UniqueId);

/// The first fields of `ncclConfig_t`, as in NCCL 2.14. A later NCCL treats missing fields as not set.
#[repr(C)]
struct Settings {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Calls return at once and go on by themselves, so that waiting for other processes can be ended.
const NOT_BLOCKING: Settings =
    Settings { size: size_of::<Settings>(), magic: 0xcafe_beef, version: 2 * 10_000 + 14 * 100, blocking: 0 };

/// The library's functions.
struct NcclFunctions {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    /// NCCL has it since 2.14.
    init_rank: Option<unsafe extern "C" fn(*mut Comm, c_int, Id, c_int, *mut Settings) -> c_int>,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    /// NCCL has it since 2.14.
    finalize: Option<unsafe extern "C" fn(Comm) -> c_int>,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    reduce_scatter: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, RawStream) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> c_int,
    reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, RawStream) -> c_int,
    broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> c_int,
    _library: Library,
}

impl NcclFunctions {
    fn load() -> Option<NcclFunctions> {
        // SAFETY: NCCL's initialisers have no conditions; the types above are those of its header.
        unsafe {
            let library = NAMES.into_iter().find_map(|name| Library::new(name).ok())?;
            macro_rules! function {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).ok()?
                };
            }
            Some(NcclFunctions {
                version: function!("ncclGetVersion"),
                error: function!("ncclGetErrorString"),
                init_all: function!("ncclCommInitAll"),
                unique_id: function!("ncclGetUniqueId"),
                init_rank: library.get(b"ncclCommInitRankConfig\0").ok().map(|function| *function),
                async_error: function!("ncclCommGetAsyncError"),
                abort: function!("ncclCommAbort"),
                finalize: library.get(b"ncclCommFinalize\0").ok().map(|function| *function),
                destroy: function!("ncclCommDestroy"),
                group_start: function!("ncclGroupStart"),
                group_end: function!("ncclGroupEnd"),
                reduce_scatter: function!("ncclReduceScatter"),
                all_gather: function!("ncclAllGather"),
                all_reduce: function!("ncclAllReduce"),
                reduce: function!("ncclReduce"),
                broadcast: function!("ncclBroadcast"),
                _library: library,
            })
        }
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL returns a string for every code, which is never freed.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        if code == REMOTE_ERROR {
            return Err(parted(call, format!("NCCL: {}", text.to_string_lossy())));
        }
        Err(failed("NCCL", call, code.into(), text.to_string_lossy()))
    }
}

fn api() -> Option<&'static NcclFunctions> {
    static API: OnceLock<Option<NcclFunctions>> = OnceLock::new();
    API.get_or_init(NcclFunctions::load).as_ref()
}

/// Returns NCCL's version, if the library is installed.
pub(super) fn version() -> Option<String> {
    let (api, mut version) = (api()?, 0);
    // SAFETY: writes one int.
    (unsafe { (api.version)(&raw mut version) } == SUCCESS).then(|| {
        // 2.9 changed how it is written.
        let (major, rest) = if version < 10_000 { (1000, 100) } else { (10_000, 100) };
        format!("{}.{}.{}", version / major, version % major / rest, version % rest)
    })
}

/// Returns true if ranks can join: NCCL is installed, in a version with calls that can be aborted, and is not
/// configured to block.
pub(super) fn can_join() -> bool {
    !config::nccl_blocks() && api().is_some_and(|api| api.init_rank.is_some())
}

/// Returns an id for a new communicator. A thread of NCCL serves it.
pub(super) fn unique_id() -> Result<UniqueId> {
    let Some(api) = api() else { return Err(missing("ncclGetUniqueId")) };
    let mut id = Id([0; size_of::<UniqueId>()]);
    // SAFETY: writes as many bytes as that.
    api.check("ncclGetUniqueId", unsafe { (api.unique_id)(&raw mut id) })?;
    Ok(id.0)
}

fn missing(call: &str) -> Error {
    failed("NCCL", call, -1, format!("looked for {}, 2.14 or later", NAMES.join(", ")))
}

fn missing_peer() -> Error {
    failed("NCCL", "ncclCommFinalize", -1, "another rank has not parted in time")
}

fn aborted() -> Error {
    failed("NCCL", "collective", -1, "the communicators were aborted")
}

/// Returns the error of ranks that could not join. If ranks share a GPU, NCCL itself only reports "invalid
/// usage".
fn of_shared_gpus(error: Error) -> Error {
    match error {
        Error::Library { code, text, .. } if code == i64::from(INVALID_USAGE) => failed(
            "NCCL",
            "ncclCommInitRankConfig",
            code,
            format!("{text}: NCCL refuses ranks that share a GPU; give each rank a GPU of its own to use it"),
        ),
        other => other,
    }
}

/// One call of one device.
pub(super) struct Call {
    pub(super) kind: CollectiveKind,
    pub(super) dtype: DType,
    pub(super) send: u64,
    pub(super) receive: u64,
    /// The number of elements of one device's part, as NCCL counts them for this kind.
    pub(super) len: usize,
    pub(super) stream: u64,
}

/// Communicators that nobody uses any more, for the thread that ends them.
struct UnusedComms(Vec<Comm>);

// SAFETY: NCCL's communicators may be used by any thread, one at a time.
unsafe impl Send for UnusedComms {}

/// One communicator for each device of this process. They connect these devices with each other, or each with
/// the devices of its number in the other ranks.
pub(super) struct Group {
    api: &'static NcclFunctions,
    is_joined: bool,
    /// True if aborting has begun. It is set before the first communicator is aborted, because from then on
    /// kernels end without a result, while aborting still holds the lock.
    aborted: AtomicBool,
    comms: Mutex<Vec<Comm>>,
}

// SAFETY: NCCL's communicators may be used by any thread, one at a time, which the lock sees to.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Returns communicators of `ordinals`, or `None` without the library. Blocks.
    pub(super) fn new(ordinals: &[c_int]) -> Result<Option<Self>> {
        let Some(api) = api() else { return Ok(None) };
        let mut comms = vec![std::ptr::null_mut(); ordinals.len()];
        // SAFETY: both arrays have as many elements as there are devices.
        let code = unsafe { (api.init_all)(comms.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        api.check("ncclCommInitAll", code)?;
        Ok(Some(Group { api, is_joined: false, aborted: AtomicBool::new(false), comms: Mutex::new(comms) }))
    }

    /// Returns communicators of the devices, each with the devices of its number in the other ranks.
    /// `current` makes a device current. Waits for all ranks while `go_on` allows it.
    pub(super) fn join(meeting: &Meeting, current: &dyn Fn(usize) -> Result<()>, go_on: GoOn<'_>) -> Result<Self> {
        let Some((api, init_rank)) = api().and_then(|api| Some((api, api.init_rank?))) else {
            return Err(missing("ncclCommInitRankConfig"));
        };
        let comms = Mutex::new(vec![std::ptr::null_mut(); meeting.ids.len()]);
        let group = Group { api, is_joined: true, aborted: AtomicBool::new(false), comms };
        let begin = |(device, (id, comm)): (usize, (&UniqueId, &mut Comm))| {
            current(device)?;
            let (rank, size, mut settings) = (meeting.rank as c_int, meeting.size as c_int, NOT_BLOCKING);
            // SAFETY: NCCL copies the settings; it writes the communicator until the group is settled, and
            // its place stays.
            let code = unsafe { init_rank(comm, size, Id(*id), rank, &raw mut settings) };
            api.check("ncclCommInitRankConfig", code)
        };
        let begin_all = || {
            let mut comms = group.comms.lock();
            // SAFETY: a group that was begun is ended.
            api.check("ncclGroupStart", unsafe { (api.group_start)() })?;
            let begun = meeting.ids.iter().zip(comms.iter_mut()).enumerate().try_for_each(begin);
            // SAFETY: as above.
            begun.and(api.check("ncclGroupEnd", unsafe { (api.group_end)() }))
        };
        match begin_all().and_then(|()| group.settle(go_on)) {
            Ok(()) => Ok(group),
            Err(cause) => {
                group.abort();
                Err(of_shared_gpus(cause))
            }
        }
    }

    /// Waits until the host's part of calls that go on by themselves is done.
    pub(super) fn settle(&self, go_on: GoOn<'_>) -> Result<()> {
        while !self.is_settled()? {
            go_on()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn is_settled(&self) -> Result<bool> {
        let comms = self.comms.lock();
        self.unaborted()?;
        let codes = comms.iter().map(|comm| self.state(*comm)).collect::<Result<Vec<_>>>()?;
        Ok(codes.iter().all(|code| *code == SUCCESS))
    }

    /// Returns the state of a communicator's calls, or their error.
    fn state(&self, comm: Comm) -> Result<c_int> {
        let mut code = SUCCESS;
        // SAFETY: writes one int; NCCL refuses a communicator that is none.
        let asked = unsafe { (self.api.async_error)(comm, &raw mut code) };
        self.api.check("ncclCommGetAsyncError", asked)?;
        self.api.check("a collective", code).map(|()| code)
    }

    /// Queues `calls` as one group. Each element has the calls of all devices.
    pub(super) fn launch(&self, calls: &[Vec<Call>]) -> Result<()> {
        let comms = self.comms.lock();
        self.unaborted()?;
        // SAFETY: the memory holds the elements and is kept until the streams have come past them; a group
        // that was begun is ended.
        unsafe {
            self.api.check("ncclGroupStart", (self.api.group_start)())?;
            let queued =
                calls.iter().flatten().zip(comms.iter().cycle()).try_for_each(|(call, comm)| self.queue(call, *comm));
            let ended = self.api.check("ncclGroupEnd", (self.api.group_end)());
            queued.and(ended).inspect_err(|_| self.condemn())
        }
    }

    /// # Safety
    /// As in `launch`.
    unsafe fn queue(&self, call: &Call, comm: Comm) -> Result<()> {
        let (send, receive) = (call.send as *const c_void, call.receive as *mut c_void);
        let (len, stream, dtype, api) = (call.len, call.stream as RawStream, code_of(call.dtype), self.api);
        // SAFETY: as the caller promises.
        unsafe {
            match call.kind {
                CollectiveKind::ReduceScatter => {
                    api.check("ncclReduceScatter", (api.reduce_scatter)(send, receive, len, dtype, SUM, comm, stream))
                }
                CollectiveKind::AllGather => {
                    api.check("ncclAllGather", (api.all_gather)(send, receive, len, dtype, comm, stream))
                }
                CollectiveKind::AllReduce => {
                    api.check("ncclAllReduce", (api.all_reduce)(send, receive, len, dtype, SUM, comm, stream))
                }
                CollectiveKind::Reduce(root) => {
                    let root = root as c_int;
                    api.check("ncclReduce", (api.reduce)(send, receive, len, dtype, SUM, root, comm, stream))
                }
                CollectiveKind::Broadcast(root) => {
                    let root = root as c_int;
                    api.check("ncclBroadcast", (api.broadcast)(send, receive, len, dtype, root, comm, stream))
                }
            }
        }
    }

    /// Returns the error of collectives under way, if there is one.
    pub(super) fn poll(&self) -> Result<()> {
        // The streams went on, with undefined data.
        self.unaborted()?;
        // A thread that queues collectives will get the error itself.
        let Some(comms) = self.comms.try_lock() else { return Ok(()) };
        comms.iter().try_for_each(|comm| self.state(*comm).map(drop))
    }

    fn unaborted(&self) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) { Err(aborted()) } else { Ok(()) }
    }

    /// Returns true if there are communicators that may have to be aborted.
    pub(super) fn is_alive(&self) -> bool {
        !self.comms.lock().is_empty()
    }

    /// Returns true if communicators that have ended count as aborted.
    pub(super) fn is_condemned(&self) -> bool {
        self.unaborted().is_err()
    }

    /// Makes ended communicators count as aborted from now on. To be called before any communicator that
    /// shares devices with these is aborted.
    pub(super) fn condemn(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// Leaves the other processes after all data of these devices has been sent. Aborts if that fails or
    /// takes long.
    fn part(&self) {
        let finalize = || {
            let finalize = self.api.finalize.ok_or_else(|| missing("ncclCommFinalize"))?;
            self.comms.lock().iter().try_for_each(|comm| {
                // SAFETY: the communicator is whole, and nothing more is queued on it.
                self.api.check("ncclCommFinalize", unsafe { finalize(*comm) })
            })
        };
        let until = Instant::now() + LONG;
        let in_time = || if Instant::now() < until { Ok(()) } else { Err(missing_peer()) };
        match finalize().and_then(|()| self.settle(&in_time)) {
            Ok(()) => self.destroy(),
            Err(cause) => {
                tracing::debug!(%cause, "ncclCommFinalize");
                self.abort();
            }
        }
    }

    fn destroy(&self) {
        for comm in self.comms.lock().drain(..) {
            // SAFETY: the communicator is used by nobody else, and not again.
            let code = unsafe { (self.api.destroy)(comm) };
            tracing::debug!(code, "ncclCommDestroy");
        }
    }

    /// Ends collectives under way, and waits a while for their end.
    pub(super) fn abort(&self) {
        self.condemn();
        self.begin_abort().wait(Instant::now() + LONG);
    }

    /// Begins to end collectives under way, on a separate thread, since an abort waits for kernels.
    pub(super) fn begin_abort(&self) -> AbortWait {
        let comms = UnusedComms(std::mem::take(&mut *self.comms.lock()));
        let (abort, (done, ended)) = (self.api.abort, mpsc::channel());
        let work = move || {
            for comm in { comms }.0.into_iter().filter(|comm| !comm.is_null()) {
                // SAFETY: the communicator is used by nobody else, and not again.
                let code = unsafe { abort(comm) };
                tracing::debug!(code, "ncclCommAbort");
            }
            if done.send(()).is_err() {
                tracing::debug!("no thread waits any more for NCCL's communicators to end");
            }
        };
        let begun = std::thread::Builder::new().name("nccl-abort".to_owned()).spawn(work);
        if let Err(cause) = begun {
            tracing::warn!(%cause, "NCCL's communicators are not aborted: no thread could be had");
        }
        AbortWait(ended)
    }
}

/// Communicators that are being aborted.
pub(super) struct AbortWait(Receiver<()>);

impl AbortWait {
    /// Waits until the communicators are aborted, at most until `until`. Returns true if they are.
    pub(super) fn wait(self, until: Instant) -> bool {
        let outcome = self.0.recv_timeout(until.saturating_duration_since(Instant::now()));
        if outcome.is_err() {
            tracing::warn!("NCCL has not ended its communicators: its kernels hold the GPU until the process ends");
        }
        outcome.is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        match self.unaborted() {
            Ok(()) if self.is_joined => self.part(),
            Ok(()) => self.destroy(),
            // Communicators that are not aborted yet may wait for ever, if only some calls of a group were
            // queued.
            Err(_) => self.abort(),
        }
    }
}

fn code_of(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}
