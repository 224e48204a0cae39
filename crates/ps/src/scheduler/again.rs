//! A scheduler that is started again, in a job whose servers hold each other's values: its nodes come back and
//! say what they know.
//!
//! Meanwhile workers and servers go on with values; only barriers wait. When all have come back, or those that
//! have not are lost, the scheduler has what the first one had: ranks, who has left, the servers that are lost,
//! and the barriers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringpull_base::config::Role;
use ringpull_base::{Error, Kind, notice};

use super::{JobPhase, Node, Scheduler};
use crate::message::{FromScheduler, KnownJob, NodeInfo};

/// What the nodes that have come back know.
pub(super) struct Returning {
    token: u64,
    kind: Kind,
    left: BTreeMap<usize, NodeInfo>,
    /// Who waits in which barrier.
    barriers: BTreeMap<u64, BTreeSet<usize>>,
    last_barrier: u64,
}

impl Scheduler {
    /// A node of the job comes back.
    pub(super) fn rejoin(&mut self, from: &[u8], info: NodeInfo, known: KnownJob, now: Duration) -> Result<(), String> {
        let KnownJob { rank, token, kind, left, lost_servers, barriers, last_barrier } = known;
        let wanted = if info.role == Role::Worker { self.settings.num_workers } else { self.settings.num_servers };
        let is_there = |node: &Node| node.identity == from || (node.info.role, node.rank) == (info.role, rank);
        let is_first = self.returning.is_none() && self.nodes.is_empty();
        let is_of_it = self.returning.as_ref().is_some_and(|known| known.token == token);
        if self.settings.replicas == 1
            || self.complete
            || self.phase != JobPhase::Running
            || !(is_first || is_of_it)
            || !matches!(info.role, Role::Worker | Role::Server)
            || rank >= wanted
            || self.nodes.iter().any(is_there)
        {
            let error = Error::job_mismatch(
                format!(
                    "{} {rank} (pid {} on {}) comes back to a scheduler that does not miss it",
                    info.role, info.pid, info.host
                ),
                "start a scheduler again at once, with the variables that it had, and before it is used for another job",
            );
            self.outputs.push((from.to_vec(), FromScheduler::Abort(error)));
            return Err(format!("a {} that comes back from another job", info.role));
        }
        let returning = self.returning.get_or_insert_with(|| Returning {
            token,
            kind,
            left: BTreeMap::new(),
            barriers: BTreeMap::new(),
            last_barrier: 0,
        });
        returning.left.extend(left);
        returning.last_barrier = returning.last_barrier.max(last_barrier);
        for number in barriers {
            returning.barriers.entry(number).or_default().insert(rank);
        }
        self.lost_servers.extend(lost_servers);
        self.nodes.push(Node::back(from.to_vec(), info, rank, now));
        if self.absent(Role::Worker).is_empty() && self.absent(Role::Server).is_empty() {
            self.take_over(now);
        }
        Ok(())
    }

    /// The ranks that have not come back, of those that are not known to be gone.
    fn absent(&self, role: Role) -> Vec<usize> {
        let of_role = if role == Role::Worker { self.settings.num_workers } else { self.settings.num_servers };
        let is_gone = |rank: &usize| match role {
            Role::Worker => self.returning.as_ref().is_some_and(|known| known.left.contains_key(rank)),
            _ => self.lost_servers.contains_key(rank),
        };
        let is_back = |rank: &usize| self.nodes.iter().any(|node| (node.info.role, node.rank) == (role, *rank));
        (0..of_role).filter(|rank| !is_gone(rank) && !is_back(rank)).collect()
    }

    /// Who has not come back by now is lost.
    pub(super) fn end_return(&mut self, now: Duration) {
        let workers = self.absent(Role::Worker);
        let lost = |nodes: String| Error::Incomplete {
            what: format!(
                "{nodes} did not come back to the scheduler, which was started again {:.0} s ago",
                now.as_secs_f64()
            ),
            remedy: "see the output of these processes, and restart the job from its last checkpoint".to_owned(),
        };
        if !workers.is_empty() {
            return self.fail(&lost(format!("worker rank(s) {workers:?}")));
        }
        for server in self.absent(Role::Server) {
            if let Some(before) = self.lost_before(server) {
                return self
                    .fail(&lost(format!("server {server}, and before it {before}, which held the same values,")));
            }
            notice(&format!("ringpull: server {server} did not come back to the scheduler: it is lost"));
            self.lost_servers.insert(server, format!("server {server}"));
        }
        self.take_over(now);
    }

    /// All that are left have come back.
    fn take_over(&mut self, now: Duration) {
        let Some(Returning { token, kind, left, barriers, last_barrier }) = self.returning.take() else { return };
        (self.settings.token, self.kind, self.complete) = (token, Some(kind), true);
        self.changes.begin_at(last_barrier);
        let (workers, servers) =
            (self.settings.num_workers - left.len(), self.settings.num_servers - self.lost_servers.len());
        notice(&format!(
            "ringpull: the scheduler was started again, and the job goes on with {workers} worker(s) and {servers} server(s)"
        ));
        for (rank, info) in left {
            // Its name is nobody's: it does not speak any more.
            let name = [&token.to_le_bytes()[..], &rank.to_le_bytes()].concat();
            self.nodes.push(Node { left: true, ..Node::back(name, info, rank, now) });
        }
        self.nodes.iter_mut().for_each(|node| (node.seen, node.moved_at) = (now, now));
        for rank in self.lost_servers.keys().copied().collect::<Vec<_>>() {
            self.tell(Role::Worker, &FromScheduler::ServerLost { rank });
        }
        for (number, ranks) in barriers {
            if number <= last_barrier {
                self.tell(Role::Worker, &FromScheduler::BarrierDone { number });
            } else {
                let (_, waiting) = self.barriers.entry(number).or_insert((now, Vec::new()));
                waiting.extend(ranks.into_iter().filter(|rank| !waiting.contains(rank)).collect::<Vec<_>>());
            }
        }
        self.go_on();
        self.end_after_the_last();
    }
}

impl Node {
    fn back(identity: super::Identity, info: NodeInfo, rank: usize, now: Duration) -> Self {
        Node {
            identity,
            info,
            preferred: None,
            rank,
            seen: now,
            moved: 0,
            moved_at: now,
            left: false,
            waits: None,
            failing: None,
            born: 0,
            is_guest: false,
        }
    }
}
