//! Messages between ranks in a job that may lose some. The survivors go on in the existing communicator
//! (`ulfm` has MPI's part).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result};
use ringpull_mpi::{Api, Comm};

use crate::transport::library::check;
use crate::transport::mpi::{InFlight, Mpi, check_arrival, own, probe};
use crate::transport::remaining::RemainingProcesses;
use crate::transport::ulfm::Ulfm;
use crate::transport::{SendMode, Stamp, Transport};

impl Mpi {
    /// Lets the library look for losses. Returns an error if a process of the communicator is known to be
    /// lost.
    pub fn check_failures(&mut self) -> Result<()> {
        self.progress();
        self.checked_failures()
    }

    fn checked_failures(&self) -> Result<()> {
        match self.ulfm.map_or(0, |ulfm| ulfm.failures(self.comm).saturating_sub(self.remaining.lost())) {
            0 => Ok(()),
            count => Err(Error::PeerLost {
                peer: format!("{count} of {} processes", self.size),
                ranks: Vec::new(),
                cause: "MPI reports the failure".to_owned(),
                operation: "communication".to_owned(),
                rank: Some(self.rank),
            }),
        }
    }

    /// Returns the state that `successor` needs to go on without the lost ranks of this communicator.
    pub fn heritage(&self) -> Option<Heritage> {
        let ulfm = self.ulfm.filter(|_| self.initialised_here)?;
        let Mpi { api, comm, remaining, rank, name, yields, .. } = self;
        Some(Heritage {
            api,
            ulfm,
            comm: *comm,
            remaining: remaining.clone(),
            rank: *rank,
            name: name.clone(),
            yields: *yields,
        })
    }

    /// Returns every rank's bytes. All ranks give the same number of bytes. Returns an error if a rank is
    /// lost meanwhile. Blocks; collective. Uses single messages, because a collective of the library may
    /// leave freed messages behind.
    pub fn exchange(&mut self, own: &[u8], stamp: Stamp) -> Result<Vec<Vec<u8>>> {
        let given = own.to_vec();
        let mut taken = vec![vec![0; own.len()]; self.size];
        let exchanged = self.exchange_from(&given, &mut taken, stamp);
        if exchanged.is_err() {
            // The library may still use these buffers.
            std::mem::forget((given, taken));
            return exchanged.map(|()| Vec::new());
        }
        Ok(taken)
    }

    fn exchange_from(&mut self, given: &[u8], taken: &mut [Vec<u8>], stamp: Stamp) -> Result<()> {
        let others: Vec<usize> = (0..self.size).filter(|rank| *rank != self.rank).collect();
        for other in &others {
            // SAFETY: the caller keeps both buffers until all messages are done, or for ever.
            unsafe {
                self.recv(*other, stamp, &raw mut taken[*other][..], 0)?;
                self.send(*other, stamp, &raw const *given, SendMode::Synchronous, 0)?;
            }
        }
        taken[self.rank].copy_from_slice(given);
        let (mut left, mut done) = (2 * others.len(), Vec::new());
        while left > 0 {
            self.poll(&mut done)?;
            left -= done.drain(..).count();
            self.check_failures()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Polls as `poll` does, but never completes a message that has failed, because the library would then
    /// free it, which it must not.
    pub(super) fn poll_elastic(&mut self, done: &mut Vec<u32>) -> Result<()> {
        let mut waiting: Vec<(bool, usize, c_int)> = Vec::new();
        let mut finished = 0;
        let mut at = 0;
        while at < self.requests.len() {
            let InFlight { token, way, due } = self.inflight[at];
            let mut is_done = false;
            if !waiting.contains(&way) {
                // SAFETY: the request is an active one of this communicator.
                let (code, flag) = unsafe { self.requests.is_done(at) };
                self.checked_failures()?;
                check("MPI_Request_get_status", self.rank, code)?;
                is_done = flag;
            }
            if !is_done {
                waiting.push(way);
                at += 1;
                continue;
            }
            // SAFETY: the request is done, so this returns at once and frees it.
            let code = unsafe { self.requests.wait(at) };
            check("MPI_Wait", self.rank, code)?;
            self.requests.remove(at);
            self.inflight.remove(at);
            finished += 1;
            if let Some(due) = due {
                // SAFETY: MPI_Wait has stored this receive's status there.
                check_arrival(self.rank, due, unsafe { self.requests.received(0) })?;
            }
            done.push(token);
        }
        if finished > 0 {
            self.sockets.moved();
            super::moved(finished);
        }
        Ok(())
    }
}

/// The MPI state with which survivors of a loss go on.
pub struct Heritage {
    api: &'static Api,
    ulfm: Ulfm,
    comm: Comm,
    remaining: RemainingProcesses,
    rank: usize,
    name: String,
    yields: bool,
}

impl Heritage {
    /// Returns MPI over the surviving processes, and the ranks that they had before. Returns `None` if no
    /// process is lost. Waits for all survivors; collective. To be called on the thread that initialised MPI.
    ///
    /// MPI may have reported a loss to other ranks and not to this rank. This rank then learns of the loss
    /// from the others, and after `patience` it goes on without MPI's report. Messages under way are never
    /// looked at again, and have tags that no later message has.
    pub fn successor(&self, patience: Duration) -> Option<Result<(Mpi, Vec<usize>)>> {
        let begun = Instant::now();
        while self.ulfm.failures(self.comm) <= self.remaining.lost() && begun.elapsed() < patience {
            // After a loss MPI refuses a probe for messages of any rank until the loss is acknowledged. A
            // probe of this process's own communicator is not refused.
            probe(self.api, own(self.api));
            std::thread::sleep(Duration::from_micros(200));
        }
        let next = self.without_failed();
        let is_whole = next.as_ref().is_ok_and(|(mpi, _)| mpi.remaining == self.remaining);
        (!is_whole).then_some(next)
    }

    fn without_failed(&self) -> Result<(Mpi, Vec<usize>)> {
        let failed = self.ulfm.agree_on_failed(self.comm, self.rank)?;
        let (remaining, ranks) = self.remaining.without(&failed);
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        super::forget_open();
        let mpi =
            Mpi::over(self.api, self.comm, remaining, rank, self.name.clone(), self.yields, (true, Some(self.ulfm)));
        Ok((mpi, ranks))
    }
}
