//! A server's sockets: requests in, replies out, and the link to the scheduler.

use std::net::SocketAddr;

use zmq::{Context, Message, POLLIN, Socket};

use ringpull_base::config::{Config, Dmlc, Role};
use ringpull_base::timeline::{self, Name, Phase};
use ringpull_base::{Error, Kind, Result};

use crate::link::{self, FAREWELL, Link};
use crate::message::{FromScheduler, Job, Request, ToScheduler, decode, encode};
use crate::server::{Output, Server};
use crate::socket::{self, Event, Monitor};

/// Messages of one worker that wait in this process; more wait in that worker's.
const RECEIVE_LIMIT: i32 = 64;

/// Requests handled before the scheduler is listened to again.
const BATCH: usize = 64;

pub(super) fn run(config: &Config, dmlc: &Dmlc) -> Result<()> {
    let context = Context::new();
    let address = SocketAddr::new(link::node_address(dmlc)?, 0);
    let (router, port) = socket::listen(&context, address, RECEIVE_LIMIT)?;
    let monitor = Monitor::new(&context, &router, "server")?;
    let info = link::describe(Role::Server, dmlc, port)?;
    let (mut link, job) = Link::register(&context, config, dmlc, info, None)?;
    let sync = matches!(job.kind, Kind::DistSync | Kind::DistSyncDevice);
    timeline::introduce(Role::Server, job.rank, job.workers.len());
    let mut server = Server::new(job.workers.len(), sync);
    let mut moved = 0;
    let ended = loop {
        let mut items = [
            router.as_poll_item(POLLIN),
            link.socket().as_poll_item(POLLIN),
            monitor.socket().as_poll_item(POLLIN),
            link.monitor().as_poll_item(POLLIN),
        ];
        socket::poll(&mut items, link.interval())?;
        for _ in 0..BATCH {
            let Some(frames) = socket::receive(&router)? else { break };
            moved += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
            take(&mut server, &job, &router, &link, frames)?;
        }
        while let Some(event) = monitor.next() {
            if matches!(event, Event::Stranger) {
                tracing::warn!("server {}: dropped a connection that does not speak its protocol", job.rank);
            }
        }
        match link.receive()? {
            Some(FromScheduler::Farewell) => break Ok(()),
            Some(FromScheduler::Abort(error)) => break Err(error),
            _ => {}
        }
        link.beat(moved)?;
        if let Some(cause) = link.loss() {
            break Err(link.lost(&cause));
        }
    };
    socket::close(router, FAREWELL);
    link.leave()?;
    ended
}

fn take(server: &mut Server, job: &Job, router: &Socket, link: &Link, frames: Vec<Message>) -> Result<()> {
    let mut frames = frames.into_iter();
    let sender = frames.next().and_then(|identity| job.rank_of(&identity));
    let request = frames.next().and_then(|header| decode::<Request>(&header));
    let payload = frames.next().unwrap_or_else(Message::new);
    let (Some(rank), Some(request)) = (sender, request) else {
        let who = sender.map_or("a stranger".to_owned(), |rank| format!("rank {rank}"));
        tracing::warn!("server {}: dropped a message from {who} that is none of this job's", job.rank);
        return Ok(());
    };
    let _span = timeline::span(Phase::Serve, || Name::Peer(rank)).bytes(payload.len());
    for output in server.handle(rank, request, payload) {
        match output {
            Output::Reply { rank, reply, payload } => {
                let mut frames = vec![Message::from(job.identity(rank)), Message::from(encode(&reply))];
                frames.extend(payload);
                socket::send(router, frames)?;
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
