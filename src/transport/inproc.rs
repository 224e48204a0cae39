//! Ranks as threads of one process, joined by channels: the transport of tests and of builds without MPI.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};

use crate::error::{Error, Result};
use crate::transport::{Stamp, Transport};

struct Message {
    stamp: Stamp,
    data: Vec<u8>,
}

struct Posted {
    stamp: Stamp,
    into: *mut [u8],
    token: u32,
}

// SAFETY: the pointer is only used by the thread that owns the transport; moving the transport moves that right.
unsafe impl Send for Posted {}

/// One rank's end.
pub struct Inproc {
    rank: usize,
    to: Vec<Sender<Message>>,
    from: Vec<Receiver<Message>>,
    posted: Vec<VecDeque<Posted>>,
    sent: Vec<u32>,
    hosts: Vec<usize>,
}

/// The ends of `size` ranks, all connected, each as if on a host of its own.
pub fn world(size: usize) -> Vec<Inproc> {
    world_on(&(0..size).collect::<Vec<_>>())
}

/// The ends of as many ranks, all connected; ranks with the same number are on the same host.
pub fn world_on(hosts: &[usize]) -> Vec<Inproc> {
    let size = hosts.len();
    let mut to: Vec<Vec<Sender<Message>>> = (0..size).map(|_| Vec::new()).collect();
    let mut from: Vec<Vec<Receiver<Message>>> = (0..size).map(|_| Vec::new()).collect();
    for sender in &mut to {
        for receiver in &mut from {
            let (tx, rx) = unbounded();
            sender.push(tx);
            receiver.push(rx);
        }
    }
    let ends = to.into_iter().zip(from).enumerate();
    ends.map(|(rank, (to, from))| Inproc {
        rank,
        to,
        from,
        posted: (0..size).map(|_| VecDeque::new()).collect(),
        sent: Vec::new(),
        hosts: hosts.to_vec(),
    })
    .collect()
}

impl Inproc {
    fn lost(&self, peer: usize) -> Error {
        Error::PeerLost {
            peer: format!("rank {peer}"),
            cause: "its thread ended".to_owned(),
            operation: "a transfer".to_owned(),
            rank: self.rank,
        }
    }
}

impl Transport for Inproc {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], token: u32) -> Result<()> {
        // SAFETY: the caller keeps `data` valid and unchanged; it is copied before this returns.
        let data = unsafe { &*data }.to_vec();
        self.to[to].send(Message { stamp, data }).map_err(|_| self.lost(to))?;
        self.sent.push(token);
        Ok(())
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        self.posted[from].push_back(Posted { stamp, into, token });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        done.append(&mut self.sent);
        for peer in 0..self.posted.len() {
            while let Some(posted) = self.posted[peer].front() {
                let message = match self.from[peer].try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Err(self.lost(peer)),
                };
                if message.stamp != posted.stamp || message.data.len() != posted.into.len() {
                    return Err(Error::Protocol {
                        rank: self.rank,
                        peer: format!("rank {peer}"),
                        what: format!(
                            "{} bytes of operation {} where {} bytes of operation {} were due",
                            message.data.len(),
                            message.stamp,
                            posted.into.len(),
                            posted.stamp
                        ),
                        remedy: "every rank must run the same operations with the same settings".to_owned(),
                    });
                }
                // SAFETY: the poster of the receive keeps `into` valid and untouched until its token is returned.
                unsafe { &mut *posted.into }.copy_from_slice(&message.data);
                done.push(posted.token);
                self.posted[peer].pop_front();
            }
        }
        Ok(())
    }

    fn hosts(&mut self) -> Result<Vec<usize>> {
        let first = |host: &usize| self.hosts.iter().position(|other| other == host);
        Ok(self.hosts.iter().filter_map(first).collect())
    }

    fn name(&self) -> String {
        "threads of one process".to_owned()
    }
}
