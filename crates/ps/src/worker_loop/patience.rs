//! Handles nodes that keep a worker waiting. The worker asks its servers which workers are missing, warns
//! after `RINGPULL_WARN`, reports to the scheduler if it only waits, and notices lost servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringpull_base::config::{Config, DEADLOCK, NEVER};
use ringpull_base::waits::{self, IDLE};
use ringpull_base::{Error, Key, Result, notice};
use ringpull_session::Event;

use super::{SEND_LIMIT, ServerConnection, WorkerLoop, count};
use crate::link::GRACE;
use crate::message::{ToScheduler, encode};
use crate::operation::Operation;
use crate::scheduler::lost_node;

/// The time limits of a worker's waits.
pub(crate) struct Patience {
    /// The time until the first warning about ranks for which it waits. It doubles with each warning.
    warn: Duration,
    next_warning: Duration,
    /// The time after which a wait for a live rank is an error.
    timeout: Duration,
    /// The time after which a silent server is lost.
    pub(super) silence: Duration,
    /// True if this worker has reported to the scheduler that it only waits.
    has_told: bool,
    /// The bytes moved, the calls made and the time computed, when nothing had moved for the first time.
    still: Option<(Instant, f64)>,
}

impl Patience {
    pub(crate) fn of(config: &Config) -> Self {
        Patience {
            warn: config.warn,
            next_warning: config.warn,
            timeout: config.timeout,
            silence: config.silence(),
            has_told: false,
            still: None,
        }
    }

    /// Returns true if the program has only waited since the first call of this in the current standstill.
    fn is_only_waiting(&mut self, progress: Instant) -> bool {
        let (since, used_s) = match self.still {
            Some(still) if still.0 >= progress => still,
            _ => *self.still.insert((Instant::now(), waits::used_s())),
        };
        waits::look();
        let is_waiting = waits::is_only_waiting(waits::seen(since).as_ref());
        let lasted_s = since.elapsed().as_secs_f64();
        lasted_s > 1.0 && is_waiting && waits::used_s() - used_s < IDLE * lasted_s
    }
}

/// The times from which the length of a wait is counted.
pub(super) struct WaitRecord {
    /// The time at which something last came.
    pub(super) progress: Instant,
    /// The time at which a server was asked which workers are missing.
    pub(super) asked: Option<Instant>,
    /// The time at which a server last reported which workers are missing.
    pub(super) claimed: Option<Instant>,
    /// The workers that have left, each with its last error, and the time at which this worker heard of the
    /// last of them.
    pub(super) left: BTreeMap<usize, Option<String>>,
    pub(super) left_since: Option<Instant>,
}

impl WaitRecord {
    pub(super) fn new() -> Self {
        let (asked, claimed, left_since) = (None, None, None);
        WaitRecord { progress: Instant::now(), asked, claimed, left: BTreeMap::new(), left_since }
    }
}

impl WorkerLoop {
    /// Returns the time without movement after which the worker asks which workers are missing. It is short
    /// if a worker has left since the last answer. The messages of that worker have arrived before its end is
    /// known.
    fn patience(&self) -> Duration {
        let look = (DEADLOCK / 4).min(self.patience.timeout);
        if self.waits.left_since.is_some() && self.waits.left_since > self.waits.claimed {
            GRACE.min(look)
        } else {
            look
        }
    }

    /// Asks the server that has kept this worker waiting longest, if nothing has moved for the limit.
    pub(super) fn ask_who_is_missing(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            self.check_unsent()?;
        }
        let Some((reply, waiting)) = self.waiting.first_key_value() else { return Ok(()) };
        let server = waiting.server;
        let last = [Some(self.waits.progress), self.waits.left_since, self.waits.claimed].into_iter().flatten().max();
        if last.is_some_and(|last| last.elapsed() < self.patience()) {
            return Ok(());
        }
        match self.waits.asked {
            // An answer clears this. A server that sends no answer for the silence is lost.
            Some(since) if since.elapsed() > self.patience.silence => {
                if !self.servers[server].connection.has_room(1) {
                    // The question has not left, because earlier pushes have not left.
                    self.waits.asked = Some(Instant::now());
                    return Ok(());
                }
                Err(self.lost_server(server, "it does not answer"))
            }
            Some(_) => Ok(()),
            None => {
                let Some(operation) = self.operations.get(&waiting.item.operation) else { return Ok(()) };
                self.waits.asked = Some(Instant::now());
                let request = operation.who_is_missing(waiting.item.batch, *reply);
                count(&self.shared.control, 1);
                self.servers[server].connection.send(encode(&request));
                Ok(())
            }
        }
    }

    /// Returns an error if segments could not even leave within the limit.
    fn check_unsent(&mut self) -> Result<()> {
        let is_full = |server: &ServerConnection| !server.queue.is_empty() && !server.connection.has_room(SEND_LIMIT);
        match self.servers.iter().position(is_full) {
            Some(server) if self.waits.progress.elapsed() >= self.patience.silence => {
                Err(self.lost_server(server, "it takes no more messages"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn claim(&mut self, reply: u64, operation: String, missing: Vec<usize>) -> Result<()> {
        let Some(waiting) = self.waiting.get_mut(&reply) else { return Ok(()) };
        let key = self.operations.get(&waiting.item.operation).map_or(Key::Int(0), |operation| operation.key().clone());
        let since = waiting.since;
        let waited_s = since.elapsed().as_secs();
        self.waits.claimed = Some(Instant::now());
        if missing.is_empty() {
            // Answers and claims arrive in order. So at the second claim there is no answer to wait for.
            if std::mem::replace(&mut waiting.vouched, true) {
                let server = waiting.server;
                let what =
                    format!("no answer for {waited_s} s to {operation} of key {key}, although it waits for no rank");
                return Err(self.broken_protocol(server, what));
            }
            return Ok(());
        }
        if let Some((rank, why)) = missing.iter().find_map(|rank| self.waits.left.get_key_value(rank)) {
            let (peer, ranks, why) = (self.job.worker_name(*rank), vec![*rank], why.clone().unwrap_or_default());
            let operation = format!("{operation} of key {key}");
            return Err(Error::Finished { peer, ranks, operation, rank: self.job.rank, why });
        }
        let waited = waiting.since.elapsed();
        if waited >= self.patience.timeout {
            let stalled = Error::Stalled { operation, key, rank: self.job.rank, missing, waited_s, why: String::new() };
            return self.link.send(&ToScheduler::Stalled(stalled));
        }
        if waited < self.patience.warn {
            self.patience.next_warning = self.patience.warn;
        }
        if waited >= self.patience.next_warning {
            self.patience.next_warning = self.patience.next_warning.max(waited) * 2;
            let end = if self.patience.timeout >= NEVER {
                "there is no limit while their processes live".to_owned()
            } else {
                format!("after {} s (RINGPULL_TIMEOUT) this is an error", self.patience.timeout.as_secs())
            };
            notice(&format!(
                "warning: rank {} has waited {waited_s} s for {operation} of key {key}, which rank(s) {missing:?} have not called; {end}",
                self.job.rank
            ));
        }
        if !self.patience.is_only_waiting(since) {
            return Ok(());
        }
        let site = waits::seen(since).and_then(|place| place.site);
        let at = site.map_or_else(String::new, |site| format!(" at {site}"));
        let what = format!("{at} for {operation} of key {key}");
        self.patience.has_told = true;
        self.link.send(&ToScheduler::Waits { what, missing })
    }

    /// Records progress: this worker no longer only waits.
    pub(super) fn has_come_on(&mut self) -> Result<()> {
        self.waits.progress = Instant::now();
        if std::mem::take(&mut self.patience.has_told) {
            self.link.send(&ToScheduler::Waits { what: String::new(), missing: Vec::new() })?;
        }
        Ok(())
    }

    pub(super) fn look_at_servers(&mut self) -> Result<()> {
        for index in 0..self.servers.len() {
            let server = &mut self.servers[index];
            while let Some(event) = server.connection.event() {
                match event {
                    Event::Refused(error) => return Err(error),
                    _ => drop(server.broken.get_or_insert_with(Instant::now)),
                }
            }
            if server.broken.is_some_and(|since| since.elapsed() > GRACE) {
                return Err(self.lost_server(index, "its connection closed"));
            }
        }
        Ok(())
    }

    /// Returns the error for a lost server.
    fn lost_server(&self, index: usize, cause: &str) -> Error {
        self.seen(lost_node(self.job.server_name(index), None, cause.to_owned()))
    }

    pub(super) fn broken_protocol(&self, server: usize, what: String) -> Error {
        Error::protocol(self.job.rank, format!("server {server}"), what)
    }

    /// Returns the error as this worker sees it.
    pub(super) fn seen(&self, mut error: Error) -> Error {
        if let Error::PeerLost { operation, .. } = &mut error {
            *operation = self.operations.values().next().map_or("no operation".to_owned(), Operation::describe);
        }
        error.met_by(self.job.rank)
    }
}
