//! What an MPI with fault tolerance (ULFM, as in Open MPI 5) has beside the standard: which processes of a
//! communicator have failed, and an agreement on that. Looked up at run time, as most libraries lack it.
//!
//! A message that was under way when a process was lost is never touched again: it is neither completed nor
//! freed, and the memory that it names is kept for ever. Open MPI 5.0 ends the process if a message fails that
//! was freed. So nothing is revoked either: each rank learns of a loss from the control star, or from MPI's
//! own list. And no communicator is made after a loss: Open MPI 5.0.11 ends the process if another one is lost
//! while it makes one (docs/decisions/shrink-in-place.md). MPI does not notice a process that is silent, because it was
//! stopped or its link was cut: then this process ends the connections to it ([`Connections`]), which is a loss to
//! MPI.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use mpi::ffi;

use ringpull_base::{Error, Result, config};

use crate::transport::library::check;
use crate::transport::sockets::{own_ends, sever};

type GetFailed = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Group) -> c_int;
type AckFailed = unsafe extern "C" fn(ffi::MPI_Comm, c_int, *mut c_int) -> c_int;
type Agree = unsafe extern "C" fn(ffi::MPI_Comm, *mut c_int) -> c_int;

/// So often ranks try to agree: two or three times are enough unless more are lost meanwhile.
const ATTEMPTS: usize = 1000;

/// The functions of a library that has them.
#[derive(Clone, Copy)]
pub(super) struct Ulfm {
    get_failed: GetFailed,
    ack_failed: AckFailed,
    agree: Agree,
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero; any library of this process may have it.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Whether this process's MPI library has what it takes to go on without a lost rank.
pub fn has_ulfm() -> bool {
    Ulfm::of_library().is_some()
}

impl Ulfm {
    fn of_library() -> Option<Self> {
        let (get_failed, agree) = (find(c"MPIX_Comm_get_failed")?, find(c"MPIX_Comm_agree")?);
        let ack_failed = find(c"MPIX_Comm_ack_failed")?;
        // SAFETY: these are their types in the proposal, which libraries that have the names follow.
        unsafe {
            Some(Ulfm {
                get_failed: std::mem::transmute::<*mut c_void, GetFailed>(get_failed),
                ack_failed: std::mem::transmute::<*mut c_void, AckFailed>(ack_failed),
                agree: std::mem::transmute::<*mut c_void, Agree>(agree),
            })
        }
    }

    /// The functions, if the library has them and the launcher lets the job go on.
    pub(super) fn usable() -> Option<Self> {
        Self::of_library().filter(|_| config::launcher_survives_losses())
    }

    /// How many processes of `comm` are known to have failed. Quick.
    pub(super) fn failures(&self, comm: ffi::MPI_Comm) -> usize {
        self.with_failed(comm, |_, count| count).map_or(0, |count| usize::try_from(count).unwrap_or(0))
    }

    /// Gives the group of the processes of `comm` that are known to have failed, and their number.
    fn with_failed<T>(&self, comm: ffi::MPI_Comm, look: impl FnOnce(ffi::MPI_Group, c_int) -> T) -> Option<T> {
        let (mut group, mut count) = (MaybeUninit::<ffi::MPI_Group>::uninit(), 0);
        // SAFETY: the out-pointers are valid, and a group that was written is read, and freed once.
        unsafe {
            if (self.get_failed)(comm, group.as_mut_ptr()) != 0 {
                return None;
            }
            let mut group = group.assume_init();
            ffi::MPI_Group_size(group, &raw mut count);
            let seen = look(group, count);
            if count > 0 {
                ffi::MPI_Group_free(&raw mut group);
            }
            Some(seen)
        }
    }

    /// The ranks in `comm` of the processes that are known to have failed, in the order in which they failed.
    fn failed(&self, comm: ffi::MPI_Comm, rank: usize) -> Result<Vec<c_int>> {
        let translated = self.with_failed(comm, |failed, count| {
            let own: Vec<c_int> = (0..count).collect();
            let mut ranks = vec![0; own.len()];
            let mut all = MaybeUninit::<ffi::MPI_Group>::uninit();
            // SAFETY: the communicator lives; the group is written before it is read and freed once; both
            // lists have as many entries as the group of the failed has members.
            unsafe {
                check("MPI_Comm_group", rank, ffi::MPI_Comm_group(comm, all.as_mut_ptr()))?;
                let mut all = all.assume_init();
                let code = ffi::MPI_Group_translate_ranks(failed, count, own.as_ptr(), all, ranks.as_mut_ptr());
                ffi::MPI_Group_free(&raw mut all);
                check("MPI_Group_translate_ranks", rank, code)?;
            }
            Ok(ranks)
        });
        translated.unwrap_or_else(|| Err(Error::bug("MPI does not say which processes have failed")))
    }

    /// The ranks in `comm` of the processes that have failed: the same on every rank that is left. Blocks until
    /// all of these call it; collective.
    pub(super) fn agree_on_failed(&self, comm: ffi::MPI_Comm, rank: usize) -> Result<Vec<c_int>> {
        let mut code = 0;
        for _ in 0..ATTEMPTS {
            let mut failed = self.failed(comm, rank)?;
            let mut acknowledged = 0;
            // SAFETY: the communicator lives, and the out-pointer is valid. The first that failed come first.
            let acked = unsafe { (self.ack_failed)(comm, failed.len() as c_int, &raw mut acknowledged) };
            check("MPIX_Comm_ack_failed", rank, acked)?;
            failed.sort_unstable();
            // Ranks agree on the bits that all have: of a hash and of its complement all are left only if it
            // is the same hash everywhere.
            let hash = xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&failed)) as u16;
            let own = i32::from_ne_bytes((u32::from(hash) << 16 | u32::from(!hash)).to_ne_bytes());
            let mut common: c_int = own;
            // SAFETY: as above.
            code = unsafe { (self.agree)(comm, &raw mut common) };
            if code == 0 && common == own {
                return Ok(failed);
            }
            // Not every rank knew of all of them; each does now.
        }
        check("MPIX_Comm_agree", rank, code)?;
        Err(Error::bug("the ranks that are left do not agree on who has failed"))
    }
}

/// Each rank's ends of the connections of its process, as they were when all ranks had connected.
pub struct Connections(Vec<BTreeSet<SocketAddr>>);

impl Connections {
    /// This process's, to be sent to the others.
    pub fn own() -> BTreeSet<SocketAddr> {
        own_ends()
    }

    /// Those that the ranks have sent. Addresses of loopback are of use between ranks of one network alone;
    /// `is_near` is whether a rank is in this one's.
    pub fn of_ranks(mut ends: Vec<BTreeSet<SocketAddr>>, is_near: impl Fn(usize) -> bool) -> Self {
        for (_, ends) in ends.iter_mut().enumerate().filter(|(rank, _)| !is_near(*rank)) {
            ends.retain(|end| !end.ip().is_loopback());
        }
        Connections(ends)
    }

    /// Ends what connects this process to these ranks, so that MPI takes them for lost: it waits for a
    /// process that lives, and is silent. May be called on any thread.
    pub fn sever(&self, ranks: &[usize]) {
        let ends = ranks.iter().filter_map(|rank| self.0.get(*rank)).flatten().copied().collect();
        let count = sever(&ends);
        tracing::debug!(?ranks, count, "connections to silent ranks are ended");
    }
}
