//! The devices of this process, behind one small trait: [`Platform`].
//!
//! The order of work on streams is written once, over this trait, by [`Devices`] and by the stores that work
//! on devices. There are two platforms. The streams of [`Simulated`] are threads, so it runs everywhere.
//! `cuda` loads the CUDA driver, NVRTC and NCCL at run time.
//!
//! The terms are CUDA's. A [`Stream`] is a queue of one device; its work runs later, in order. An [`Event`]
//! marks a position in a stream, and another stream or the host can wait for it. Nothing else orders two
//! streams: work that reads what another stream writes must wait for that stream's event. The simulated
//! platform checks that all work does so (`races`), and fails work that does not.
//!
//! The files, each after those that it imports: `loan` describes memory of another library; `handle` owns
//! memory, streams and events; `pool` keeps memory between uses; `work` defines the work of streams;
//! `reference` is the meaning of this work, on bytes; `races` and `simulated` are the simulated platform;
//! `layout` divides a tensor over devices; `devices` makes tensors and moves them; `spread` sums tensors over
//! the devices of a process and gathers the parts; `lent` makes tensors of memory of another library;
//! `survey` describes a machine's devices as data; `open` finds devices by name; `check` compares devices
//! with `reference`.

mod check;
#[cfg(feature = "cuda")]
mod cuda;
mod devices;
mod handle;
pub mod kernels;
mod layout;
mod lent;
mod loan;
mod open;
mod pool;
mod races;
mod reference;
mod simulated;
mod spread;
mod survey;
mod work;

use std::sync::Arc;

use parking_lot::{MutexGuard, RwLock};

pub use check::check_operations;
pub use devices::{Array, Devices, array_of};
pub use handle::{Event, Home, JoinedDevices, Memory, Slice, Stream};
pub use layout::Layout;
pub use loan::{CUDA, Loan};
pub use open::{open, survey};
pub use pool::Pool;
pub use reference::compute;
pub use simulated::{DeviceFault, Manner, Simulated};
pub use spread::SumScratch;
pub use survey::{Library, Survey};
pub use work::{Collective, CollectiveKind, Operation, Work};

use ringpull_base::{Buffer, DType, Error, Result};

/// Host memory that devices can copy from and to by themselves.
pub type PinnedHost = Arc<RwLock<Buffer>>;

/// An id of a collective of devices in several processes, as long as NCCL's.
pub type UniqueId = [u8; 128];

/// A function that is called repeatedly during a wait for other processes. If it returns an error, the wait
/// ends with this error.
pub type GoOn<'a> = &'a dyn Fn() -> Result<()>;

/// The joining of the devices of several ranks. Each device joins the devices of its number in the other
/// ranks.
pub struct Meeting {
    /// An id for each device of a rank. One of the ranks makes all ids.
    pub ids: Vec<UniqueId>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
}

/// A set of devices of one make. Its ids and addresses have no meaning for other platforms.
///
/// Calls queue work and return, unless their comment says that they wait. A device that failed stays failed,
/// and every later call returns the error.
pub trait Platform: Send + Sync {
    /// Returns the name of the devices, which is written before a colon and their number: `cuda`, `sim`.
    fn name(&self) -> &'static str;
    /// The number of devices.
    fn count(&self) -> usize;
    /// A device's name.
    fn describe(&self, device: usize) -> String;
    /// Returns true if [`collective`](Self::collective) can be called.
    fn has_collectives(&self) -> bool;
    /// Allocates memory of a device. Its content is undefined. May wait for the device.
    fn allocate(&self, device: usize, len_bytes: usize) -> Result<u64>;
    /// Frees memory. May wait for the device.
    fn free(&self, device: usize, address: u64);
    /// DLPack's name of a device: the code of its type, and its number.
    fn dlpack_name(&self, device: usize) -> (i32, i32);
    /// Returns the device of another library's memory, from an address in the memory.
    fn device_of(&self, address: u64) -> Result<usize>;
    /// Registers foreign memory of a device, so that work can name it. Returns its address on this platform.
    fn adopt(&self, device: usize, loan: &Loan) -> Result<u64>;
    /// Forgets memory that was registered by `adopt`.
    fn disown(&self, address: u64);
    /// Allocates host memory that the devices can reach. Returns its address and the memory.
    fn allocate_pinned(&self, len_bytes: usize) -> Result<(u64, PinnedHost)>;
    /// Frees host memory.
    fn free_pinned(&self, address: u64);
    /// A new stream of a device.
    fn create_stream(&self, device: usize) -> Result<u64>;
    /// Ends a stream, after its work.
    fn destroy_stream(&self, device: usize, stream: u64);
    /// Records an event at the current end of a stream. Returns its id.
    fn record(&self, stream: &Stream) -> Result<u64>;
    /// Frees an event.
    fn destroy_event(&self, device: usize, event: u64);
    /// Lets later work of `stream` run after `event`.
    fn wait(&self, stream: &Stream, event: &Event) -> Result<()>;
    /// Returns true if the work before `event` is done. Never waits.
    fn is_done(&self, event: &Event) -> Result<bool>;
    /// Puts work on a stream.
    fn enqueue(&self, stream: &Stream, work: &Work) -> Result<()>;
    /// Takes the right to put collectives on the streams of these devices. Only one thread can have it,
    /// because two collectives that wait for their peers on one device would wait for each other for ever.
    /// Waits for the thread that has it, which has a deadline for its own waits.
    fn turn(&self) -> Turn<'_>;
    /// Puts collectives on one stream of every device, in the order of the devices. Puts either all of them
    /// or none. The caller must have the turn.
    fn collective(&self, streams: &[Arc<Stream>], calls: &[Collective]) -> Result<()>;
    /// Returns true if [`join`](Self::join) can be called.
    fn can_join(&self) -> bool;
    /// Returns an id for one joining of devices. The rank that makes the id must be one of the ranks that
    /// join.
    fn unique_id(&self) -> Result<UniqueId>;
    /// Joins each device with the devices of its number in other processes. Waits for all of them while
    /// `go_on` allows it. Returns the id of the joined devices. After an error nothing is joined.
    fn join(&self, meeting: &Meeting, go_on: GoOn<'_>) -> Result<u64>;
    /// Ends the communicators. None of their collectives may be under way. May wait some seconds for ranks
    /// that still receive from these devices, and then aborts.
    fn leave(&self, joined: u64);
    /// Puts on one stream of every device, in order, the sum in place of its part over the devices that it
    /// has joined. The caller must have the turn. The sum has the same bits on every rank. May wait for the
    /// other ranks while `go_on` allows it. After an error some of the sums may be under way.
    fn sum_joined(
        &self,
        joined: u64,
        streams: &[Arc<Stream>],
        dtype: DType,
        parts: &[Slice],
        go_on: GoOn<'_>,
    ) -> Result<()>;
    /// Returns the error of collectives under way, if one is known. Never waits.
    fn check(&self) -> Result<()>;
    /// Ends collectives that will never be complete, including those with other processes, so that their
    /// streams go on. From then on the platform counts as failed.
    fn abort(&self);
    /// Checks that the host may read or write pinned memory. Returns an error if a device may still use it.
    fn host_access(&self, slice: &Slice, writes: bool) -> Result<()>;
}

/// Makes the error for a rank that has left the joined devices, or that cannot be reached. That rank reports
/// the reason.
pub(crate) fn parted(call: &str, text: impl Into<String>) -> Error {
    let (peer, operation) = ("another rank".to_owned(), call.to_owned());
    Error::PeerLost { peer, ranks: Vec::new(), cause: text.into(), operation, rank: None }
}

/// The right to run collectives on some devices, until it is dropped.
pub type Turn<'a> = Vec<MutexGuard<'a, ()>>;

/// Returns true if a library's error may be caused by the end of another process. NCCL reports a broken
/// connection as an error of the system or of itself (`ncclSystemError` 2, `ncclInternalError` 3).
pub fn may_be_of_a_peer(error: &Error) -> bool {
    matches!(error, Error::Library { library, code: 2 | 3, .. } if library == "NCCL")
}

/// Makes the error of a failed call of a platform's library.
pub(crate) fn failed(library: &str, call: &str, code: i64, text: impl Into<String>) -> Error {
    Error::Library { library: library.to_owned(), call: call.to_owned(), code, text: text.into(), rank: None }
}
