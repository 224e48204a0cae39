//! What a worker does about nodes that keep it waiting: it asks its servers who is missing, and notices which of them is lost.

use std::time::{Duration, Instant};

use ringpull_base::{Error, Key, Result};

use super::{WorkerLoop, count};
use crate::link::GRACE;
use crate::message::{ToScheduler, encode};
use crate::operation::Operation;
use crate::scheduler::lost_node;
use crate::socket::Event;

impl WorkerLoop {
    /// How long nothing may move before it is asked for whom. What a worker sent before it failed has arrived before it is known to have.
    fn patience(&self) -> Duration {
        self.failed.map_or(self.timeout, |_| GRACE.min(self.timeout))
    }

    /// Asks the server that has kept us waiting longest, once nothing has moved for the limit.
    pub(super) fn ask_who_is_missing(&mut self) -> Result<()> {
        let Some((reply, waiting)) = self.waiting.first_key_value() else { return self.check_unsent() };
        if self.failed.map_or(self.progress, |since| since.max(self.progress)).elapsed() < self.patience() {
            return Ok(());
        }
        match self.asked {
            // An answer clears this; a server that gives none for the limit is lost.
            Some(since) if since.elapsed() > self.timeout => {
                Err(self.lost_server(waiting.server, "it does not answer"))
            }
            Some(_) => Ok(()),
            None => {
                let Some(operation) = self.operations.get(&waiting.operation) else { return Ok(()) };
                self.asked = Some(Instant::now());
                let request = operation.who_is_missing(waiting.segment, *reply);
                count(&self.shared.control, 1);
                self.servers[waiting.server].connection.send(encode(&request));
                Ok(())
            }
        }
    }

    /// Segments that could not even leave for the limit.
    fn check_unsent(&self) -> Result<()> {
        match self.servers.iter().position(|server| !server.queue.is_empty()) {
            Some(server) if self.progress.elapsed() >= self.timeout => {
                Err(self.lost_server(server, "it takes no more messages"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn claim(&mut self, reply: u64, operation: String, missing: Vec<usize>) -> Result<()> {
        let patience = self.patience();
        let Some(waiting) = self.waiting.get_mut(&reply) else { return Ok(()) };
        let key = self.operations.get(&waiting.operation).map_or(Key::Int(0), |operation| operation.key().clone());
        let waited_s = waiting.since.elapsed().as_secs();
        // Asked again after the next turn of the clock, if the scheduler finds that the missing ranks make progress.
        self.progress = Instant::now().checked_sub(patience * 3 / 4).unwrap_or_else(Instant::now);
        if missing.is_empty() {
            // An answer and a claim keep their order on the way: the second time there is no answer to wait for.
            if std::mem::replace(&mut waiting.vouched, true) {
                let server = waiting.server;
                let what = format!("no answer for {waited_s} s to {operation} of key {key}, which waits for no rank");
                return Err(self.broken_protocol(server, what));
            }
            return Ok(());
        }
        let stalled = Error::Stalled { operation, key, rank: self.job.rank, missing, waited_s, why: String::new() };
        self.link.send(&ToScheduler::Stalled(stalled))
    }

    pub(super) fn look_at_servers(&mut self) -> Result<()> {
        for index in 0..self.servers.len() {
            let server = &mut self.servers[index];
            while let Some(event) = server.connection.event() {
                match event {
                    Event::Disconnected => drop(server.broken.get_or_insert_with(Instant::now)),
                    Event::Refused(error) => return Err(error),
                }
            }
            if server.broken.is_some_and(|since| since.elapsed() > GRACE) {
                return Err(self.lost_server(index, "its connection closed"));
            }
        }
        Ok(())
    }

    fn lost_server(&self, index: usize, cause: &str) -> Error {
        let info = &self.job.servers[index];
        let peer = format!("server {index} (pid {} on {}, {}:{})", info.pid, info.host, info.address, info.port);
        self.seen(lost_node(peer, cause.to_owned()))
    }

    pub(super) fn broken_protocol(&self, server: usize, what: String) -> Error {
        let remedy = "run the same version of ringpull on every node".to_owned();
        Error::Protocol { rank: self.job.rank, peer: format!("server {server}"), what, remedy }
    }

    /// The error as this worker meets it.
    pub(super) fn seen(&self, error: Error) -> Error {
        match error {
            Error::PeerLost { peer, cause, .. } => {
                let doing = self.operations.values().next().map_or("no operation".to_owned(), Operation::describe);
                Error::PeerLost { peer, cause, operation: doing, rank: self.job.rank }
            }
            error => error,
        }
    }
}
