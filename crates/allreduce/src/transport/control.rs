//! The control star: small frames between rank 0 and every other rank, and events about ranks that are gone.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::{Receiver, Sender, unbounded};

use ringpull_base::Result;

pub use crate::transport::links::Event;
use crate::transport::links::Links;

enum Wires {
    Channels(Vec<Sender<Event>>),
    Sockets(Links),
}

/// One rank's end of the star. Rank 0 reaches every rank. The others reach only rank 0.
pub struct Control {
    rank: usize,
    size: usize,
    wires: Wires,
    events: Receiver<Event>,
}

impl Control {
    /// Returns the ends of `size` ranks in one process.
    pub fn in_process(size: usize) -> Vec<Control> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..size).map(|_| unbounded()).unzip();
        let ends = receivers.into_iter().enumerate();
        ends.map(|(rank, events)| Control { rank, size, wires: Wires::Channels(senders.clone()), events }).collect()
    }

    /// Returns the end over sockets that are connected already.
    pub(super) fn over(rank: usize, size: usize, links: Links, events: Receiver<Event>) -> Self {
        Control { rank, size, wires: Wires::Sockets(links), events }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sends a frame. Never blocks. One of the two ranks must be rank 0.
    pub fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        debug_assert!(self.rank == 0 || to == 0, "the star has rank 0 in its middle");
        match &self.wires {
            Wires::Channels(senders) => {
                // A peer whose thread ended is noticed by the `Gone` that its end sends when it is dropped.
                drop(senders[to].send(Event::Frame { from: self.rank, bytes: bytes.to_vec() }));
                Ok(())
            }
            Wires::Sockets(links) => links.send(to, bytes),
        }
    }

    /// From now on sets `stop` when a peer is gone, and at once if a peer is already gone. The next call
    /// replaces `stop`. For a caller that waits for others before the events are read. Threads of one process
    /// are not watched.
    pub fn stop_on_loss(&self, stop: Option<&Arc<AtomicBool>>) {
        if let Wires::Sockets(links) = &self.wires {
            links.stop_on_loss(stop);
        }
    }

    /// Breaks the connection to a peer, as the network could. Returns false if there is none.
    #[cfg(test)]
    pub(super) fn break_connection(&self, peer: usize) -> bool {
        matches!(&self.wires, Wires::Sockets(links) if links.break_connection(peer))
    }

    /// The events that have arrived.
    pub fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Wires::Channels(senders) = &self.wires {
            let peers =
                senders.iter().enumerate().filter(|(peer, _)| *peer != self.rank && (self.rank == 0 || *peer == 0));
            for (_, sender) in peers {
                drop(sender.send(Event::Gone { rank: self.rank, cause: "its thread ended".to_owned() }));
            }
        }
    }
}
