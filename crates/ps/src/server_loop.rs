//! A server's sockets: requests in, replies out, and the link to the scheduler.

use std::net::SocketAddr;
use std::time::Instant;

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::status::RankStatus;
use ringpull_base::timeline::{self, Name, Phase};
use ringpull_base::{Error, Result};
use ringpull_session::{Door, Event, Frame};

use crate::link::{self, FAREWELL, Link};
use crate::message::{FromScheduler, Job, Request, ToScheduler, decode, encode, short};
use crate::server::{Output, Server};
use crate::socket::{self, Bell, Bound, Listener};
use crate::status;

/// The number of requests that are handled before messages of the scheduler are read again.
const BATCH: usize = 64;

pub(super) fn run(config: &Config, dmlc: &Dmlc) -> Result<()> {
    let bell = Bell::default();
    let bound = Bound::to(SocketAddr::new(link::node_address(dmlc)?, 0), None)?;
    let info = link::describe(Role::Server, dmlc, bound.port())?;
    let (mut link, job) = Link::register(&bell, config, dmlc, info, None)?;
    let admitted = job.clone();
    let door = Door {
        name: format!("server {}", job.rank),
        secret: config::secret()?,
        admits: Box::new(move |identity| admitted.rank_of(identity).is_some()),
        // The session of a lost worker ends when the scheduler has reported the loss.
        most: job.workers.len() * if job.is_elastic { 2 } else { 1 },
        settings: socket::SERVER,
    };
    let listener = bound.open(door, &bell)?;
    let sync = job.is_sync();
    timeline::introduce(Role::Server, job.rank, job.workers.len());
    let new = if job.is_elastic { Server::elastic } else { Server::new };
    let mut server = new(job.workers.len(), sync);
    let started = Instant::now();
    let mut moved = ServerTraffic::default();
    let ended = loop {
        bell.wait(link.interval());
        for left in (0..BATCH).rev() {
            let Some((session, frame)) = listener.receive() else { break };
            moved.requests += 1;
            moved.received_bytes += (frame.header.len() + frame.payload.len()) as u64;
            moved.sent_bytes += take(&mut server, &job, &listener, &mut link, session.identity(), frame)?;
            if left == 0 {
                // The next wait ends at once.
                bell.ring();
            }
        }
        // The scheduler reports the workers that are gone.
        while let Some(event) = listener.event() {
            if let Event::Refused(error) = event {
                return Err(error);
            }
        }
        let mut ended = None;
        while let Some(message) = link.receive() {
            let outputs = match message {
                FromScheduler::Farewell => {
                    ended = Some(Ok(()));
                    break;
                }
                FromScheduler::Abort(error) => {
                    ended = Some(Err(error));
                    break;
                }
                FromScheduler::Describe { question } => {
                    let status = RankStatus {
                        steps: server.rounds(),
                        calls: moved.requests,
                        sent_bytes: moved.sent_bytes,
                        received_bytes: moved.received_bytes,
                        doing: server.awaited().map(short),
                        ..status::of_this(Role::Server, &job, started)
                    };
                    link.send(&ToScheduler::Described { question, status: Box::new(status) })?;
                    continue;
                }
                FromScheduler::Lost { rank, incarnation } if rank < job.workers.len() => {
                    let whole = server.lose(rank, incarnation);
                    listener.endpoint.dismiss(&job.identity(rank, incarnation));
                    link.send(&ToScheduler::Known { rank, whole })?;
                    continue;
                }
                FromScheduler::Settle { rank, whole } if rank < job.workers.len() => {
                    let outputs = server.settle(rank, &whole);
                    link.send(&ToScheduler::Settled { rank })?;
                    outputs
                }
                FromScheduler::Join { rank, incarnation, after } if rank < job.workers.len() => {
                    let outputs = server.join(rank, incarnation, &after);
                    link.send(&ToScheduler::Joined { rank })?;
                    outputs
                }
                _ => continue,
            };
            moved.sent_bytes += send(&server, outputs, &job, &listener, &mut link)?;
        }
        if let Some(ended) = ended {
            break ended;
        }
        link.beat(moved.received_bytes)?;
        if let Err(error) = link.refusal() {
            break Err(error);
        }
        if let Some(cause) = link.loss() {
            break Err(link.lost(&cause));
        }
    };
    socket::close(listener.endpoint, FAREWELL, ended.is_err());
    link.leave()?;
    ended
}

/// The amount of a server's work so far.
#[derive(Default)]
struct ServerTraffic {
    requests: u64,
    received_bytes: u64,
    /// The payload bytes that were sent.
    sent_bytes: u64,
}

/// Takes a message and sends the answers. Returns the bytes sent.
fn take(
    server: &mut Server,
    job: &Job,
    listener: &Listener,
    link: &mut Link,
    identity: &[u8],
    frame: Frame<Vec<u8>>,
) -> Result<u64> {
    let Frame { header, payload } = frame;
    let (Some((rank, incarnation)), Some(request)) = (job.rank_of(identity), decode::<Request>(&header)) else {
        tracing::warn!("server {}: dropped a message that does not belong to this job", job.rank);
        return Ok(0);
    };
    if !server.meets(rank, incarnation) {
        tracing::debug!("server {}: dropped a message of a lost worker of rank {rank}", job.rank);
        return Ok(0);
    }
    let _span = timeline::span(Phase::Serve, || Name::Peer(rank)).bytes(payload.len());
    let outputs = server.handle(rank, request, payload);
    for output in &outputs {
        if let Output::Dropped(why) = output {
            tracing::warn!("server {}: dropped a message from rank {rank}: {why}", job.rank);
        }
    }
    send(server, outputs, job, listener, link)
}

/// Sends a server's messages to its workers and the scheduler. Returns the bytes sent.
fn send(server: &Server, outputs: Vec<Output>, job: &Job, listener: &Listener, link: &mut Link) -> Result<u64> {
    let mut sent_bytes = 0;
    for output in outputs {
        match output {
            Output::Reply { rank, reply, payload } => {
                let frame = Frame { header: encode(&reply), payload: payload.unwrap_or_default() };
                sent_bytes += frame.payload.len() as u64;
                listener.send(&job.identity(rank, server.incarnation(rank)), frame);
            }
            Output::Fault(error) => fault(link, error)?,
            Output::Dropped(_) => {}
        }
    }
    Ok(sent_bytes)
}

fn fault(link: &mut Link, error: Error) -> Result<()> {
    link.send(&ToScheduler::Fault(error))
}
