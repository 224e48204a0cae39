//! A server's sockets: requests in, replies out, and the link to the scheduler.

use std::net::SocketAddr;
use std::time::Instant;

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::status::RankStatus;
use ringpull_base::timeline::{self, Name, Phase};
use ringpull_base::{Error, Kind, Result};

use crate::link::{self, FAREWELL, Link};
use crate::message::{FromScheduler, Job, Request, ToScheduler, decode, encode};
use crate::server::{Output, Server};
use crate::socket::{Bell, Bound, Door, Frame, Limits, Listener};
use crate::status;

/// Requests handled before the scheduler is listened to again.
const BATCH: usize = 64;

pub(super) fn run(config: &Config, dmlc: &Dmlc) -> Result<()> {
    let bell = Bell::default();
    let bound = Bound::to(SocketAddr::new(link::node_address(dmlc)?, 0), None)?;
    let info = link::describe(Role::Server, dmlc, bound.port())?;
    let (mut link, job) = Link::register(&bell, config, dmlc, info, None)?;
    let known = job.clone();
    let door = Door {
        name: format!("server {}", job.rank),
        secret: config::secret()?,
        admits: Box::new(move |identity| known.rank_of(identity).is_some()),
        most: job.workers.len(),
        limits: Limits::SERVER,
    };
    let listener = bound.open(door, &bell)?;
    let sync = !matches!(job.kind, Kind::DistAsync | Kind::DistAsyncDevice);
    timeline::introduce(Role::Server, job.rank, job.workers.len());
    let mut server = Server::new(job.workers.len(), sync);
    let started = Instant::now();
    let mut moved = Moved::default();
    let ended = loop {
        bell.wait(link.interval());
        for left in (0..BATCH).rev() {
            let Some((identity, frame)) = listener.receive() else { break };
            moved.requests += 1;
            moved.received_bytes += (frame.header.len() + frame.payload.len()) as u64;
            moved.sent_bytes += take(&mut server, &job, &listener, &link, &identity, frame)?;
            if left == 0 {
                // The next wait ends at once.
                bell.ring();
            }
        }
        // Who of the workers is gone, the scheduler says.
        while listener.event().is_some() {}
        match link.receive() {
            Some(FromScheduler::Farewell) => break Ok(()),
            Some(FromScheduler::Abort(error)) => break Err(error),
            Some(FromScheduler::Describe { question }) => {
                let status = RankStatus {
                    steps: server.rounds(),
                    calls: moved.requests,
                    sent_bytes: moved.sent_bytes,
                    received_bytes: moved.received_bytes,
                    doing: server.awaited().map(status::short),
                    ..status::of_this(Role::Server, &job, started)
                };
                link.send(&ToScheduler::Described { question, status: Box::new(status) })?;
            }
            _ => {}
        }
        link.beat(moved.received_bytes)?;
        if let Some(cause) = link.loss() {
            break Err(link.lost(&cause));
        }
    };
    listener.close(FAREWELL);
    link.leave()?;
    ended
}

/// What a server has had to do.
#[derive(Default)]
struct Moved {
    requests: u64,
    received_bytes: u64,
    /// Of payload.
    sent_bytes: u64,
}

/// Takes a message, and sends the answers: so many bytes.
fn take(
    server: &mut Server,
    job: &Job,
    listener: &Listener,
    link: &Link,
    identity: &[u8],
    frame: Frame,
) -> Result<u64> {
    let mut sent_bytes = 0;
    let Frame { header, payload } = frame;
    let (Some(rank), Some(request)) = (job.rank_of(identity), decode::<Request>(&header)) else {
        tracing::warn!("server {}: dropped a message that does not belong to this job", job.rank);
        return Ok(sent_bytes);
    };
    let _span = timeline::span(Phase::Serve, || Name::Peer(rank)).bytes(payload.len());
    for output in server.handle(rank, request, payload) {
        match output {
            Output::Reply { rank, reply, payload } => {
                let frame = Frame { header: encode(&reply), payload: payload.unwrap_or_default() };
                sent_bytes += frame.payload.len() as u64;
                listener.send(&job.identity(rank), frame);
            }
            Output::Fault(error) => fault(link, error)?,
            Output::Dropped(why) => {
                tracing::warn!("server {}: dropped a message from rank {rank}: {why}", job.rank);
            }
        }
    }
    Ok(sent_bytes)
}

fn fault(link: &Link, error: Error) -> Result<()> {
    link.send(&ToScheduler::Fault(error))
}
