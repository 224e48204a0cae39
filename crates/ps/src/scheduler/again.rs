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

use super::{JobPhase, MAX_BARRIERS, MAX_NAME, Node, Scheduler, Settings, lost_node, startup_limit};
use crate::message::{FromScheduler, KnownJob, NodeInfo};

/// What the nodes that have come back know.
pub(super) struct Returning {
    token: u64,
    kind: Kind,
    left: BTreeMap<usize, (NodeInfo, Option<String>)>,
    /// Who waits in which barrier.
    barriers: BTreeMap<u64, BTreeSet<usize>>,
    last_barrier: u64,
}

impl Scheduler {
    /// A node of the job comes back.
    pub(super) fn rejoin(&mut self, from: &[u8], info: NodeInfo, known: KnownJob, now: Duration) -> Result<(), String> {
        let node = Node::new(from.to_vec(), info, known.rank, now);
        let name = node.name();
        if let Some(error) = self.refusal(&node, &known) {
            self.outputs.push((from.to_vec(), FromScheduler::Abort(error)));
            return Err(format!("{name}, which comes back and is refused"));
        }
        if self.returning.is_none() {
            notice("ringpull: the scheduler was started again: it waits for the nodes of its job");
        }
        let KnownJob { rank, token, kind, left, lost_servers, barriers, last_barrier } = known;
        self.nodes.push(node);
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
        for (server, lost) in lost_servers {
            self.lose_server(server, Some(lost), &format!("{name} has lost it"));
        }
        if let JobPhase::Failed(error) = &self.phase {
            self.outputs.push((from.to_vec(), FromScheduler::Abort(error.clone())));
        }
        Ok(())
    }

    /// Why a node that comes back is not taken, if it is not.
    fn refusal(&self, node: &Node, known: &KnownJob) -> Option<Error> {
        let Settings { num_workers, num_servers, replicas, .. } = self.settings;
        let wanted = match node.info.role {
            Role::Worker => num_workers,
            Role::Server => num_servers,
            Role::Scheduler | Role::Helper => 0,
        };
        if node.info.role == Role::Server && self.lost_servers.contains_key(&node.rank) {
            return Some(lost_node(node.name(), None, "the job goes on without it".to_owned()));
        }
        let is_awaited = match &self.returning {
            Some(returning) => returning.token == known.token,
            None => self.nodes.is_empty() && replicas > 1,
        };
        let has_come = |other: &Node| {
            other.identity == node.identity || (other.info.role, other.rank) == (node.info.role, node.rank)
        };
        let is_sound = known.rank < wanted
            && node.info.fits()
            && known.left.iter().all(|(rank, (info, _))| *rank < num_workers && info.fits())
            && known.lost_servers.iter().all(|(rank, name)| *rank < num_servers && name.len() <= 3 * MAX_NAME)
            && known.barriers.len() <= MAX_BARRIERS;
        if is_awaited && is_sound && !self.nodes.iter().any(has_come) {
            return None;
        }
        if self.complete && self.settings.token == known.token {
            return Some(Error::job_mismatch(
                format!("{} has lost the scheduler, which lives, but was silent for too long", node.name()),
                "see what stopped the scheduler or its host, and restart the job from its last checkpoint",
            ));
        }
        Some(Error::job_mismatch(
            format!("{} comes back to a scheduler that does not miss it", node.name()),
            "start a scheduler again at once, with the variables that it had, and before it is used for another job",
        ))
    }

    /// Whether everybody has come back who is not known to be gone.
    pub(crate) fn all_are_back(&self) -> bool {
        self.returning.is_none() || [Role::Worker, Role::Server].iter().all(|role| self.absent(*role).is_empty())
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

    /// Takes the job over if all have come back. After a while whoever has not is lost.
    pub(super) fn look_for_return(&mut self, now: Duration) {
        if self.returning.is_none() || !(self.all_are_back() || now > startup_limit(self.settings.silence)) {
            return;
        }
        let workers = self.absent(Role::Worker);
        if !workers.is_empty() {
            return self.fail(&Error::Incomplete {
                what: format!(
                    "worker rank(s) {workers:?} did not come back to the scheduler, which was started again {:.0} s ago",
                    now.as_secs_f64()
                ),
                remedy: "see the output of these processes, and restart the job from its last checkpoint".to_owned(),
            });
        }
        for server in self.absent(Role::Server) {
            self.lose_server(server, None, "it did not come back to the scheduler, which was started again");
        }
        self.take_over(now);
    }

    /// All that are left have come back.
    fn take_over(&mut self, now: Duration) {
        if self.phase != JobPhase::Running {
            return;
        }
        let Some(Returning { token, kind, left, barriers, last_barrier }) = self.returning.take() else { return };
        (self.settings.token, self.kind, self.complete) = (token, Some(kind), true);
        self.changes.begin_at(last_barrier);
        self.nodes.iter_mut().for_each(|node| (node.seen, node.moved_at) = (now, now));
        for (rank, (info, failing)) in left {
            if self.worker(rank).is_none() {
                // Its identity is nobody's: it does not speak any more.
                let identity = [&token.to_le_bytes()[..], &rank.to_le_bytes()].concat();
                self.nodes.push(Node { left: true, failing, ..Node::new(identity, info, rank, now) });
            }
        }
        let has_left = self.nodes.iter().filter(|node| node.info.role == Role::Worker && node.left);
        let has_left = has_left.map(|node| (node.rank, node.info.clone(), node.failing.clone()));
        for (rank, info, why) in has_left.collect::<Vec<_>>() {
            self.tell_of_leaver(rank, info, why);
        }
        let workers = self.nodes.iter().filter(|node| node.info.role == Role::Worker && !node.left).count();
        let servers = self.settings.num_servers - self.lost_servers.len();
        notice(&format!(
            "ringpull: the scheduler was started again, and the job goes on with {workers} worker(s) and {servers} server(s)"
        ));
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
