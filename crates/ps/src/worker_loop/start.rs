//! The start of a job: values leave when all workers are connected to all servers, when a node is lost, or
//! after a short time in any case. A barrier leaves after the first messages of all earlier calls.
//!
//! A connection that is made while first values fill a host's link stays slow
//! (`docs/decisions/server-window.md`). The wait affects nothing except the time of a step.

use std::time::{Duration, Instant};

use ringpull_base::Result;

use super::{Flush, Patience, WorkerLoop, count};
use crate::message::ToScheduler;

/// The longest time for which values wait, and the greatest part of other waits' limits. In tests it is so
/// long that only the tested event ends the wait.
const MOST: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 3 });
const PART: u32 = 4;

/// The state until this worker is connected to all servers, and while values wait until all workers are.
pub(super) struct StartState {
    /// The time until which values wait at most, if they wait.
    held_until: Option<Instant>,
    /// The question whose answers show that this worker is connected to all servers.
    pub(super) flush: Flush,
    is_reported: bool,
    /// The barriers that were called after values that wait.
    barriers: Vec<u64>,
}

impl StartState {
    pub(super) fn new(patience: &Patience) -> Self {
        // The silence is not longer than the timeout.
        let held_until = Some(Instant::now() + MOST.min(patience.silence / PART));
        StartState { held_until, flush: Flush::default(), is_reported: false, barriers: Vec::new() }
    }
}

impl WorkerLoop {
    /// Returns true if values wait for workers that are not connected yet. Tells the scheduler when this
    /// worker is connected, because others wait for it even if it does not wait for them.
    pub(super) fn is_connecting(&mut self) -> Result<bool> {
        let Some(connecting) = &mut self.connecting else { return Ok(false) };
        if !connecting.is_reported && connecting.flush.is_answered(&self.servers, &mut self.next) {
            connecting.is_reported = true;
            self.link.send(&ToScheduler::Connected)?;
        }
        if connecting.held_until.is_some_and(|until| Instant::now() >= until) {
            connecting.held_until = None;
            if !connecting.is_reported {
                tracing::warn!(
                    "this worker is not connected to all servers yet; values are sent, and steps may be slow"
                );
            } else if !self.operations.is_empty() {
                tracing::info!("another worker is not connected to all servers yet; values are sent");
            }
        }
        if self.closing {
            connecting.held_until = None;
        }
        let is_held = connecting.held_until.is_some();
        if connecting.is_reported && !is_held && connecting.barriers.is_empty() {
            self.connecting = None;
        }
        Ok(is_held)
    }

    pub(super) fn let_values_leave(&mut self) {
        if let Some(connecting) = &mut self.connecting {
            connecting.held_until = None;
            // The next wait ends at once.
            self.bell.ring();
        }
    }

    /// Reports that this worker has come to a barrier, or keeps the report until the messages of earlier
    /// calls have left.
    pub(super) fn come_to_barrier(&mut self, number: u64) -> Result<()> {
        let Some(connecting) = &mut self.connecting else { return self.send_barrier(number) };
        connecting.barriers.push(number);
        Ok(())
    }

    pub(super) fn send_held_barriers(&mut self) -> Result<()> {
        let held = self.connecting.as_mut().map(|connecting| std::mem::take(&mut connecting.barriers));
        held.into_iter().flatten().try_for_each(|number| self.send_barrier(number))
    }

    fn send_barrier(&mut self, number: u64) -> Result<()> {
        count(&self.shared.control, 1);
        self.link.send(&ToScheduler::Barrier { number })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use ringpull_base::config::{Config, Dmlc, Role};
    use ringpull_base::{Buffer, DType, Key, Kind};

    use super::*;
    use crate::link::{self, Link};
    use crate::message::{Reply, Request, decode, encode};
    use crate::run_node;
    use crate::shard::Layout;
    use crate::socket::{self, Bell, Bound, Listener};
    use crate::worker::{Bytes, Command, Task, Worker};
    use ringpull_session::{Door, Session};

    #[test]
    fn a_first_value_leaves_when_all_workers_are_connected() {
        a_value_leaves(|mut other| {
            other.send(&ToScheduler::Connected).unwrap();
            Some(other)
        });
    }

    #[test]
    fn a_first_value_leaves_when_the_worker_that_is_not_connected_has_left() {
        a_value_leaves(|other| {
            other.leave().unwrap();
            None
        });
    }

    #[test]
    fn a_barrier_stays_behind_first_values() {
        with_a_server(|worker, server, mut other| {
            worker.submit(first_value()).unwrap();
            let (done, is_done) = channel();
            worker.submit(Command::Barrier { done }).unwrap();
            other.send(&ToScheduler::Barrier { number: 1 }).unwrap();
            server.answers_a_flush();
            assert!(is_done.recv_timeout(SHORT).is_err(), "the barrier came before the value");
            other.send(&ToScheduler::Connected).unwrap();
            assert!(matches!(server.next().1, Request::Init { .. }));
            is_done.recv_timeout(LONG).unwrap().unwrap();
            Some(other)
        });
    }

    /// Checks that a worker's first value leaves after `then` is done with the other worker, and not before.
    fn a_value_leaves(then: impl FnOnce(Link) -> Option<Link>) {
        with_a_server(|worker, server, other| {
            worker.submit(first_value()).unwrap();
            server.answers_a_flush();
            std::thread::sleep(SHORT);
            assert!(server.listener.receive().is_none(), "a value left before the other worker was connected");
            let other = then(other);
            assert!(matches!(server.next().1, Request::Init { .. }));
            other
        });
    }

    /// The time in which nothing must come.
    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(20);

    fn first_value() -> Command {
        let key = Key::Int(0);
        let layout = Arc::new(Layout::new(&key, &[2], 4, 1, 1000));
        let task = Task::Init { dtype: DType::F32, shape: vec![2], value: Bytes::Owned(Buffer::zeroed(8)) };
        Command::Run { key, layout, priority: 0, task }
    }

    /// A server that the test simulates.
    struct Played {
        listener: Listener,
        bell: Bell,
    }

    impl Played {
        fn next(&self) -> (Arc<Session>, Request) {
            let since = Instant::now();
            loop {
                if let Some((from, frame)) = self.listener.receive() {
                    return (from, decode::<Request>(&frame.header).unwrap());
                }
                assert!(since.elapsed() < LONG, "no message has come");
                self.bell.wait(Duration::from_secs(1));
            }
        }

        fn answers_a_flush(&self) {
            let (from, Request::Flush { reply }) = self.next() else { panic!("not a flush") };
            self.listener.send(from.identity(), encode(&Reply::Value { reply }).into());
        }
    }

    /// Runs `test` in a job of a worker, a server, and a second worker that has only its link to the
    /// scheduler. `test` returns this link unless the second worker has left.
    fn with_a_server(test: impl FnOnce(&Worker, &Played, Link) -> Option<Link>) {
        // The limit is so long that no wait ends by itself.
        let config = Config { silence: Duration::from_secs(1800), ..Config::default() };
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
            let (name, admits) = ("server 0".to_owned(), Box::new(|_: &[u8]| true));
            let listener = bound.open(Door { name, secret: None, admits, most: 2, settings: socket::SERVER }, &bell);
            let played = Played { listener: listener.unwrap(), bell };
            let (worker, other) = (worker.join().unwrap(), other.join().unwrap());
            let other = test(&worker, &played, other);
            let left = scope.spawn(move || drop(worker));
            played.answers_a_flush();
            left.join().unwrap();
            if let Some(other) = other {
                other.leave().unwrap();
            }
            server.leave().unwrap();
        });
    }
}
