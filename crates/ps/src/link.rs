//! A node's link to the scheduler: registration, heartbeats, and the messages that end the job.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ringpull_base::config::{self, Config, Dmlc, Role};
use ringpull_base::secret::random;
use ringpull_base::topology::host_name;
use ringpull_base::{Error, Kind, Result, notice, waits};
use ringpull_session::{DialTarget, Event};

use crate::message::{FromScheduler, Job, NodeInfo, ToScheduler, decode, encode};
use crate::scheduler::{lost_node, startup_limit};
use crate::socket::{self, Bell, Connection};

/// The time after which a broken connection counts as the peer's end. The peer's last messages are read
/// before.
pub(crate) const GRACE: Duration = Duration::from_millis(400);

/// The time limit for the last messages.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// The link, once the node has registered.
pub(crate) struct Link {
    connection: Connection,
    bell: Bell,
    root: SocketAddr,
    interval: Duration,
    limit: Duration,
    heard: Instant,
    beaten: Instant,
    broken: Option<Instant>,
    refused: Option<Error>,
    /// True if the scheduler has ended the job for this node.
    is_over: bool,
    /// The longest message that the scheduler takes.
    longest: usize,
}

impl Link {
    /// Registers with the scheduler, and waits until every node of the job has registered.
    pub(crate) fn register(
        bell: &Bell,
        config: &Config,
        dmlc: &Dmlc,
        info: NodeInfo,
        kind: Option<Kind>,
    ) -> Result<(Self, Job)> {
        let target = DialTarget {
            to: vec![dmlc.root],
            name: "the scheduler".to_owned(),
            identity: random::<16>()?.to_vec(),
            secret: config::secret()?,
            settings: socket::NODE,
            has_port: false,
        };
        let connection = Connection::open(target, bell)?;
        let now = Instant::now();
        let mut link = Link {
            connection,
            bell: bell.clone(),
            root: dmlc.root,
            interval: config.heartbeat_interval,
            limit: config.silence(),
            heard: now,
            beaten: now,
            broken: None,
            refused: None,
            is_over: false,
            longest: socket::SCHEDULER.limits.header,
        };
        let (role, preferred) = (info.role, dmlc.preferred_rank);
        let (num_workers, num_servers) = (dmlc.num_workers, dmlc.num_servers);
        link.send(&ToScheduler::Register { info, preferred, kind, num_workers, num_servers })?;
        // After the limit the scheduler reports the missing nodes. This waits a little longer for the report.
        let limit = startup_limit(config.timeout) + FAREWELL;
        let (mut answered, mut warning) = (false, config.warn);
        loop {
            waits::check()?;
            link.bell.wait(link.interval.min(Duration::from_millis(100)));
            while let Some(message) = link.receive() {
                answered = true;
                match message {
                    FromScheduler::Welcome(job) if job.has(role) => {
                        if job.is_elastic {
                            link.longest = socket::ELASTIC_SCHEDULER.limits.header;
                        }
                        return Ok((link, job));
                    }
                    FromScheduler::Welcome(_) => {
                        let what = format!("a job without servers, or without this {role}");
                        return Err(Error::protocol(None, format!("the scheduler ({})", link.root), what));
                    }
                    FromScheduler::Abort(error) => return Err(error),
                    _ => {}
                }
            }
            link.beat(0)?;
            if !answered {
                link.heard = Instant::now();
            }
            if let Some(cause) = link.loss().filter(|_| answered) {
                return Err(link.lost(&cause));
            }
            link.refusal()?;
            // The scheduler itself warns of missing nodes.
            if !answered && now.elapsed() >= warning {
                warning *= 2;
                notice(&format!(
                    "warning: a {role} has waited {} s for the scheduler at {}, which does not answer",
                    now.elapsed().as_secs(),
                    link.root
                ));
            }
            if now.elapsed() > limit {
                return Err(Error::Io {
                    action: format!("join the job as a {role} of the scheduler at"),
                    path: link.root.to_string(),
                    text: format!("no answer for {:.0} s", now.elapsed().as_secs_f64()),
                    remedy: "start a process with DMLC_ROLE=scheduler there, and check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
                        .to_owned(),
                });
            }
        }
    }

    /// Sends `message`. Shortens it if it is longer than the scheduler accepts.
    pub(crate) fn send(&mut self, message: &ToScheduler) -> Result<()> {
        let mut header = encode(message);
        if header.len() > self.longest {
            let short = |text: &str| text.chars().take(2000).collect::<String>();
            header = encode(&match message {
                ToScheduler::Fault(error) | ToScheduler::Stalled(error) => ToScheduler::Fault(Error::Elsewhere {
                    what: short(&error.to_string()),
                    peer: "that node".to_owned(),
                }),
                ToScheduler::Failing(why) => ToScheduler::Failing(why.as_deref().map(short)),
                other => {
                    return Err(Error::limit(
                        format!("a message of {} bytes", header.len()),
                        short(&format!("{other:?}")),
                    ));
                }
            });
        }
        self.connection.send(header);
        Ok(())
    }

    /// Returns the next message that has arrived.
    pub(crate) fn receive(&mut self) -> Option<FromScheduler> {
        while let Some(frame) = self.connection.receive() {
            self.heard = Instant::now();
            if let Some(message) = decode(&frame.header) {
                self.is_over |= matches!(message, FromScheduler::Farewell | FromScheduler::Abort(_));
                return Some(message);
            }
            tracing::warn!("dropped a message from the scheduler that cannot be decoded");
        }
        None
    }

    /// Sends a heartbeat if it is time for one.
    pub(crate) fn beat(&mut self, moved: u64) -> Result<()> {
        if self.beaten.elapsed() >= self.interval {
            self.beaten = Instant::now();
            self.send(&ToScheduler::Heartbeat { moved })?;
        }
        Ok(())
    }

    /// The interval at which to call `beat` and `loss`.
    pub(crate) fn interval(&self) -> Duration {
        self.interval.min(Duration::from_millis(200))
    }

    /// Returns the reason that the scheduler counts as lost, if it does. To be called after all messages that
    /// have arrived were read.
    pub(crate) fn loss(&mut self) -> Option<String> {
        self.look();
        if self.broken.is_some_and(|since| since.elapsed() > GRACE) {
            return Some("its connection closed".to_owned());
        }
        let silent = self.heard.elapsed();
        (silent > self.limit).then(|| format!("no heartbeat for {:.1} s", silent.as_secs_f64()))
    }

    /// Returns an error if the scheduler refuses this node as one of its job, or the thread of the connection
    /// has failed.
    pub(crate) fn refusal(&mut self) -> Result<()> {
        self.look();
        self.refused.take().map_or(Ok(()), Err)
    }

    fn look(&mut self) {
        while let Some(event) = self.connection.event() {
            match event {
                Event::Refused(error) => self.refused = Some(error),
                _ => drop(self.broken.get_or_insert_with(Instant::now)),
            }
        }
    }

    /// Returns the scheduler's loss as an error.
    pub(crate) fn lost(&self, cause: &str) -> Error {
        lost_node(format!("the scheduler ({})", self.root), None, cause.to_owned())
    }

    /// Says goodbye and waits a moment for the answer.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.send(&ToScheduler::Goodbye)?;
        let since = Instant::now();
        while !self.is_over && since.elapsed() < FAREWELL {
            self.bell.wait(Duration::from_millis(100));
            while self.receive().is_some() {}
            if self.loss().is_some() {
                break;
            }
        }
        self.close();
        Ok(())
    }

    /// Ends the link. Gives the last messages a moment to leave.
    pub(crate) fn close(self) {
        self.connection.close(FAREWELL);
    }
}

/// Returns the information that this process sends about itself.
pub(crate) fn describe(role: Role, dmlc: &Dmlc, port: u16) -> Result<NodeInfo> {
    let host = host_name();
    Ok(NodeInfo { role, address: node_address(dmlc)?.to_string(), port, pid: std::process::id(), host })
}

/// Returns the address that `DMLC_NODE_HOST` names, or this host's address on the route to the scheduler.
pub(crate) fn node_address(dmlc: &Dmlc) -> Result<IpAddr> {
    if let Some(address) = dmlc.node_host {
        return Ok(address);
    }
    let any = if dmlc.root.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let route = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(dmlc.root)?;
        socket.local_addr()
    };
    route().map(|local| local.ip()).map_err(|cause| Error::io("find the route to", dmlc.root, &cause))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Returns a link to a scheduler that never answers, and the listener in its place.
    fn link() -> (Link, TcpListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let root = listener.local_addr().unwrap();
        let (name, identity) = ("the scheduler".to_owned(), vec![1; 16]);
        let target =
            DialTarget { to: vec![root], name, identity, secret: None, settings: socket::NODE, has_port: false };
        let (bell, now, limit) = (Bell::default(), Instant::now(), Duration::from_secs(3600));
        let connection = Connection::open(target, &bell).unwrap();
        let link = Link {
            connection,
            bell,
            root,
            interval: limit,
            limit,
            heard: now,
            beaten: now,
            broken: None,
            refused: None,
            is_over: false,
            longest: socket::SCHEDULER.limits.header,
        };
        (link, listener)
    }

    /// The thread ends with its sessions, as if the scheduler had gone.
    #[test]
    fn a_thread_of_the_link_that_fails_is_the_error_and_not_a_scheduler_that_is_lost() {
        let (mut link, _listener) = link();
        assert_eq!(link.refusal(), Ok(()));
        let error =
            Error::ThreadEnded { thread: "the thread of the connections of the scheduler".to_owned(), rank: None };
        link.connection.fail(error.clone());
        assert_eq!(link.loss(), None, "it may be worse than a connection that closed");
        assert_eq!(link.refusal(), Err(error));
        assert_eq!(link.refusal(), Ok(()), "once");
        while link.loss().is_none() {
            link.bell.wait(Duration::from_millis(20));
        }
    }

    /// The last message is not confirmed.
    #[test]
    fn a_job_that_has_failed_does_not_wait_for_those_that_it_has_lost() {
        let (mut link, _listener) = link();
        link.send(&ToScheduler::Goodbye).unwrap();
        let (sender, ends) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            link.connection.close_after_failure(Duration::from_secs(3600));
            sender.send(()).unwrap();
        });
        // This limit ends a hang.
        ends.recv_timeout(Duration::from_secs(100)).expect("it ends long before the hour");
    }
}
