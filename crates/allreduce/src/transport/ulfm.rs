//! What an MPI with fault tolerance (ULFM, as in Open MPI 5) has beside the standard: which processes of a
//! communicator have failed, and a communicator of the others. Looked up at run time, as most libraries lack
//! it.
//!
//! A message under way with a lost process, or on a communicator that is given up, is never touched again: it
//! is neither completed nor freed, and the memory that it names is kept for ever. Open MPI 5.0 ends the
//! process if a message fails that was freed. So nothing is revoked either: each rank learns of a loss from
//! the control star, or from MPI's own list. MPI does not notice a process that is silent, because it was
//! stopped or its link was cut: then this process ends the connections to it ([`Connections`]), which is a loss to
//! MPI.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use mpi::ffi;

use ringpull_base::{Result, config};

use crate::transport::library::check;
use crate::transport::sockets::{own_ends, sever};

type GetFailed = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Group) -> c_int;
type Shrink = unsafe extern "C" fn(ffi::MPI_Comm, *mut ffi::MPI_Comm) -> c_int;

/// The functions of a library that has them.
#[derive(Clone, Copy)]
pub(super) struct Ulfm {
    get_failed: GetFailed,
    shrink: Shrink,
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
        let (get_failed, shrink) = (find(c"MPIX_Comm_get_failed")?, find(c"MPIX_Comm_shrink")?);
        // SAFETY: these are their types in the proposal, which libraries that have the names follow.
        unsafe {
            Some(Ulfm {
                get_failed: std::mem::transmute::<*mut c_void, GetFailed>(get_failed),
                shrink: std::mem::transmute::<*mut c_void, Shrink>(shrink),
            })
        }
    }

    /// The functions, if the library has them and the launcher lets the job go on.
    pub(super) fn usable() -> Option<Self> {
        Self::of_library().filter(|_| config::launcher_survives_losses())
    }

    /// How many processes of `comm` are known to have failed. Quick.
    pub(super) fn failures(&self, comm: ffi::MPI_Comm) -> usize {
        let (mut group, mut count) = (MaybeUninit::<ffi::MPI_Group>::uninit(), 0);
        // SAFETY: the out-pointers are valid, and a group that was written is read.
        unsafe {
            if (self.get_failed)(comm, group.as_mut_ptr()) == 0 {
                let mut group = group.assume_init();
                ffi::MPI_Group_size(group, &raw mut count);
                if count > 0 {
                    ffi::MPI_Group_free(&raw mut group);
                }
            }
        }
        usize::try_from(count).unwrap_or(0)
    }

    /// A communicator of the processes of `comm` that are left, and their ranks in `comm`. Blocks until all
    /// of them call it; collective.
    pub(super) fn shrink(&self, comm: ffi::MPI_Comm, rank: usize) -> Result<(ffi::MPI_Comm, Vec<usize>)> {
        let mut next = MaybeUninit::<ffi::MPI_Comm>::uninit();
        // SAFETY: `comm` lives, and the out-pointer is valid.
        check("MPIX_Comm_shrink", rank, unsafe { (self.shrink)(comm, next.as_mut_ptr()) })?;
        // SAFETY: a successful call wrote it.
        let next = unsafe { next.assume_init() };
        let mut size: c_int = 0;
        let (mut old, mut new) = (MaybeUninit::<ffi::MPI_Group>::uninit(), MaybeUninit::<ffi::MPI_Group>::uninit());
        // SAFETY: the communicators live; the groups are written before they are read and freed once; the
        // lists have as many entries as the group has members.
        let ranks = unsafe {
            check("MPI_Comm_set_errhandler", rank, ffi::MPI_Comm_set_errhandler(next, ffi::RSMPI_ERRORS_RETURN))?;
            check("MPI_Comm_size", rank, ffi::MPI_Comm_size(next, &raw mut size))?;
            check("MPI_Comm_group", rank, ffi::MPI_Comm_group(comm, old.as_mut_ptr()))?;
            check("MPI_Comm_group", rank, ffi::MPI_Comm_group(next, new.as_mut_ptr()))?;
            let (mut old, mut new) = (old.assume_init(), new.assume_init());
            let own: Vec<c_int> = (0..size).collect();
            let mut ranks = vec![0; own.len()];
            let code = ffi::MPI_Group_translate_ranks(new, size, own.as_ptr(), old, ranks.as_mut_ptr());
            check("MPI_Group_translate_ranks", rank, code)?;
            ffi::MPI_Group_free(&raw mut old);
            ffi::MPI_Group_free(&raw mut new);
            ranks
        };
        Ok((next, ranks.into_iter().map(|rank| usize::try_from(rank).unwrap_or(0)).collect()))
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

    /// Connections what connects this process to these ranks, so that MPI takes them for lost: it waits for a
    /// process that lives, and is silent. May be called on any thread.
    pub fn sever(&self, ranks: &[usize]) {
        let ends = ranks.iter().filter_map(|rank| self.0.get(*rank)).flatten().copied().collect();
        let count = sever(&ends);
        tracing::debug!(?ranks, count, "connections to silent ranks are ended");
    }
}
