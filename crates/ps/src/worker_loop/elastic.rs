//! The additional work of a worker in a job that goes on without lost workers. It tells the servers when all
//! of them have received a push (`members` of the server has the rule), follows which workers are present,
//! and, if it has come later, asks to take part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use ringpull_base::{Error, Key, Result};

use super::{WorkerLoop, count};
use crate::call::{WorkersChanged, answer};
use crate::message::{CallsMade, Job, NodeInfo, Request, ToScheduler, encode};

/// The state of a worker in such a job.
pub(super) struct Membership {
    /// The calls that this worker has made.
    pub(super) calls: CallsMade,
    /// For each push that is not whole: its servers, and the number of servers that have not reported it.
    uncommitted: BTreeMap<(Key, u64), (BTreeSet<usize>, usize)>,
    /// The ranks of the present workers.
    present: BTreeSet<usize>,
    /// The caller that waits until this worker takes part.
    entering: Option<Sender<Result<CallsMade>>>,
    is_sync: bool,
}

impl Membership {
    pub(super) fn new(job: &Job) -> Self {
        Membership {
            calls: CallsMade::default(),
            uncommitted: BTreeMap::new(),
            present: job.present.iter().copied().collect(),
            entering: None,
            is_sync: job.is_sync(),
        }
    }

    pub(super) fn has_uncommitted(&self) -> bool {
        !self.uncommitted.is_empty()
    }

    /// Records that this worker has pushed the key for the `round`th time, or initialised it (0).
    pub(super) fn called(&mut self, key: &Key, round: u64, servers: impl FnOnce() -> BTreeSet<usize>) {
        if round > 0 {
            self.calls.pushes.insert(key.clone(), round);
        }
        let servers = if self.is_sync || round == 0 { servers() } else { BTreeSet::new() };
        if servers.len() > 1 {
            let left = servers.len();
            self.uncommitted.insert((key.clone(), round), (servers, left));
        }
    }

    pub(super) fn fail(&mut self, fault: &Error) {
        if let Some(done) = self.entering.take() {
            answer(&done, Err(fault.clone()));
        }
    }
}

impl WorkerLoop {
    /// Records that a server has received all of its segments of the push. If it is the last server, tells
    /// all servers.
    pub(super) fn arrived(&mut self, key: Key, round: u64) {
        let Some(elastic) = &mut self.elastic else { return };
        let name = (key, round);
        let Some((_, left)) = elastic.uncommitted.get_mut(&name) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        let (servers, _) = elastic.uncommitted.remove(&name).unwrap_or_default();
        let commit = encode(&Request::Commit { key: name.0, round });
        for server in servers {
            self.servers[server].connection.send(commit.clone());
            count(&self.shared.control, 1);
        }
    }

    /// Records the present workers. If `is_told`, the program is told of the change.
    pub(super) fn change(&mut self, generation: u64, workers: BTreeMap<usize, NodeInfo>, is_told: bool) {
        let Some(elastic) = &mut self.elastic else { return };
        if !workers.contains_key(&self.job.rank) {
            // This worker does not take part yet, and will learn the present workers when it does.
            return;
        }
        let present: BTreeSet<usize> = workers.keys().copied().filter(|rank| *rank < self.job.workers.len()).collect();
        let gone = elastic.present.iter().enumerate().filter(|(_, rank)| !present.contains(rank));
        let lost = gone.map(|(number, _)| number).collect();
        let rank = present.iter().position(|rank| *rank == self.job.rank).unwrap_or(0);
        let num_workers = present.len();
        elastic.present = present;
        for (rank, info) in workers {
            if let Some(known) = self.job.workers.get_mut(rank) {
                *known = info;
            }
        }
        let shared = &self.shared;
        if is_told {
            shared.changes.lock().push(WorkersChanged { generation, rank, num_workers, lost });
        }
        shared.rank.store(rank, Ordering::Relaxed);
        shared.num_workers.store(num_workers, Ordering::Relaxed);
        shared.generation.store(generation, Ordering::Relaxed);
    }

    pub(super) fn enter(&mut self, done: Sender<Result<CallsMade>>) -> Result<()> {
        if let Some(elastic) = &mut self.elastic {
            elastic.entering = Some(done);
        }
        self.link.send(&ToScheduler::Enter)
    }

    pub(super) fn entered(&mut self, calls: CallsMade) {
        let Some(elastic) = &mut self.elastic else { return };
        elastic.calls = calls.clone();
        if let Some(done) = elastic.entering.take() {
            answer(&done, Ok(calls));
        }
    }

    pub(super) fn count_calls(&mut self) -> Result<()> {
        let Some(elastic) = &self.elastic else { return Ok(()) };
        self.link.send(&ToScheduler::Counts(elastic.calls.clone()))
    }
}
