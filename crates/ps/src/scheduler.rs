//! The scheduler as a function from (state, message, time) to replies. It does no I/O; `scheduler_loop` does.
//!
//! It first waits until every node has registered. Then it assigns ranks and sends the addresses to every
//! node. From then on it runs barriers, notices silent nodes, and ends the job. The job ends in order after
//! the last worker's goodbye, or with the first fault, which is sent to every node. `changes` handles workers
//! of an elastic job that are lost, and workers that come.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringpull_base::config::Role;
use ringpull_base::{Error, Key, Kind, after_error};

use self::changes::WorkerChanges;
use crate::message::{FromScheduler, Job, NodeInfo, ToScheduler};

/// The time for which every worker must have waited before a deadlock is certain. Until then, a message that
/// is on its way may end a wait.
const CERTAIN: Duration = Duration::from_secs(2);

/// A node's routing identity.
pub type NodeIdentity = Vec<u8>;

/// The scheduler's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `DMLC_NUM_WORKER`.
    pub num_workers: usize,
    /// `DMLC_NUM_SERVER`.
    pub num_servers: usize,
    /// The time after which the ranks for which others wait are reported.
    pub warn: Duration,
    /// The time for which a wait may go without progress.
    pub timeout: Duration,
    /// The time for which a node may be silent.
    pub silence: Duration,
    /// The bound from which keys are split, which is sent to every worker.
    pub bigarray_bound: usize,
    /// The number by which the nodes of this job recognise each other.
    pub token: u64,
    /// True if the job goes on without workers that it loses.
    pub is_elastic: bool,
    /// The name of the scheduler's host.
    pub host: String,
}

impl Settings {
    /// Returns the time limit for the nodes to register.
    pub fn startup_limit(&self) -> Duration {
        startup_limit(self.timeout)
    }
}

/// Returns the time limit for the nodes to register, if the limit of a wait is `timeout`. It is longer than a
/// short `timeout`, which is meant for steps, because processes take longer to start.
pub(crate) fn startup_limit(timeout: Duration) -> Duration {
    timeout + (timeout * 2).min(Duration::from_secs(20))
}

/// The most open barriers. A worker waits for one barrier before it comes to the next, unless several of its
/// threads do.
const MAX_BARRIERS: usize = 1 << 10;

/// The greatest length of a host's name or of an address.
const MAX_NAME: usize = 255;

impl NodeInfo {
    fn fits(&self) -> bool {
        self.host.len().max(self.address.len()) <= MAX_NAME
    }
}

/// The state of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobPhase {
    /// The job goes on.
    Running,
    /// Every worker has said goodbye.
    Ended,
    /// The job has failed, and the error was sent to every node.
    Failed(Error),
}

struct Node {
    identity: NodeIdentity,
    info: NodeInfo,
    preferred: Option<usize>,
    rank: usize,
    seen: Duration,
    moved: u64,
    moved_at: Duration,
    left: bool,
    /// The operation for which the node waits, the ranks that have not called it, and the time since which it
    /// waits.
    waits: Option<(String, Vec<usize>, Duration)>,
    /// The error with which the node would end if it ended now.
    failing: Option<String>,
    /// The worker's number among those that came later, from 1, or 0 if it was there at the start.
    incarnation: u32,
    /// True if it has come later and does not take part in rounds and barriers yet.
    is_joining: bool,
}

impl Node {
    fn new(identity: NodeIdentity, info: NodeInfo, rank: usize, now: Duration) -> Self {
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
            incarnation: 0,
            is_joining: false,
        }
    }

    fn name(&self) -> String {
        let NodeInfo { role, address, port, pid, host } = &self.info;
        match role {
            Role::Worker => format!("worker rank {} (pid {pid} on {host})", self.rank),
            _ => format!("{role} {} (pid {pid} on {host}, {address}:{port})", self.rank),
        }
    }

    /// Returns the error of the node's loss, with the error that it reported before.
    fn lost(&self, cause: &str) -> Error {
        let worker = (self.info.role == Role::Worker).then_some(self.rank);
        lost_node(self.name(), worker, after_error(cause, self.failing.as_deref()))
    }
}

/// The scheduler's state.
pub struct Scheduler {
    settings: Settings,
    nodes: Vec<Node>,
    kind: Option<Kind>,
    complete: bool,
    /// For each open barrier: the time at which the first worker came, and the workers that have come.
    barriers: BTreeMap<u64, (Duration, Vec<usize>)>,
    /// The workers that are connected to all servers, or have left.
    connected: BTreeSet<usize>,
    /// The time at which each worker last came to a barrier.
    came: BTreeMap<usize, Duration>,
    phase: JobPhase,
    /// The time of the next warning about nodes for which others wait.
    next_warning: Duration,
    outputs: Vec<(NodeIdentity, FromScheduler)>,
    /// The number of questions for the nodes' states so far, the node that asked last, and its number for the
    /// question.
    questions: u64,
    asker: Option<(NodeIdentity, u64)>,
    changes: WorkerChanges,
}

impl Scheduler {
    /// Returns a scheduler that waits for the numbers of nodes in `settings`.
    pub fn new(settings: Settings) -> Self {
        Scheduler {
            next_warning: settings.warn,
            settings,
            nodes: Vec::new(),
            kind: None,
            complete: false,
            barriers: BTreeMap::new(),
            connected: BTreeSet::new(),
            came: BTreeMap::new(),
            phase: JobPhase::Running,
            outputs: Vec::new(),
            questions: 0,
            asker: None,
            changes: WorkerChanges::default(),
        }
    }

    /// The state of the job.
    pub fn phase(&self) -> &JobPhase {
        &self.phase
    }

    /// Takes the messages to send.
    pub fn take_outputs(&mut self) -> Vec<(NodeIdentity, FromScheduler)> {
        std::mem::take(&mut self.outputs)
    }

    /// Takes a message. `now` is the time since the scheduler started. Returns an error with the reason if
    /// the message was dropped.
    pub fn handle(&mut self, from: &[u8], message: ToScheduler, now: Duration) -> Result<(), String> {
        if let ToScheduler::Register { info, preferred, kind, num_workers, num_servers } = message {
            return self.register(from, info, preferred, kind, (num_workers, num_servers), now);
        }
        if self.waits_for_a_rank(from, &message) {
            return Ok(());
        }
        let found = self.nodes.iter().position(|node| node.identity == from);
        let index = found.ok_or_else(|| "the sender has not registered".to_owned())?;
        let node = &mut self.nodes[index];
        node.seen = now;
        let (rank, role) = (node.rank, node.info.role);
        match message {
            ToScheduler::Register { .. } => {}
            ToScheduler::Heartbeat { moved } => {
                if moved != node.moved {
                    (node.moved, node.moved_at, node.waits) = (moved, now, None);
                }
                self.outputs.push((from.to_vec(), FromScheduler::Alive));
            }
            ToScheduler::Barrier { number } if node.is_member() => {
                if self.barriers.len() >= MAX_BARRIERS && !self.barriers.contains_key(&number) {
                    return Err(format!("a barrier although {MAX_BARRIERS} are open"));
                }
                node.waits = None;
                self.came.insert(rank, now);
                let (_, ranks) = self.barriers.entry(number).or_insert((now, Vec::new()));
                if !ranks.contains(&rank) {
                    ranks.push(rank);
                }
                self.go_on();
            }
            ToScheduler::Barrier { .. } => return Err("a barrier of a node that takes no part in any".to_owned()),
            ToScheduler::Connected if role == Role::Worker => self.is_connected(rank),
            ToScheduler::Connected => return Err("only workers connect".to_owned()),
            ToScheduler::Fault(error) => self.fail(&error),
            ToScheduler::Stalled(error) => {
                let missing = match &error {
                    Error::Stalled { missing, .. } if !missing.is_empty() => missing,
                    _ => return Err("a stall that is none".to_owned()),
                };
                let is_gone = |rank: &usize| self.worker(*rank).is_none();
                if self.settings.is_elastic && missing.iter().any(is_gone) {
                    // The node waited for a worker that is lost. It reports again if it still waits.
                    return Ok(());
                }
                if missing.iter().any(|rank| self.has_left(*rank))
                    || missing.iter().all(|rank| self.is_quiet(*rank, now))
                {
                    self.fail(&error);
                }
            }
            ToScheduler::Waits { what, missing } => {
                // The node reports one wait repeatedly.
                let since = node.waits.take().map_or(now, |(_, _, since)| since);
                node.waits = (!missing.is_empty()).then_some((what, missing, since));
            }
            ToScheduler::Failing(why) => self.nodes[index].failing = why,
            ToScheduler::Describe { question } => {
                self.questions += 1;
                self.asker = Some((from.to_vec(), question));
                let asked = FromScheduler::Describe { question: self.questions };
                [Role::Worker, Role::Server].into_iter().for_each(|role| self.send_to_role(role, &asked));
            }
            ToScheduler::Described { question, status } => {
                if let Some((asker, number)) = self.asker.as_ref().filter(|_| question == self.questions) {
                    let answer = FromScheduler::Described { question: *number, role, rank, status };
                    self.outputs.push((asker.clone(), answer));
                }
            }
            ToScheduler::Goodbye => {
                let node = &mut self.nodes[index];
                node.left = true;
                let (why, is_joining) = (node.failing.clone(), node.is_joining);
                if role == Role::Worker && !is_joining && self.phase == JobPhase::Running {
                    self.send_to_role(Role::Worker, &FromScheduler::WorkerLeft { rank, why });
                    // Nobody waits for this worker's connections any more.
                    self.is_connected(rank);
                }
                self.outputs.push((from.to_vec(), FromScheduler::Farewell));
                if is_joining {
                    self.nodes[index].left = false;
                    self.lose(index, "it has left");
                    return Ok(());
                }
                self.ask_another(rank);
                self.end_after_the_last();
            }
            ToScheduler::Enter
            | ToScheduler::Counts(_)
            | ToScheduler::Known { .. }
            | ToScheduler::Settled { .. }
            | ToScheduler::Joined { .. } => return self.take_change(index, message),
        }
        Ok(())
    }

    /// Ends the job if every worker has said goodbye.
    fn end_after_the_last(&mut self) {
        let mut workers = self.nodes.iter().filter(|node| node.info.role == Role::Worker);
        if self.complete && workers.all(|node| node.left || node.is_joining) && self.phase == JobPhase::Running {
            self.phase = JobPhase::Ended;
            self.send_to_role(Role::Server, &FromScheduler::Farewell);
            self.refuse_joining();
        }
    }

    /// Returns true if this node has registered.
    pub fn knows(&self, identity: &[u8]) -> bool {
        self.nodes.iter().any(|node| node.identity == identity)
    }

    /// Returns true if there is a message to send to this node.
    pub(crate) fn answers(&self, identity: &[u8]) -> bool {
        self.outputs.iter().any(|(to, _)| to == identity)
    }

    /// Checks the time limits: for silent nodes, and for nodes that have not come.
    pub fn tick(&mut self, now: Duration) {
        if self.phase != JobPhase::Running {
            return;
        }
        let limit = self.settings.silence;
        let silent = |node: &Node| !node.left && now.saturating_sub(node.seen) > limit;
        if let Some(index) = self.nodes.iter().position(silent) {
            let silence = now.saturating_sub(self.nodes[index].seen);
            return self.lose(index, &format!("no heartbeat for {:.1} s", silence.as_secs_f64()));
        }
        self.refuse_surplus(now);
        if !self.complete && now > self.settings.startup_limit() {
            let count = |role| self.nodes.iter().filter(|node| node.info.role == role).count();
            let (workers, servers) = (count(Role::Worker), count(Role::Server));
            let Settings { num_workers, num_servers, .. } = self.settings;
            let what = format!(
                "after {:.0} s only {workers} of {num_workers} workers and {servers} of {num_servers} servers \
                 have reached the scheduler",
                now.as_secs_f64(),
            );
            let remedy = "start as many processes of each DMLC_ROLE as DMLC_NUM_WORKER and DMLC_NUM_SERVER say, \
                          and look at the output of those that are missing";
            return self.fail(&Error::Incomplete { what, remedy: remedy.to_owned() });
        }
        let stalled = self.barriers.values().find_map(|(since, ranks)| {
            let missing = self.missing(ranks);
            let waited = now.saturating_sub(*since);
            let quiet = waited > self.settings.timeout
                && !missing.is_empty()
                && missing.iter().all(|rank| self.is_quiet(*rank, now));
            let vain = missing.iter().any(|rank| self.has_left(*rank));
            (quiet || vain).then(|| Error::Stalled {
                operation: "barrier".to_owned(),
                key: Key::from("(barrier)"),
                rank: ranks[0],
                missing,
                waited_s: waited.as_secs(),
                why: String::new(),
            })
        });
        if let Some(error) = stalled.or_else(|| self.deadlock(now)) {
            self.fail(&error);
        }
    }

    /// Returns a deadlock, with each worker's wait, if every worker that has not left has waited for another
    /// for [`CERTAIN`].
    fn deadlock(&self, now: Duration) -> Option<Error> {
        if self.is_changing() {
            return None;
        }
        let workers = self.nodes.iter().filter(|node| node.is_member() && !node.left);
        let in_barrier = |rank: usize| {
            self.barriers.values().find_map(|(_, ranks)| {
                ranks
                    .contains(&rank)
                    .then(|| format!(" for the barrier, to which rank(s) {:?} have not come", self.missing(ranks)))
            })
        };
        let waits = workers.map(|node| {
            let told =
                node.waits.as_ref().filter(|(_, missing, _)| !missing.is_empty()).map(|(what, missing, since)| {
                    (format!("{what}, which rank(s) {missing:?} have not called"), *since)
                });
            let came = self.came.get(&node.rank).copied().unwrap_or_default();
            let (what, since) = told.or_else(|| Some((in_barrier(node.rank)?, came.max(node.moved_at))))?;
            (now.saturating_sub(since) >= CERTAIN).then_some((node.rank, what))
        });
        let waits = waits.collect::<Option<Vec<_>>>()?;
        (self.complete && waits.len() > 1).then_some(Error::Deadlock { waits })
    }

    /// Returns a warning about nodes for which others have waited long, if it is due.
    pub fn warning(&mut self, now: Duration) -> Option<String> {
        let (waited, what) = if self.complete {
            // All workers have come to a barrier that is held only until new workers take part.
            let awaited = |(since, ranks): &(Duration, Vec<usize>)| {
                Some((*since, self.missing(ranks))).filter(|(_, missing)| !missing.is_empty())
            };
            let (since, missing) = self.barriers.values().filter_map(awaited).min_by_key(|(since, _)| *since)?;
            (now.saturating_sub(since), format!("rank(s) {missing:?} to come to a barrier"))
        } else {
            let count = |role| self.nodes.iter().filter(|node| node.info.role == role).count();
            let (workers, servers) = (count(Role::Worker), count(Role::Server));
            let Settings { num_workers, num_servers, .. } = self.settings;
            (
                now,
                format!(
                    "nodes to start: {workers} of {num_workers} workers and {servers} of {num_servers} servers are there"
                ),
            )
        };
        if self.phase != JobPhase::Running || waited < self.next_warning {
            return None;
        }
        self.next_warning *= 2;
        Some(format!("warning: the scheduler has waited {} s for {what}", waited.as_secs()))
    }

    /// Sends every node a message, which shows which connections are gone.
    pub fn probe(&mut self) {
        for node in self.nodes.iter().filter(|node| !node.left) {
            self.outputs.push((node.identity.clone(), FromScheduler::Alive));
        }
    }

    /// Records that the node's connection is gone.
    pub fn unreachable(&mut self, identity: &[u8]) {
        self.forget_surplus(identity);
        if let Some(index) = self.nodes.iter().position(|node| node.identity == identity && !node.left) {
            self.lose(index, "its connection closed");
        }
    }

    /// Ends the job with `error`, which is sent to every node.
    pub fn fail(&mut self, error: &Error) {
        if self.phase != JobPhase::Running {
            return;
        }
        let error = &self.explained(error);
        self.phase = JobPhase::Failed(error.clone());
        for node in self.nodes.iter().filter(|node| !node.left) {
            self.outputs.push((node.identity.clone(), FromScheduler::Abort(error.clone())));
        }
        self.refuse_joining();
    }

    /// Returns the error of a wait. If the awaited worker has ended, the error says so, with the worker's
    /// last error.
    fn explained(&self, error: &Error) -> Error {
        let Error::Stalled { operation, key, rank, missing, .. } = error else { return error.clone() };
        let mut awaited =
            self.nodes.iter().filter(|node| node.info.role == Role::Worker && missing.contains(&node.rank));
        let ended = awaited.find(|node| node.left);
        let operation = || if operation == "barrier" { operation.clone() } else { format!("{operation} of key {key}") };
        ended.map_or_else(
            || error.clone(),
            |node| {
                let (peer, ranks) = (node.name(), vec![node.rank]);
                let why = node.failing.clone().unwrap_or_default();
                Error::Finished { peer, ranks, operation: operation(), rank: *rank, why }
            },
        )
    }

    /// Returns true if every registered node has said goodbye.
    pub fn all_left(&self) -> bool {
        self.nodes.iter().all(|node| node.left)
    }

    fn register(
        &mut self,
        from: &[u8],
        info: NodeInfo,
        preferred: Option<usize>,
        kind: Option<Kind>,
        counts: (usize, usize),
        now: Duration,
    ) -> Result<(), String> {
        let wanted = match info.role {
            Role::Worker => self.settings.num_workers,
            Role::Server => self.settings.num_servers,
            Role::Scheduler => return Err("a second scheduler".to_owned()),
            Role::Helper => return Err("a helper, which jobs with servers do not have".to_owned()),
        };
        if self.nodes.iter().any(|node| node.identity == from) {
            return Err("a second registration".to_owned());
        }
        if !info.fits() {
            return Err(format!("a {} whose names are longer than {MAX_NAME} bytes", info.role));
        }
        let there = self.nodes.iter().filter(|node| node.info.role == info.role).count();
        let ours = (self.settings.num_workers, self.settings.num_servers);
        if self.takes_later(&info, kind, counts) {
            self.come_later(from, info, preferred, now);
            return Ok(());
        }
        let is_full = self.complete || there == wanted;
        let refusal = if is_full || self.phase != JobPhase::Running {
            Some(Error::job_mismatch(
                format!("the job has all of its {wanted} {}s already", info.role),
                "start as many processes as DMLC_NUM_WORKER and DMLC_NUM_SERVER say, and give each job a port of its own",
            ))
        } else if counts != ours {
            Some(Error::job_mismatch(
                format!("a {} counts (workers, servers) as {counts:?}, the scheduler as {ours:?}", info.role),
                "give every node of a job the same DMLC_NUM_WORKER and DMLC_NUM_SERVER",
            ))
        } else {
            None
        };
        if let Some(error) = refusal {
            self.outputs.push((from.to_vec(), FromScheduler::Abort(error)));
            return Err(format!(
                "a {} (pid {} on {}) that is surplus or belongs to another job",
                info.role, info.pid, info.host
            ));
        }
        self.nodes.push(Node { preferred, ..Node::new(from.to_vec(), info, there, now) });
        match (self.kind, kind) {
            (Some(first), Some(other)) if first != other => {
                self.fail(&Error::job_mismatch(
                    format!("the workers created stores of kinds {first} and {other}"),
                    "create the same kind of store on every worker",
                ));
                return Ok(());
            }
            (None, Some(kind)) => self.kind = Some(kind),
            _ => {}
        }
        if self.nodes.len() == self.settings.num_workers + self.settings.num_servers {
            self.welcome(now);
        }
        Ok(())
    }

    /// Assigns ranks and sends them to every node. Nodes that prefer a rank get theirs first. The others get
    /// ranks in the order of registration.
    fn welcome(&mut self, now: Duration) {
        self.complete = true;
        self.next_warning = self.settings.warn;
        for role in [Role::Worker, Role::Server] {
            let mut nodes: Vec<&mut Node> = self.nodes.iter_mut().filter(|node| node.info.role == role).collect();
            let mut free: Vec<bool> = vec![true; nodes.len()];
            for node in &mut nodes {
                node.preferred = node.preferred.filter(|rank| free.get(*rank).copied().unwrap_or(false));
                if let Some(rank) = node.preferred {
                    free[rank] = false;
                }
            }
            let mut rest = (0..free.len()).filter(|rank| free[*rank]);
            for node in &mut nodes {
                node.rank = node.preferred.or_else(|| rest.next()).expect("there are as many ranks as nodes");
                (node.seen, node.moved_at) = (now, now);
            }
        }
        let by_rank = |role| {
            let nodes = self.nodes.iter().filter(|node| node.info.role == role);
            nodes.map(|node| (node.rank, node.info.clone())).collect::<BTreeMap<_, _>>().into_values().collect()
        };
        let (workers, servers) = (by_rank(Role::Worker), by_rank(Role::Server));
        self.changes.begin(workers, servers);
        let job = self.job();
        for node in &self.nodes {
            let job = Job { rank: node.rank, ..job.clone() };
            self.outputs.push((node.identity.clone(), FromScheduler::Welcome(job)));
        }
    }

    fn worker(&self, rank: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.info.role == Role::Worker && node.rank == rank)
    }

    fn is_quiet(&self, worker: usize, now: Duration) -> bool {
        let quiet = |node: &Node| node.left || now.saturating_sub(node.moved_at) >= self.settings.timeout;
        self.worker(worker).is_none_or(quiet)
    }

    /// Returns true if the worker has said goodbye.
    fn has_left(&self, worker: usize) -> bool {
        self.worker(worker).is_some_and(|node| node.left)
    }

    /// Records that worker `rank` is connected to all servers, or needs no connection. Tells all workers when
    /// this holds for all of them.
    fn is_connected(&mut self, rank: usize) {
        if self.connected.insert(rank) && self.connected.len() == self.settings.num_workers {
            self.send_to_role(Role::Worker, &FromScheduler::AllConnected);
        }
    }

    /// Sends a message to all nodes of a role. Nodes of this host get it last: a worker that leaves a barrier
    /// at once pushes over the link, and messages to other hosts would wait behind that.
    fn send_to_role(&mut self, role: Role, message: &FromScheduler) {
        let all = self.nodes.iter().filter(|node| node.info.role == role && !node.left);
        let (near, far): (Vec<_>, Vec<_>) = all.partition(|node| node.info.host == self.settings.host);
        self.outputs.extend(far.into_iter().chain(near).map(|node| (node.identity.clone(), message.clone())));
    }
}

/// Returns the error for a lost node, with its rank if it is a worker. The receiver adds its own operation.
pub(crate) fn lost_node(peer: String, worker: Option<usize>, cause: String) -> Error {
    let ranks = worker.into_iter().collect();
    Error::PeerLost { peer, ranks, cause, operation: "heartbeat".to_owned(), rank: None }
}

#[cfg(test)]
mod tests;
