//! Bytes between two ranks.
//!
//! One contract, [`Transport`], over two wires: [`inproc`] (threads and channels, for tests) and `mpi`.
//! Beside it the [`control`] star: a few small messages through rank 0 that agree on the order of launches,
//! carry errors, and notice at once when a process is gone. It carries no gradient.
//!
//! Ranks of one host also have a [`window`] of shared memory, in which they meet (`meeting`).
#![allow(unsafe_code)]

pub mod control;
pub(crate) mod identity;
pub mod inproc;
mod library;
mod links;
mod lossy;
pub(crate) mod meeting;
pub mod mpi;
pub mod peer_memory;
mod remaining;
mod sockets;
pub mod star;
mod ulfm;
pub mod window;

pub use library::{initialise_once, mpi_library, share_mpi};
pub use ulfm::{Connections, has_ulfm};

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ringpull_base::Result;

/// The number of messages of MPI that have been sent or received in this process, of any operation: it shows
/// progress.
static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// The number of messages of MPI that have been sent and received in this process.
pub fn messages() -> u64 {
    MESSAGES.load(Ordering::Relaxed)
}

/// Messages of MPI that this process has begun to send or receive and that are not done.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The number of messages of MPI that are under way in this process.
pub fn open_messages() -> usize {
    OPEN.load(Ordering::Relaxed)
}

fn opened() {
    OPEN.fetch_add(1, Ordering::Relaxed);
}

/// Gives up the messages under way: they will never be done.
fn forget_open() {
    OPEN.store(0, Ordering::Relaxed);
}

fn moved(messages: usize) {
    MESSAGES.fetch_add(messages as u64, Ordering::Relaxed);
    OPEN.fetch_sub(messages, Ordering::Relaxed);
}

/// The number of the operation that a message belongs to. The messages of operations that are in flight
/// together do not mix, and none waits behind another's. Operations whose stamps differ by a multiple of
/// 16384 must not be in flight together, unless only one of them has the bit [`OF_A_SET`].
pub type Stamp = u32;

/// The bit in the stamp of a process set's operation. These operations have numbers of their own.
pub const OF_A_SET: Stamp = 1 << 31;

/// A collective of equal blocks, such as a library may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockCollective {
    /// All ranks' inputs.
    Allgather,
    /// A block of every rank's input.
    Alltoall,
    /// The sum of all ranks' blocks for this one.
    ReduceScatter(ringpull_base::DType),
}

/// The condition on which a send is done, in MPI's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendMode {
    /// Done when the memory may change: the bytes may still be on their way, or wait at the peer for a
    /// receive.
    Standard,
    /// Done when the peer has also begun to receive them. As `Standard` if the transport cannot tell.
    Synchronous,
}

/// The messages between one rank and the others: posts sends and receives, several in flight, and reports
/// which are done.
///
/// Messages are FIFO per ordered pair and stamp: the k-th send of a to b with a stamp meets the k-th receive
/// of b from a with that stamp. Both must name the same length; it is an error, not a mixture, if they do
/// not.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Starts sending `data` to rank `to`. `token` comes back from [`poll`](Self::poll) when that is done as
    /// `mode` says.
    ///
    /// # Safety
    /// `data` stays valid and unchanged until then, or until the transport is dropped.
    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()>;

    /// Starts receiving exactly `into.len()` bytes from rank `from`. `token` comes back from
    /// [`poll`](Self::poll) when they are there.
    ///
    /// # Safety
    /// `into` stays valid and untouched until then, or until the transport is dropped.
    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()>;

    /// Appends the tokens that are done to `done`. Does not block.
    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()>;

    /// Lets the library make progress, to be called now and then while nothing is in flight here: a peer may
    /// wait for an answer that did not fit into a socket. Does not block.
    fn progress(&mut self) {}

    /// Lets others run for a moment, between two looks for a message that may come very soon.
    fn relax(&mut self) {
        std::thread::yield_now();
    }

    /// Returns when something may have arrived, at the latest after `longest`. Leaves the cores to others
    /// meanwhile.
    fn wait(&mut self, longest: std::time::Duration) {
        std::thread::sleep(longest);
    }

    /// Sums `data` over all ranks in place by the library's own allreduce, if it has one. Blocks; collective.
    fn native_allreduce(&mut self, _dtype: ringpull_base::DType, _data: &mut [u8]) -> Result<()> {
        Err(ringpull_base::Error::Unsupported {
            kind: self.name(),
            operation: "native allreduce".to_owned(),
            reason: "this transport has no allreduce of its own; choose another algorithm".to_owned(),
        })
    }

    /// Does the collective `which` from `input` into `out` by the library's own function, if it has one.
    /// Blocks.
    fn native_collective(&mut self, _which: BlockCollective, _input: &[u8], _out: &mut [u8]) -> Result<()> {
        Err(ringpull_base::Error::Unsupported {
            kind: self.name(),
            operation: "native collectives".to_owned(),
            reason: "this transport has none of its own; choose another algorithm".to_owned(),
        })
    }

    /// Returns for each rank the lowest rank of its host. The same on every rank. Collective.
    fn hosts(&mut self) -> Result<Vec<usize>> {
        Ok((0..self.size()).collect())
    }

    /// Limits the library's own collectives, and [`hosts`](Self::hosts), to the first `workers` ranks from
    /// now on: no other rank calls them. Messages may go to every rank as before. Collective.
    fn narrow(&mut self, workers: usize) -> Result<()>;

    /// The name of the library behind it.
    fn name(&self) -> String;
}
