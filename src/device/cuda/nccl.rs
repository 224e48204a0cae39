//! NCCL, and nothing else: the library is found at run time, its calls have errors, its communicators one owner.
//!
//! Bound at the level of C, since what is needed lies there: cudarc knows the library as `libnccl.so` alone, which the wheels
//! and the distributions' run-time packages do not hold, and its safe `Comm` neither asks for asynchronous errors nor ends without
//! a panic. The constants are NCCL 2's, which its ABI has kept.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;
use parking_lot::Mutex;

use super::super::failed;
use crate::device::work::CollectiveKind;
use crate::dtype::DType;
use crate::error::Result;

/// The names that the library is looked for under.
pub(super) const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const SUM: c_int = 0;

type Comm = *mut c_void;
type Stream = *mut c_void;

/// The library's functions.
struct Api {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    reduce_scatter: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int,
    broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    _library: Library,
}

impl Api {
    fn load() -> Option<Api> {
        // SAFETY: NCCL's initialisers have no conditions; the types above are those of its header.
        unsafe {
            let library = NAMES.into_iter().find_map(|name| Library::new(name).ok())?;
            macro_rules! function {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).ok()?
                };
            }
            Some(Api {
                version: function!("ncclGetVersion"),
                error: function!("ncclGetErrorString"),
                init_all: function!("ncclCommInitAll"),
                async_error: function!("ncclCommGetAsyncError"),
                abort: function!("ncclCommAbort"),
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
        // SAFETY: NCCL answers every code with a string of its own that is never freed.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(failed("NCCL", call, code.into(), text.to_string_lossy()))
    }
}

fn api() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref()
}

/// NCCL's version, if the library is here.
pub(super) fn version() -> Option<String> {
    let (api, mut version) = (api()?, 0);
    // SAFETY: writes one int.
    (unsafe { (api.version)(&raw mut version) } == SUCCESS).then(|| {
        // 2.9 changed how it is written.
        let (major, rest) = if version < 10_000 { (1000, 100) } else { (10_000, 100) };
        format!("{}.{}.{}", version / major, version % major / rest, version % rest)
    })
}

/// One call of one device.
pub(super) struct Call {
    pub(super) kind: CollectiveKind,
    pub(super) dtype: DType,
    pub(super) send: u64,
    pub(super) receive: u64,
    /// Elements, as NCCL counts them for this kind: of one device's part.
    pub(super) len: usize,
    pub(super) stream: u64,
}

/// The communicators of the devices of this process.
pub(super) struct Group {
    api: &'static Api,
    comms: Mutex<Vec<Comm>>,
}

// SAFETY: NCCL's communicators may be used by any thread, one at a time, which the lock sees to.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Communicators of `ordinals`; `None` without the library. Blocks.
    pub(super) fn new(ordinals: &[c_int]) -> Result<Option<Self>> {
        let Some(api) = api() else { return Ok(None) };
        let mut comms = vec![std::ptr::null_mut(); ordinals.len()];
        // SAFETY: both arrays have as many elements as there are devices.
        let code = unsafe { (api.init_all)(comms.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
        api.check("ncclCommInitAll", code)?;
        Ok(Some(Group { api, comms: Mutex::new(comms) }))
    }

    /// Queues `calls`, each the calls of all devices, as one group.
    pub(super) fn launch(&self, calls: &[Vec<Call>]) -> Result<()> {
        let comms = self.comms.lock();
        if comms.is_empty() {
            return Err(failed("NCCL", "collective", -1, "the communicators were aborted"));
        }
        // SAFETY: the memory holds the elements and is kept until the streams have come past them; a group that was begun is ended.
        unsafe {
            self.api.check("ncclGroupStart", (self.api.group_start)())?;
            let queued =
                calls.iter().flatten().zip(comms.iter().cycle()).try_for_each(|(call, comm)| self.queue(call, *comm));
            let ended = self.api.check("ncclGroupEnd", (self.api.group_end)());
            queued.and(ended)
        }
    }

    /// # Safety
    /// As in `launch`.
    unsafe fn queue(&self, call: &Call, comm: Comm) -> Result<()> {
        let (send, receive) = (call.send as *const c_void, call.receive as *mut c_void);
        let (len, stream, dtype, api) = (call.len, call.stream as Stream, code_of(call.dtype), self.api);
        // SAFETY: the caller's.
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

    /// What collectives under way have met.
    pub(super) fn poll(&self) -> Result<()> {
        // A thread that is queueing collectives will meet the error itself.
        let Some(comms) = self.comms.try_lock() else { return Ok(()) };
        comms.iter().try_for_each(|comm| {
            let mut code = SUCCESS;
            // SAFETY: writes one int.
            let asked = unsafe { (self.api.async_error)(*comm, &raw mut code) };
            self.api.check("ncclCommGetAsyncError", asked).and_then(|()| self.api.check("a collective", code))
        })
    }

    /// Ends what is under way.
    pub(super) fn abort(&self) {
        for comm in self.comms.lock().drain(..) {
            // SAFETY: the communicator is used by nobody else, and not again.
            let code = unsafe { (self.api.abort)(comm) };
            tracing::debug!(code, "ncclCommAbort");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for comm in self.comms.lock().drain(..) {
            // SAFETY: as in `abort`.
            let code = unsafe { (self.api.destroy)(comm) };
            tracing::debug!(code, "ncclCommDestroy");
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
