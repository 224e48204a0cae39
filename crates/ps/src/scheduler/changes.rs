//! Workers of an elastic job that are lost, and workers that come in their place.
//!
//! ```text
//!   a worker is lost    -> Changed to the workers     Lost to the servers, each answers Known
//!   all have answered   -> Settle to the servers      each answers Settled: the rank is free
//!   a worker registers  -> Welcome: it is joining, and may init and pull
//!   it asks to Enter    -> dist_async: at once; dist_sync: when all others have come to a barrier:
//!                          Count to the worker of the lowest rank, which answers Counts
//!                       -> Join to the servers, each answers Joined
//!   all have answered   -> Changed to the workers, Entered to the new worker, and the barrier is done
//! ```
//!
//! So the servers know a new worker before anybody pushes for a round that waits for it. And a new worker
//! begins at a point that all others have reached.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringpull_base::config::Role;
use ringpull_base::{Error, Kind, notice};

use super::{JobPhase, Node, NodeIdentity, Scheduler};
use crate::message::{CallsMade, FromScheduler, Job, NodeInfo, ToScheduler, WholeKeys};

/// The time, in addition to `RINGPULL_SILENCE`, for which a surplus worker waits for a rank to become free.
const SURPLUS: Duration = Duration::from_secs(10);

/// The most workers that wait for a rank.
const MAX_WAITING: usize = 64;

/// The changes of workers since the job began, and the changes under way.
#[derive(Default)]
pub(super) struct WorkerChanges {
    generation: u64,
    incarnations: u32,
    /// The last worker of each rank, and the servers.
    workers: Vec<NodeInfo>,
    servers: Vec<NodeInfo>,
    /// The losses under way, by the rank of the lost worker.
    losses: BTreeMap<usize, Loss>,
    /// Registered workers that wait for a free rank.
    waiting: Vec<Surplus>,
    /// The joining workers that have asked to take part.
    entering: BTreeSet<usize>,
    admission: Option<Admission>,
    /// The number of the last barrier that was done.
    barriers: u64,
    /// The time of the last check.
    now: Duration,
}

/// The answers about a lost worker that the servers have not sent.
struct Loss {
    unanswered: BTreeSet<usize>,
    whole: WholeKeys,
    is_settled: bool,
}

struct Surplus {
    identity: NodeIdentity,
    info: NodeInfo,
    preferred: Option<usize>,
    since: Duration,
}

/// The admission of joining workers, while it is under way.
struct Admission {
    /// The barrier that ends when the admission is done.
    barrier: Option<u64>,
    /// The worker that was asked for its calls.
    asked: usize,
    calls: Option<CallsMade>,
    /// The servers that have not answered, each with the worker in question.
    unanswered: BTreeSet<(usize, usize)>,
    joining: BTreeSet<usize>,
}

impl WorkerChanges {
    pub(super) fn begin(&mut self, workers: Vec<NodeInfo>, servers: Vec<NodeInfo>) {
        (self.workers, self.servers) = (workers, servers);
    }
}

impl Node {
    /// Returns true if the node is a worker for which rounds and barriers wait.
    pub(super) fn is_member(&self) -> bool {
        self.info.role == Role::Worker && !self.is_joining
    }
}

impl Scheduler {
    /// Returns the description of the job, without the receiver's rank.
    pub(super) fn job(&self) -> Job {
        Job {
            rank: 0,
            token: self.settings.token,
            kind: self.kind.unwrap_or(Kind::DistSync),
            bigarray_bound: self.settings.bigarray_bound,
            workers: self.changes.workers.clone(),
            servers: self.changes.servers.clone(),
            is_elastic: self.settings.is_elastic,
            incarnation: 0,
            generation: self.changes.generation,
            present: self.members().into_keys().collect(),
        }
    }

    fn members(&self) -> BTreeMap<usize, NodeInfo> {
        let members = self.nodes.iter().filter(|node| node.is_member());
        members.map(|node| (node.rank, node.info.clone())).collect()
    }

    /// Returns the workers that have not come to a barrier to which `ranks` have come.
    pub(super) fn missing(&self, ranks: &[usize]) -> Vec<usize> {
        let missing = self.nodes.iter().filter(|node| node.is_member() && !ranks.contains(&node.rank));
        missing.map(|node| node.rank).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns true while the job agrees on its workers. Waits for this agreement end by themselves.
    pub(super) fn is_changing(&self) -> bool {
        self.changes.admission.is_some() || !self.changes.losses.is_empty()
    }

    /// Handles the loss of a node. The job goes on without it if it may, and fails otherwise.
    pub(super) fn lose(&mut self, index: usize, cause: &str) {
        let node = &self.nodes[index];
        let error = node.lost(cause);
        let rank = node.rank;
        let is_last = |node: &Node| node.is_member() && !node.left && node.rank != rank;
        let goes_on = self.settings.is_elastic
            && self.complete
            && node.info.role == Role::Worker
            && node.failing.is_none()
            && (node.is_joining || self.nodes.iter().any(is_last));
        if !goes_on || self.phase != JobPhase::Running {
            return self.fail(&error);
        }
        let node = self.nodes.remove(index);
        self.forget_waits();
        // The node may be alive, and may be heard again.
        self.outputs.push((node.identity, FromScheduler::Abort(error.clone())));
        for (_, ranks) in self.barriers.values_mut() {
            ranks.retain(|other| *other != rank);
        }
        self.barriers.retain(|_, (_, ranks)| !ranks.is_empty());
        self.came.remove(&rank);
        self.changes.entering.remove(&rank);
        let unanswered = (0..self.settings.num_servers).collect();
        let loss = Loss { unanswered, whole: WholeKeys::new(), is_settled: false };
        self.changes.losses.insert(rank, loss);
        self.send_to_role(Role::Server, &FromScheduler::Lost { rank, incarnation: node.incarnation });
        if !node.is_joining {
            self.changes.generation += 1;
            let left = self.members().len();
            notice(&said_of_loss(&error, left));
            let changed = FromScheduler::Changed { generation: self.changes.generation, workers: self.members() };
            self.send_to_role(Role::Worker, &changed);
        }
        self.ask_another(rank);
        self.go_on();
    }

    /// Forgets the waits that workers have reported, because they may end now. Workers report again if they
    /// still wait.
    fn forget_waits(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.waits = None);
    }

    /// Handles the loss of a worker during an admission. If it was asked for its calls, asks another. If it
    /// was joining, it is left out.
    pub(super) fn ask_another(&mut self, rank: usize) {
        let Some(admission) = self.changes.admission.as_mut().filter(|one| one.calls.is_none()) else { return };
        admission.joining.remove(&rank);
        if admission.asked == rank {
            self.ask_for_calls();
        }
    }

    /// Takes a node's answer about a change.
    pub(super) fn take_change(&mut self, index: usize, message: ToScheduler) -> Result<(), String> {
        let node = &self.nodes[index];
        let (from, role, is_joining) = (node.rank, node.info.role, node.is_joining);
        match message {
            ToScheduler::Enter if is_joining => {
                self.changes.entering.insert(from);
                self.go_on();
            }
            ToScheduler::Counts(calls) if role == Role::Worker => {
                let asked = self.changes.admission.as_ref();
                if asked.is_none_or(|one| one.asked != from || one.calls.is_some()) {
                    return Err("an answer to a question that was not asked".to_owned());
                }
                self.join_entering(calls);
            }
            ToScheduler::Known { rank, whole } if role == Role::Server => {
                let loss = self.changes.losses.get_mut(&rank).filter(|loss| !loss.is_settled);
                let loss = loss.ok_or("what is known of a worker that is not lost")?;
                for (key, known) in whole {
                    let all = loss.whole.entry(key).or_default();
                    all.completed = all.completed.max(known.completed);
                    all.rounds.extend(known.rounds);
                }
                loss.unanswered.remove(&from);
                if loss.unanswered.is_empty() {
                    loss.is_settled = true;
                    loss.unanswered = (0..self.settings.num_servers).collect();
                    let whole = std::mem::take(&mut loss.whole);
                    self.send_to_role(Role::Server, &FromScheduler::Settle { rank, whole });
                }
            }
            ToScheduler::Settled { rank } if role == Role::Server => {
                let loss = self.changes.losses.get_mut(&rank).filter(|loss| loss.is_settled);
                let loss = loss.ok_or("the end of a loss that is none")?;
                loss.unanswered.remove(&from);
                if loss.unanswered.is_empty() {
                    self.changes.losses.remove(&rank);
                    self.forget_waits();
                    self.give_ranks();
                }
            }
            ToScheduler::Joined { rank } if role == Role::Server => {
                if let Some(admission) = &mut self.changes.admission {
                    admission.unanswered.remove(&(from, rank));
                }
                self.go_on();
            }
            _ => return Err(format!("a message that no {role} sends now")),
        }
        Ok(())
    }

    /// Ends everything that is complete: barriers to which all have come, and the admission of new workers.
    pub(super) fn go_on(&mut self) {
        if self.phase != JobPhase::Running || !self.complete {
            return;
        }
        let is_answered = |one: &mut Admission| one.calls.is_some() && one.unanswered.is_empty();
        if let Some(admission) = self.changes.admission.take_if(is_answered) {
            self.complete_admission(admission);
        }
        let is_sync = !self.kind.is_some_and(Kind::is_async);
        if !is_sync && self.changes.admission.is_none() && !self.changes.entering.is_empty() {
            self.admit(None);
        }
        let full =
            |(number, (_, ranks)): (&u64, &(Duration, Vec<usize>))| self.missing(ranks).is_empty().then_some(*number);
        for number in self.barriers.iter().filter_map(full).collect::<Vec<_>>() {
            if is_sync && self.changes.admission.is_none() && !self.changes.entering.is_empty() {
                self.admit(Some(number));
            }
            let is_held = self.changes.admission.as_ref().is_some_and(|one| one.barrier == Some(number));
            if !is_held {
                self.end_barrier(number);
            }
        }
    }

    fn end_barrier(&mut self, number: u64) {
        self.barriers.remove(&number);
        self.changes.barriers = self.changes.barriers.max(number);
        self.next_warning = self.settings.warn;
        self.send_to_role(Role::Worker, &FromScheduler::BarrierDone { number });
    }

    fn admit(&mut self, barrier: Option<u64>) {
        let (calls, unanswered, joining) = (None, BTreeSet::new(), std::mem::take(&mut self.changes.entering));
        self.changes.admission = Some(Admission { barrier, asked: usize::MAX, calls, unanswered, joining });
        self.ask_for_calls();
    }

    fn ask_for_calls(&mut self) {
        let members = self.nodes.iter().filter(|node| node.is_member() && !node.left);
        let lowest = members.min_by_key(|node| node.rank);
        if let (Some(lowest), Some(admission)) = (lowest, &mut self.changes.admission) {
            admission.asked = lowest.rank;
            self.outputs.push((lowest.identity.clone(), FromScheduler::Count));
        }
    }

    /// Tells the servers of the entering workers that are still present.
    fn join_entering(&mut self, calls: CallsMade) {
        let Some(mut admission) = self.changes.admission.take() else { return };
        let mut joined = Vec::new();
        for node in &mut self.nodes {
            if node.info.role == Role::Worker && node.is_joining && admission.joining.contains(&node.rank) {
                node.is_joining = false;
                joined.push((node.rank, node.incarnation));
            }
        }
        admission.joining = joined.iter().map(|(rank, _)| *rank).collect();
        for (rank, incarnation) in joined {
            admission.unanswered.extend((0..self.settings.num_servers).map(|server| (server, rank)));
            self.send_to_role(Role::Server, &FromScheduler::Join { rank, incarnation, after: calls.pushes.clone() });
        }
        admission.calls = Some(calls);
        self.changes.admission = Some(admission);
        self.go_on();
    }

    fn complete_admission(&mut self, admission: Admission) {
        let Admission { barrier, calls, joining, .. } = admission;
        let calls = calls.unwrap_or_default();
        if let Some(number) = barrier {
            self.changes.barriers = self.changes.barriers.max(number);
        }
        if !joining.is_empty() {
            self.changes.generation += 1;
            let (generation, workers, barriers) = (self.changes.generation, self.members(), self.changes.barriers);
            notice(&format!("ringpull: the job goes on with {} worker(s)", workers.len()));
            for node in self.nodes.iter().filter(|node| node.info.role == Role::Worker && !node.left) {
                let message = if joining.contains(&node.rank) {
                    FromScheduler::Entered { generation, workers: workers.clone(), calls: calls.clone(), barriers }
                } else {
                    FromScheduler::Changed { generation, workers: workers.clone() }
                };
                self.outputs.push((node.identity.clone(), message));
            }
        }
        if let Some(number) = barrier {
            self.end_barrier(number);
        }
    }

    /// Returns true if a worker that registers now may take the place of a lost one.
    pub(super) fn takes_later(&self, info: &NodeInfo, kind: Option<Kind>, counts: (usize, usize)) -> bool {
        self.settings.is_elastic
            && self.complete
            && self.phase == JobPhase::Running
            && info.role == Role::Worker
            && kind == self.kind
            && counts == (self.settings.num_workers, self.settings.num_servers)
            && self.changes.waiting.len() < MAX_WAITING
    }

    pub(super) fn come_later(&mut self, from: &[u8], info: NodeInfo, preferred: Option<usize>, since: Duration) {
        self.changes.waiting.push(Surplus { identity: from.to_vec(), info, preferred, since });
        self.give_ranks();
    }

    /// Returns true if the message is from a worker that waits for a rank. Answers its heartbeats.
    pub(super) fn waits_for_a_rank(&mut self, from: &[u8], message: &ToScheduler) -> bool {
        let is_waiting = self.changes.waiting.iter().any(|waiting| waiting.identity == from);
        if is_waiting && matches!(message, ToScheduler::Heartbeat { .. }) {
            self.outputs.push((from.to_vec(), FromScheduler::Alive));
        }
        is_waiting
    }

    pub(super) fn forget_surplus(&mut self, identity: &[u8]) {
        self.changes.waiting.retain(|waiting| waiting.identity != identity);
    }

    /// Gives free ranks to workers that wait for one.
    fn give_ranks(&mut self) {
        while self.phase == JobPhase::Running && !self.changes.waiting.is_empty() {
            let is_taken = |rank: &usize| {
                let is_of = |node: &Node| node.info.role == Role::Worker && node.rank == *rank;
                self.changes.losses.contains_key(rank) || self.nodes.iter().any(is_of)
            };
            let free: Vec<usize> = (0..self.settings.num_workers).filter(|rank| !is_taken(rank)).collect();
            let Some(lowest) = free.first().copied() else { return };
            let Surplus { identity, info, preferred, since } = self.changes.waiting.remove(0);
            let rank = preferred.filter(|rank| free.contains(rank)).unwrap_or(lowest);
            self.changes.incarnations += 1;
            let incarnation = self.changes.incarnations;
            self.changes.workers[rank] = info.clone();
            let job = self.job();
            let present = job.present.iter().copied().chain([rank]).collect::<BTreeSet<_>>().into_iter().collect();
            let job = Job { rank, incarnation, present, ..job };
            self.outputs.push((identity.clone(), FromScheduler::Welcome(job)));
            // The time of the worker's next heartbeat replaces this.
            let seen = self.changes.now.max(since);
            self.nodes.push(Node { preferred, incarnation, is_joining: true, ..Node::new(identity, info, rank, seen) });
        }
    }

    /// Refuses workers that have waited for a rank for longer than the loss of a worker can remain unnoticed.
    pub(super) fn refuse_surplus(&mut self, now: Duration) {
        self.changes.now = now;
        let limit = self.settings.silence + SURPLUS;
        let is_late = |waiting: &mut Surplus| now.saturating_sub(waiting.since) > limit;
        for waiting in self.changes.waiting.extract_if(.., is_late).collect::<Vec<_>>() {
            let error = Error::job_mismatch(
                format!("the job has all of its {} workers already", self.settings.num_workers),
                "start as many processes as DMLC_NUM_WORKER and DMLC_NUM_SERVER say, and give each job a port of its own",
            );
            self.outputs.push((waiting.identity, FromScheduler::Abort(error)));
        }
    }

    /// Refuses joining workers, because the job has ended before they could take part.
    pub(super) fn refuse_joining(&mut self) {
        let waiting = self.changes.waiting.drain(..).map(|waiting| waiting.identity);
        let mut refused: Vec<NodeIdentity> = waiting.collect();
        let error = if let JobPhase::Failed(error) = &self.phase {
            // Nodes that have a rank know the error.
            error.clone()
        } else {
            let joining = self.nodes.iter().filter(|node| node.is_joining && !node.left);
            refused.extend(joining.map(|node| node.identity.clone()));
            Error::job_mismatch(
                "the job has ended before this worker could take part",
                "workers that come later take part from a barrier on: call it every few steps",
            )
        };
        self.outputs.extend(refused.into_iter().map(|to| (to, FromScheduler::Abort(error.clone()))));
    }
}

/// Returns the notice that a worker is lost and that `left` workers go on. It leaves out the error's hint,
/// which is for a job that ends.
pub(super) fn said_of_loss(error: &Error, left: usize) -> String {
    format!("ringpull: {}; the job goes on with {left} worker(s)", error.cause())
}
