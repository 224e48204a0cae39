//! The devices of this process, behind one small seam: [`Platform`].
//!
//! The order of work on streams is written once, over this trait, by [`Devices`] and by the stores that work
//! on devices. Two platforms stand behind it: [`Simulated`], whose streams are threads and which runs
//! everywhere, and `cuda`, which loads the CUDA driver, NVRTC and NCCL at run time.
//!
//! The words are CUDA's. A [`Stream`] is a queue of one device; its work runs later, in order. An [`Event`]
//! marks a place in a stream, and another stream or the host can wait for it. Nothing else orders two
//! streams: work that reads what another stream writes must wait for that stream's event. The simulated
//! platform proves of every piece of work that it does (`races`), and fails the work that does not.
//!
//! The files, each after those that it imports: `loan` says where memory of another library is; `handle` owns
//! memory, streams and events; `pool` keeps memory from use to use; `work` says what can be put on a stream;
//! `reference` is its meaning, on bytes; `races` and `simulated` are the simulated platform; `layout` divides
//! a tensor over devices; `devices` makes tensors and moves them; `spread` sums tensors over the devices of a
//! process and back; `lent` makes tensors of memory that another library has; `survey` is what a machine has,
//! as data; `open` finds devices by name; `check` compares devices with `reference`.

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

/// Host memory that devices copy from and to by themselves.
pub type PinnedHost = Arc<RwLock<Buffer>>;

/// A name that devices of several processes meet under, as long as NCCL's.
pub type UniqueId = [u8; 128];

/// A function that is called again and again during a wait for other processes: an error ends the wait, and
/// becomes its result.
pub type GoOn<'a> = &'a dyn Fn() -> Result<()>;

/// The meeting of the devices of several ranks, of those of one number in each.
pub struct Meeting {
    /// A name for each device of a rank, made by one of them all.
    pub ids: Vec<UniqueId>,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
}

/// A set of devices of one make. Ids and addresses are given out by it and mean nothing elsewhere.
///
/// Calls queue and return, unless they say that they wait. A device that failed stays failed: every later
/// call says so.
pub trait Platform: Send + Sync {
    /// The name of the devices, before a colon and their number: `cuda`, `sim`.
    fn name(&self) -> &'static str;
    /// The number of devices.
    fn count(&self) -> usize;
    /// A device's name.
    fn describe(&self, device: usize) -> String;
    /// Returns true if [`collective`](Self::collective) can be called.
    fn has_collectives(&self) -> bool;
    /// Memory of a device, whose content is not defined. May wait for the device.
    fn allocate(&self, device: usize, len_bytes: usize) -> Result<u64>;
    /// Gives memory back. May wait for the device.
    fn free(&self, device: usize, address: u64);
    /// DLPack's name of a device: the code of its type, and its number.
    fn dlpack_name(&self, device: usize) -> (i32, i32);
    /// The device that memory of another library is on, by an address in it.
    fn device_of(&self, address: u64) -> Result<usize>;
    /// Takes in memory of a device that somebody else has, so that work can name it. Its address here.
    fn adopt(&self, device: usize, loan: &Loan) -> Result<u64>;
    /// Forgets memory that was taken in.
    fn disown(&self, address: u64);
    /// Host memory that the devices can reach, and its address.
    fn allocate_pinned(&self, len_bytes: usize) -> Result<(u64, PinnedHost)>;
    /// Gives host memory back.
    fn free_pinned(&self, address: u64);
    /// A new stream of a device.
    fn create_stream(&self, device: usize) -> Result<u64>;
    /// Ends a stream, after its work.
    fn destroy_stream(&self, device: usize, stream: u64);
    /// Marks the present end of a stream.
    fn record(&self, stream: &Stream) -> Result<u64>;
    /// Gives an event back.
    fn destroy_event(&self, device: usize, event: u64);
    /// Lets later work of `stream` run after `event`.
    fn wait(&self, stream: &Stream, event: &Event) -> Result<()>;
    /// Returns true if the work before `event` is done. Never waits.
    fn is_done(&self, event: &Event) -> Result<bool>;
    /// Puts work on a stream.
    fn enqueue(&self, stream: &Stream, work: &Work) -> Result<()>;
    /// Only the thread that holds it may put collectives on the streams of these devices: two that wait for
    /// their peers on one device would wait for each other for ever. Waits for the thread that holds it, which
    /// has a deadline for its own waits.
    fn turn(&self) -> Turn<'_>;
    /// Puts collectives on one stream of every device, in the order of the devices, all or none of them; by
    /// whose turn it is.
    fn collective(&self, streams: &[Arc<Stream>], calls: &[Collective]) -> Result<()>;
    /// Returns true if [`join`](Self::join) can be called.
    fn can_join(&self) -> bool;
    /// A name that devices meet under once. The rank that makes it must be one of those that meet.
    fn unique_id(&self) -> Result<UniqueId>;
    /// Joins each device with those of its number in other processes. Waits for all of them while `go_on`
    /// allows it; after an error nothing is joined. Returns the number of the meeting from then on.
    fn join(&self, meeting: &Meeting, go_on: GoOn<'_>) -> Result<u64>;
    /// Ends the communicators, when none of their collectives is under way. May wait some seconds for ranks
    /// that still receive from these devices, and aborts then.
    fn leave(&self, joined: u64);
    /// Puts on one stream of every device, in their order, the sum of its part over the devices that it has
    /// joined, in place; by whose turn it is. The same bits on every rank. May wait for the other ranks while
    /// `go_on` allows it; after an error some of it may be under way.
    fn sum_joined(
        &self,
        joined: u64,
        streams: &[Arc<Stream>],
        dtype: DType,
        parts: &[Slice],
        go_on: GoOn<'_>,
    ) -> Result<()>;
    /// Returns the error that collectives under way have met, as far as is known. Never waits.
    fn check(&self) -> Result<()>;
    /// Ends collectives that will never be complete, those with other processes too, so that their streams go
    /// on; the platform is failed from then on.
    fn abort(&self);
    /// The host is about to read or write pinned memory: an error if a device may still use it.
    fn host_access(&self, slice: &Slice, writes: bool) -> Result<()>;
}

/// Makes the error of a meeting that another rank has left, or that does not reach it; that rank reports the
/// reason.
pub(crate) fn parted(call: &str, text: impl Into<String>) -> Error {
    let (peer, operation) = ("another rank".to_owned(), call.to_owned());
    Error::PeerLost { peer, ranks: Vec::new(), cause: text.into(), operation, rank: None }
}

/// The right to run collectives on some devices, until it is dropped.
pub type Turn<'a> = Vec<MutexGuard<'a, ()>>;

/// Returns true if a library's error may come of another process's end: to NCCL a connection that broke is an
/// error of the system or of itself (`ncclSystemError` 2, `ncclInternalError` 3).
pub fn may_be_of_a_peer(error: &Error) -> bool {
    matches!(error, Error::Library { library, code: 2 | 3, .. } if library == "NCCL")
}

/// A call of a platform's library that failed.
pub(crate) fn failed(library: &str, call: &str, code: i64, text: impl Into<String>) -> Error {
    Error::Library { library: library.to_owned(), call: call.to_owned(), code, text: text.into(), rank: None }
}
