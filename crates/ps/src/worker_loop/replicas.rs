//! What a worker does more in a job whose servers hold each other's values (`RINGPULL_REPLICAS`).
//!
//! Whatever changes a value goes to all servers that hold it at once. Each does the same with it, since sums
//! are made in the order of the ranks, and rounds in theirs. The first of them answers. If it is lost, the next
//! one has all that this worker has sent, gets what the others have, and is asked for what is not answered.
//!
//! It may be further than the lost one was, but only by a push of this worker: so that the answers are those
//! that the lost one would have given, a push waits for the answers to the earlier calls of its key.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringpull_base::{Key, Result};

use super::{Flush, WorkerLoop, count};
use crate::message::{KnownJob, encode};
use crate::operation::Operation;
use crate::shard::holders;
use crate::socket::Frame;

/// The calls of each key whose values are not here, and the pushes behind them, in the order of the calls.
#[derive(Default)]
pub(super) struct OpenCalls(BTreeMap<Key, VecDeque<OpenCall>>);

struct OpenCall {
    operation: u64,
    priority: i32,
    /// Whether it waits for those before it.
    is_held: bool,
}

impl WorkerLoop {
    /// The servers that hold the shard of server `shard` and are there, in the order in which they answer.
    pub(super) fn holders(&self, shard: usize) -> Vec<usize> {
        let all = holders(shard, self.servers.len(), self.job.replicas);
        all.filter(|server| self.servers[*server].connection.is_some()).collect()
    }

    /// Whether the call may leave now; else it does so when the earlier calls of its key have been answered.
    pub(super) fn may_leave(&mut self, id: u64, priority: i32) -> bool {
        let (Some(OpenCalls(open)), Some(operation)) = (&mut self.open, self.operations.get(&id)) else { return true };
        let is_held = operation.changes_values() && open.contains_key(operation.key());
        if is_held || operation.awaits_value() {
            let call = OpenCall { operation: id, priority, is_held };
            open.entry(operation.key().clone()).or_default().push_back(call);
        }
        !is_held
    }

    /// The call is done. Pushes that have waited for it leave.
    pub(super) fn end(&mut self, id: u64) {
        let Some(operation) = self.operations.remove(&id) else { return };
        let Some(OpenCalls(open)) = &mut self.open else { return };
        let Some(calls) = open.get_mut(operation.key()) else { return };
        calls.retain(|call| call.operation != id);
        let mut free = Vec::new();
        while let Some(call) = calls.front_mut().filter(|call| call.is_held) {
            free.push((call.operation, call.priority));
            if self.operations.get(&call.operation).is_some_and(Operation::awaits_value) {
                call.is_held = false;
                break;
            }
            calls.pop_front();
        }
        if calls.is_empty() {
            open.remove(operation.key());
        }
        for (id, priority) in free {
            self.put_in_queues(id, priority);
        }
    }

    /// Server `lost` is lost: others that hold its values are asked for what it has not answered.
    pub(super) fn go_on_without(&mut self, lost: usize) -> Result<()> {
        let Some(server) = self.servers.get_mut(lost) else { return Ok(()) };
        let Some(connection) = server.connection.take() else { return Ok(()) };
        connection.close(Duration::ZERO);
        server.broken = None;
        server.optimizers.clear();
        self.progress = Instant::now();
        (self.asked, self.flush) = (None, Flush::default());
        self.connect_without_a_server();
        // A word limits what is under way, and nobody waits for one.
        let (replicas, servers) = (self.job.replicas, &mut self.servers);
        self.words.retain(|_, (shard, item)| {
            let is_held = holders(*shard, servers.len(), replicas).any(|server| server == lost);
            if is_held {
                servers[*shard].queue.answered(*item);
            }
            !is_held
        });
        let mut confirmed = Vec::new();
        let of_it: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.servers.contains(&lost))
            .map(|(reply, _)| *reply)
            .collect();
        for reply in of_it {
            let Some(shard) = self.waiting.get(&reply).map(|waiting| waiting.shard) else { continue };
            let next = self.holders(shard).first().copied();
            let Some(waiting) = self.waiting.get_mut(&reply) else { continue };
            let Some(operation) = self.operations.get(&waiting.item.operation) else { continue };
            if operation.awaits_all() {
                confirmed.push(reply);
            } else if let Some(next) = next {
                waiting.servers = vec![next];
                waiting.vouched = false;
                let (request, payload) = operation.request_again(waiting.item.batch, reply);
                count(&self.shared.sent, payload.len() as u64);
                self.servers[next].send(Frame { header: encode(&request), payload });
            }
        }
        for reply in confirmed {
            self.finish(lost, reply, Vec::new(), None)?;
        }
        // What waited for room at it may leave.
        self.bell.ring();
        Ok(())
    }

    /// The scheduler is lost. An error, unless it may be started again and learn from its nodes what there is.
    pub(super) fn lose_scheduler(&mut self, cause: &str) -> Result<()> {
        if self.job.replicas == 1 {
            return Err(self.seen(self.link.lost(cause)));
        }
        self.connect_without_a_scheduler();
        let known = self.known_job();
        self.servers.iter_mut().for_each(|server| server.is_reported = false);
        self.link.rejoin(cause, &known).map_err(|error| self.seen(error))
    }

    pub(super) fn known_job(&self) -> KnownJob {
        let job = &self.job;
        let lost = (0..self.servers.len()).filter(|server| self.servers[*server].connection.is_none());
        let barriers: Vec<u64> = self.barriers.iter().map(|(number, _)| *number).collect();
        let mut known = KnownJob {
            lost_servers: lost.map(|server| (server, job.server_name(server))).collect(),
            last_barrier: barriers.iter().min().map_or(self.barrier_count, |first| first - 1),
            barriers,
            ..KnownJob::of(job)
        };
        for (rank, (info, why)) in &self.left {
            known.worker_left(*rank, info.clone(), why.clone());
        }
        known
    }
}
