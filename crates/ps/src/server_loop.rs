//! A server's sockets: requests in, replies out, and the link to the scheduler.

use std::net::SocketAddr;

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::timeline::{self, Name, Phase};
use ringpull_base::{Error, Kind, Result};

use crate::link::{self, FAREWELL, Link};
use crate::message::{FromScheduler, Job, Request, ToScheduler, decode, encode};
use crate::server::{Output, Server};
use crate::socket::{Bell, Bound, Door, Frame, Limits, Listener};

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
    let mut moved = 0;
    let ended = loop {
        bell.wait(link.interval());
        for left in (0..BATCH).rev() {
            let Some((identity, frame)) = listener.receive() else { break };
            moved += (frame.header.len() + frame.payload.len()) as u64;
            take(&mut server, &job, &listener, &link, &identity, frame)?;
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
            _ => {}
        }
        link.beat(moved)?;
        if let Some(cause) = link.loss() {
            break Err(link.lost(&cause));
        }
    };
    listener.close(FAREWELL);
    link.leave()?;
    ended
}

fn take(server: &mut Server, job: &Job, listener: &Listener, link: &Link, identity: &[u8], frame: Frame) -> Result<()> {
    let Frame { header, payload } = frame;
    let (Some(rank), Some(request)) = (job.rank_of(identity), decode::<Request>(&header)) else {
        tracing::warn!("server {}: dropped a message that does not belong to this job", job.rank);
        return Ok(());
    };
    let _span = timeline::span(Phase::Serve, || Name::Peer(rank)).bytes(payload.len());
    for output in server.handle(rank, request, payload) {
        match output {
            Output::Reply { rank, reply, payload } => {
                let frame = Frame { header: encode(&reply), payload: payload.unwrap_or_default() };
                listener.send(&job.identity(rank), frame);
            }
            Output::Fault(error) => fault(link, error)?,
            Output::Dropped(why) => {
                tracing::warn!("server {}: dropped a message from rank {rank}: {why}", job.rank);
            }
        }
    }
    Ok(())
}

fn fault(link: &Link, error: Error) -> Result<()> {
    link.send(&ToScheduler::Fault(error))
}
