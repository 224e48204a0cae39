//! The start of a job: values leave when all workers are connected to all servers, when a node is lost or has left, or
//! after a moment in any case.
//!
//! A connection that is made while first values fill a host's link is a slow one
//! (`docs/decisions/connected-before-values.md`). Nothing depends on the wait but the time of a step.

use std::time::{Duration, Instant};

use ringpull_base::Result;

use super::{Flush, Patience, WorkerLoop};
use crate::message::ToScheduler;

/// Values wait for so long at most, and for at most this part of the limits of other waits.
const MOST: Duration = Duration::from_secs(3);
const PART: u32 = 4;

/// Until all workers are connected.
pub(super) struct Connecting {
    until: Instant,
    /// Shows when this worker is connected to all servers.
    pub(super) flush: Flush,
    is_reported: bool,
}

impl Connecting {
    pub(super) fn new(patience: &Patience) -> Self {
        let limit = MOST.min(patience.timeout.min(patience.silence) / PART);
        Connecting { until: Instant::now() + limit, flush: Flush::default(), is_reported: false }
    }
}

impl WorkerLoop {
    /// Whether values wait for workers that are not connected yet. Tells the scheduler once this one is.
    pub(super) fn is_connecting(&mut self) -> Result<bool> {
        let Some(connecting) = &mut self.connecting else { return Ok(false) };
        if !connecting.is_reported && connecting.flush.is_answered(&self.servers, &mut self.next) {
            connecting.is_reported = true;
            self.link.send(&ToScheduler::Connected)?;
        }
        if Instant::now() >= connecting.until {
            let who = if connecting.is_reported { "another worker" } else { "this worker" };
            tracing::info!("{who} is not connected to all servers yet; values are sent, and steps may be slow");
            self.connecting = None;
        }
        if self.closing {
            self.connecting = None;
        }
        Ok(self.connecting.is_some())
    }

    pub(super) fn let_values_leave(&mut self) {
        self.connecting = None;
        // The next wait ends at once.
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::Arc;

    use ringpull_base::config::{Config, Dmlc, Role};
    use ringpull_base::{Buffer, DType, Key, Kind};

    use super::*;
    use crate::link::{self, Link};
    use crate::message::{Reply, Request, decode, encode};
    use crate::run_node;
    use crate::shard::Layout;
    use crate::socket::{Bell, Bound, Door, Limits};
    use crate::worker::{Bytes, Command, Task, Worker};

    #[test]
    fn a_first_value_leaves_when_all_workers_are_connected() {
        let config = Config::default();
        let root = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let dmlc = |role| Dmlc { role, root, num_workers: 2, num_servers: 1, node_host: None, preferred_rank: None };
        let register = |role, bell: &Bell, port| {
            let info = link::describe(role, &dmlc(role), port).unwrap();
            let kind = (role == Role::Worker).then_some(Kind::DistSync);
            Link::register(bell, &config, &dmlc(role), info, kind).unwrap().0
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run_node(Role::Scheduler, &config, &dmlc(Role::Scheduler)).unwrap());
            let worker = scope.spawn(|| Worker::join(Kind::DistSync, &config, &dmlc(Role::Worker)).unwrap());
            let other = scope.spawn(|| register(Role::Worker, &Bell::default(), 0));
            // This thread is the server.
            let bell = Bell::default();
            let bound = Bound::to(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), None).unwrap();
            let server = register(Role::Server, &bell, bound.port());
            let (name, admits) = ("the server".to_owned(), Box::new(|_: &[u8]| true));
            let listener = bound.open(Door { name, secret: None, admits, most: 2, limits: Limits::SERVER }, &bell);
            let listener = listener.unwrap();
            let next = || loop {
                if let Some((from, frame)) = listener.receive() {
                    return (from, decode::<Request>(&frame.header).unwrap());
                }
                bell.wait(Duration::from_secs(1));
            };
            let answered = || {
                let (from, Request::Flush { reply }) = next() else { panic!("not a flush") };
                listener.send(&from, encode(&Reply::Value { reply }).into());
            };
            let (worker, mut other) = (worker.join().unwrap(), other.join().unwrap());
            let key = Key::Int(0);
            let layout = Arc::new(Layout::new(&key, &[2], 4, 1, 1000));
            let task = Task::Init { dtype: DType::F32, shape: vec![2], value: Bytes::Owned(Buffer::zeroed(8)) };
            worker.submit(Command::Run { key, layout, priority: 0, task }).unwrap();
            answered();
            std::thread::sleep(Duration::from_millis(200));
            assert!(listener.receive().is_none(), "a value left before the other worker was connected");
            other.send(&ToScheduler::Connected).unwrap();
            assert!(matches!(next().1, Request::Init { .. }));
            let left = scope.spawn(move || drop(worker));
            answered();
            left.join().unwrap();
            other.leave(None).unwrap();
            server.leave(None).unwrap();
        });
    }
}
