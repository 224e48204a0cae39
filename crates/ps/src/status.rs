//! Collects the states of a job's nodes when a worker's process is asked. The worker asks the scheduler,
//! which asks every node and passes the answers on. Nothing is sent without a request.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ringpull_base::config::Role;
use ringpull_base::status::{JobStatus, RankStatus};
use ringpull_base::topology::Peer;

use crate::message::{Job, short};

/// The time for which a worker waits for answers. A busy machine may be slow to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The state of one node.
pub struct NodeStatus {
    /// The node's role.
    pub(crate) role: Role,
    /// The node's rank in this role.
    pub(crate) rank: usize,
    /// The node's answer.
    pub(crate) status: RankStatus,
}

/// A worker's question that some nodes have not answered.
pub(crate) struct Question {
    pub(crate) number: u64,
    pub(crate) answers: Sender<NodeStatus>,
}

/// Returns the status of `job`, from the answers that come in time, with the late nodes. Blocks for 500 ms at
/// most.
pub(crate) fn collect(job: &Job, fault: Option<String>, answers: &Receiver<NodeStatus>) -> JobStatus {
    let mut status = JobStatus {
        placement: job.description(),
        library: "parameter servers".to_owned(),
        fault,
        ranks: vec![None; job.workers.len()],
        helpers: Vec::new(),
        servers: vec![None; job.servers.len()],
        late: None,
    };
    let deadline = Instant::now() + PATIENCE;
    while status.processes().any(|(_, _, answer)| answer.is_none())
        && let Ok(answer) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        let of_role = if answer.role == Role::Server { &mut status.servers } else { &mut status.ranks };
        if let Some(place) = of_role.get_mut(answer.rank) {
            *place = Some(answer.status);
        }
    }
    status.find_late();
    status
}

/// Returns the part of this node's status that does not depend on the role.
pub(crate) fn of_this(role: Role, job: &Job, since: Instant) -> RankStatus {
    let mut status = RankStatus::of_this(Peer::this(role, job.rank), since);
    status.site = status.site.map(short);
    status
}
