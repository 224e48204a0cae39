//! Ranks as threads of one process, joined by channels: the transport of tests.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};

use ringpull_base::{Error, Result};

use crate::transport::{SendMode, Stamp, Transport, tag};

struct QueuedMessage {
    data: Vec<u8>,
    /// The sender's queue for the confirmation that this message was received, and the message's token.
    waiting: Option<(Sender<u32>, u32)>,
}

struct PostedReceive {
    into: *mut [u8],
    token: u32,
}

// SAFETY: the pointer is only used by the thread that owns the transport; moving the transport moves the
// right to use it.
unsafe impl Send for PostedReceive {}

/// One rank's end.
pub struct Inproc {
    rank: usize,
    to: Vec<Sender<(u32, QueuedMessage)>>,
    from: Vec<Receiver<(u32, QueuedMessage)>>,
    /// The receives whose messages have not come, per peer and tag.
    posted: Vec<BTreeMap<u32, VecDeque<PostedReceive>>>,
    /// The messages without a receive so far, per peer and tag.
    early: Vec<BTreeMap<u32, VecDeque<QueuedMessage>>>,
    sent: Vec<u32>,
    /// The tokens of synchronous sends that the peers have received.
    heard: (Sender<u32>, Receiver<u32>),
    received: Vec<u32>,
    hosts: Vec<usize>,
}

/// Returns the ends of `size` connected ranks, each as if on its own host.
pub fn world(size: usize) -> Vec<Inproc> {
    world_on(&(0..size).collect::<Vec<_>>())
}

/// Returns the ends of connected ranks, one for each number in `hosts`. Ranks with the same number are on the
/// same host.
pub fn world_on(hosts: &[usize]) -> Vec<Inproc> {
    let size = hosts.len();
    let mut to: Vec<Vec<Sender<(u32, QueuedMessage)>>> = (0..size).map(|_| Vec::new()).collect();
    let mut from: Vec<Vec<Receiver<(u32, QueuedMessage)>>> = (0..size).map(|_| Vec::new()).collect();
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
        posted: (0..size).map(|_| BTreeMap::new()).collect(),
        early: (0..size).map(|_| BTreeMap::new()).collect(),
        sent: Vec::new(),
        heard: unbounded(),
        received: Vec::new(),
        hosts: hosts.to_vec(),
    })
    .collect()
}

impl Inproc {
    fn lost(&self, peer: usize) -> Error {
        Error::PeerLost {
            peer: format!("rank {peer}"),
            ranks: vec![peer],
            cause: "its thread ended".to_owned(),
            operation: "a transfer".to_owned(),
            rank: Some(self.rank),
        }
    }

    fn deliver(&mut self, peer: usize, tag: u32, posted: &PostedReceive, message: QueuedMessage) -> Result<()> {
        let data = &message.data[..];
        if data.len() != posted.into.len() {
            let what = format!("{} bytes with tag {tag} instead of {} bytes", data.len(), posted.into.len());
            return Err(Error::protocol(self.rank, format!("rank {peer}"), what));
        }
        // SAFETY: the poster of the receive keeps `into` valid and untouched until its token is returned.
        unsafe { &mut *posted.into }.copy_from_slice(data);
        self.received.push(posted.token);
        if let Some((sender, token)) = message.waiting {
            // A sender that is gone waits for nothing.
            sender.send(token).unwrap_or_default();
        }
        Ok(())
    }
}

/// Takes the front of the tag's queue. Removes the queue if it is then empty.
fn take<T>(queues: &mut BTreeMap<u32, VecDeque<T>>, tag: u32) -> Option<T> {
    let queue = queues.get_mut(&tag)?;
    let front = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&tag);
    }
    front
}

impl Transport for Inproc {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        // SAFETY: the caller keeps `data` valid and unchanged; it is copied before this returns.
        let data = unsafe { &*data }.to_vec();
        let waiting = (mode == SendMode::Synchronous).then(|| (self.heard.0.clone(), token));
        self.to[to].send((tag(stamp), QueuedMessage { data, waiting })).map_err(|_| self.lost(to))?;
        if mode == SendMode::Standard {
            self.sent.push(token);
        }
        Ok(())
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        let (posted, tag) = (PostedReceive { into, token }, tag(stamp));
        if let Some(message) = take(&mut self.early[from], tag) {
            return self.deliver(from, tag, &posted, message);
        }
        self.posted[from].entry(tag).or_default().push_back(posted);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        done.append(&mut self.sent);
        done.extend(self.heard.1.try_iter());
        for peer in 0..self.posted.len() {
            loop {
                match self.from[peer].try_recv() {
                    Ok((tag, message)) => match take(&mut self.posted[peer], tag) {
                        Some(posted) => self.deliver(peer, tag, &posted, message)?,
                        None => self.early[peer].entry(tag).or_default().push_back(message),
                    },
                    Err(TryRecvError::Disconnected) if !self.posted[peer].is_empty() => return Err(self.lost(peer)),
                    Err(_) => break,
                }
            }
        }
        done.append(&mut self.received);
        Ok(())
    }

    fn hosts(&mut self) -> Result<Vec<usize>> {
        let first = |host: &usize| self.hosts.iter().position(|other| other == host);
        Ok(self.hosts.iter().filter_map(first).collect())
    }

    fn narrow(&mut self, workers: usize) -> Result<()> {
        self.hosts.truncate(workers);
        Ok(())
    }

    fn name(&self) -> String {
        "threads of one process".to_owned()
    }
}
