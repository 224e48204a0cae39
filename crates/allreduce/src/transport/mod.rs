//! The exchange of bytes between ranks.
//!
//! There is one contract, [`Transport`], over two wires: [`inproc`] (threads and channels, for tests) and
//! `mpi`. Beside it there is the [`control`] star. It carries a few small messages through rank 0 to agree on
//! the order of launches and to report errors, and it notices at once when a process is gone. It carries no
//! gradient.
//!
//! Ranks of one host also have a [`window`] of shared memory, with barriers (`meeting`).
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

/// The number of messages of MPI that have been sent or received in this process, of any operation. A change
/// of it shows progress.
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

/// Forgets the messages under way, because they will never be done.
fn forget_open() {
    OPEN.store(0, Ordering::Relaxed);
}

fn moved(messages: usize) {
    MESSAGES.fetch_add(messages as u64, Ordering::Relaxed);
    OPEN.fetch_sub(messages, Ordering::Relaxed);
}

/// The number of the operation that a message belongs to. The messages of operations that are in flight
/// together do not mix, and none waits behind another's. Operations with the same [`tag`] must not be in
/// flight together.
pub type Stamp = u32;

/// The bit in the stamp of a process set's operation. These operations have numbers of their own.
pub const OF_A_SET: Stamp = 1 << 31;

/// The number of bits of a [`tag`]. Every MPI allows tags up to 32767.
const TAG_BITS: u32 = 15;

/// Returns what a message carries of its operation's stamp. The tags of operations of all ranks repeat after
/// 16384 of them, and so do those of process sets.
pub fn tag(stamp: Stamp) -> u32 {
    const OF_SETS: u32 = 1 << (TAG_BITS - 1);
    (if stamp & OF_A_SET == 0 { 0 } else { OF_SETS }) | stamp & (OF_SETS - 1)
}

/// Returns the stamp of the operation of all ranks that is `count` operations after the one of `stamp`.
pub fn later(stamp: Stamp, count: u64) -> Stamp {
    stamp.wrapping_add(count as u32) & !OF_A_SET
}

/// A collective of equal blocks that a library may offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockCollective {
    /// Each rank gets the inputs of all ranks.
    Allgather,
    /// Each rank gets one block of every rank's input.
    Alltoall,
    /// Each rank gets the sum of all ranks' blocks for it.
    ReduceScatter(ringpull_base::DType),
}

/// The condition on which a send is done, in MPI's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendMode {
    /// The send is done when its memory may change. The bytes may still be on their way, or wait at the peer
    /// for a receive.
    Standard,
    /// The send is done when the peer has also begun to receive the bytes. Like `Standard` if the transport
    /// cannot know that.
    Synchronous,
}

/// Exchanges messages between one rank and the others. Posts sends and receives, of which several may be in
/// flight, and reports which are done.
///
/// Messages are FIFO per ordered pair and stamp: the k-th send from a to b with a stamp goes to the k-th
/// receive of b from a with this stamp. If their lengths differ, that is an error, and no bytes are mixed.
pub trait Transport {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Starts sending `data` to rank `to`. [`poll`](Self::poll) returns `token` when the send is done, in the
    /// sense of `mode`.
    ///
    /// # Safety
    /// `data` stays valid and unchanged until the send is done, or until the transport is dropped.
    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()>;

    /// Starts receiving exactly `into.len()` bytes from rank `from`. [`poll`](Self::poll) returns `token`
    /// when they have arrived.
    ///
    /// # Safety
    /// `into` stays valid and untouched until the receive is done, or until the transport is dropped.
    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()>;

    /// Appends the tokens that are done to `done`. Does not block.
    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()>;

    /// Lets the library make progress. To be called now and then while nothing is in flight on this rank,
    /// because a peer may wait for an answer that did not fit into a socket. Does not block.
    fn progress(&mut self) {}

    /// Lets other threads run for a moment, between two looks for a message that may come very soon.
    fn relax(&mut self) {
        std::thread::yield_now();
    }

    /// Waits until something may have arrived, for at most `longest`. Leaves the cores to others meanwhile.
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
            reason: "this transport has no such collective of its own; choose another algorithm".to_owned(),
        })
    }

    /// Returns the lowest rank of each rank's host. The result is the same on every rank. Collective.
    fn hosts(&mut self) -> Result<Vec<usize>> {
        Ok((0..self.size()).collect())
    }

    /// Limits the library's own collectives, and [`hosts`](Self::hosts), to the first `workers` ranks from
    /// now on. No other rank calls them. Messages may still go to every rank. Collective.
    fn narrow(&mut self, workers: usize) -> Result<()>;

    /// Returns the name of the library behind the transport.
    fn name(&self) -> String;
}
