//! The part of MPI with fault tolerance (ULFM, as in Open MPI 5) that the standard lacks: the list of failed
//! processes of a communicator, and an agreement on this list. Most libraries lack both.
//!
//! A message that was under way when a process was lost is never touched again. It is neither completed nor
//! freed, and its memory is kept for ever: Open MPI 5.0 ends the process if a message fails that was freed.
//! So no communicator is revoked either. Each rank learns of a loss from the control star, or from MPI's own
//! list. No communicator is made after a loss: Open MPI 5.0.11 ends the process if another process is lost
//! while it makes one (docs/decisions/shrink-in-place.md). MPI does not notice a process that is silent
//! because it was stopped or its link was cut. This process then ends its connections to the silent process
//! ([`Connections`]), and MPI treats that as a loss.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::net::SocketAddr;

use ringpull_base::{Error, Result, config};
use ringpull_mpi::{Api, Comm};

use crate::transport::library::{api, check};
use crate::transport::sockets::{own_ends, sever};

/// The number of times that ranks try to agree. 2 or 3 are enough unless more ranks are lost meanwhile.
const ATTEMPTS: usize = 1000;

/// The functions of ULFM, in a library that has them.
#[derive(Clone, Copy)]
pub(super) struct Ulfm(&'static Api);

/// Returns true if this process's MPI library has the functions to go on without a lost rank.
pub fn has_ulfm() -> bool {
    api().is_ok_and(|api| Ulfm::of(api).is_some())
}

impl Ulfm {
    fn of(api: &'static Api) -> Option<Self> {
        // SAFETY: the call only checks that functions of these names exist.
        (unsafe { (api.survives_losses)() } != 0).then_some(Ulfm(api))
    }

    /// Returns the functions, if the library has them and the launcher lets the job go on.
    pub(super) fn usable(api: &'static Api) -> Option<Self> {
        Self::of(api).filter(|_| config::launcher_survives_losses())
    }

    /// Returns the number of processes of `comm` that are known to have failed. Quick.
    pub(super) fn failures(self, comm: Comm) -> usize {
        let mut count: c_int = 0;
        // SAFETY: the communicator lives; no rank is to be written.
        let code = unsafe { (self.0.get_failed)(comm, std::ptr::null_mut(), 0, &raw mut count) };
        if code == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
    }

    /// Returns the ranks in `comm` of the processes that are known to have failed, in the order of failure.
    fn failed(self, comm: Comm, rank: usize) -> Result<Vec<c_int>> {
        let mut ranks = vec![0; self.failures(comm)];
        let mut count: c_int = 0;
        // SAFETY: the communicator lives; the list has room for the number of ranks that is passed.
        let code = unsafe { (self.0.get_failed)(comm, ranks.as_mut_ptr(), ranks.len() as c_int, &raw mut count) };
        check("MPIX_Comm_get_failed", rank, code)?;
        Ok(ranks)
    }

    /// Returns the ranks in `comm` of the processes that have failed, the same list on every survivor. Blocks
    /// until all survivors call it; collective.
    pub(super) fn agree_on_failed(self, comm: Comm, rank: usize) -> Result<Vec<c_int>> {
        let mut code = 0;
        for _ in 0..ATTEMPTS {
            let mut failed = self.failed(comm, rank)?;
            let mut acknowledged = 0;
            // SAFETY: the communicator lives, and the out-pointer is valid. The list begins with the
            // processes that failed first.
            let acked = unsafe { (self.0.ack_failed)(comm, failed.len() as c_int, &raw mut acknowledged) };
            check("MPIX_Comm_ack_failed", rank, acked)?;
            failed.sort_unstable();
            // The agreement keeps only the bits that all ranks have set. All bits of a hash and of its
            // complement are kept only if all ranks have the same hash.
            let hash = xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&failed)) as u16;
            let own = i32::from_ne_bytes((u32::from(hash) << 16 | u32::from(!hash)).to_ne_bytes());
            let mut common: c_int = own;
            // SAFETY: as above.
            code = unsafe { (self.0.agree)(comm, &raw mut common) };
            if code == 0 && common == own {
                return Ok(failed);
            }
            // Some rank did not know all failed processes. Now every rank does.
        }
        check("MPIX_Comm_agree", rank, code)?;
        Err(Error::bug("the ranks that are left do not agree on who has failed"))
    }
}

/// The ends of each rank's connections, as they were when all ranks had connected.
pub struct Connections(Vec<BTreeSet<SocketAddr>>);

impl Connections {
    /// Returns this process's ends, to be sent to the others.
    pub fn own() -> BTreeSet<SocketAddr> {
        own_ends()
    }

    /// Returns the ends that the ranks have sent. Addresses of loopback are useful only between ranks of one
    /// network. `is_near` returns true for a rank of this rank's network.
    pub fn of_ranks(mut ends: Vec<BTreeSet<SocketAddr>>, is_near: impl Fn(usize) -> bool) -> Self {
        for (_, ends) in ends.iter_mut().enumerate().filter(|(rank, _)| !is_near(*rank)) {
            ends.retain(|end| !end.ip().is_loopback());
        }
        Connections(ends)
    }

    /// Ends the connections of this process to these ranks, so that MPI treats these ranks as lost. Otherwise
    /// it would wait for a process that is alive and silent. May be called on any thread.
    pub fn sever(&self, ranks: &[usize]) {
        let ends = ranks.iter().filter_map(|rank| self.0.get(*rank)).flatten().copied().collect();
        let count = sever(&ends);
        tracing::debug!(?ranks, count, "connections to silent ranks are ended");
    }
}
