//! Records the greeting of a real node on its way, and resets real connections.
//!
//! MPI carries the addresses of control ports, so no stranger can redirect a rank to another address. But a
//! process's parent may share the process's sockets (`pidfd_getfd`). The test resets a node's connection, as
//! any machine on the way could. It stops the listening process meanwhile, accepts the node's next connection
//! itself, and forwards the bytes in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};

use crate::greetings::{CHALLENGE, GivenName, HELLO, PROOF, Speaks, VERDICT};
use crate::port::{OpenPort, reset};
use crate::vitals::{ESTABLISHED, LISTENS, Socket, is_stopped, tcp};

/// The time limit of each step.
const LIMIT: Duration = Duration::from_secs(2);

/// The bytes that one node sent until it was admitted.
#[derive(Debug, Clone)]
pub(crate) struct Overheard {
    said: Vec<u8>,
}

impl Overheard {
    /// Makes a node that is connected to `port` connect again, and records its greeting. The recorded
    /// connection is closed at the end.
    pub(crate) fn at(port: &OpenPort) -> io::Result<Self> {
        let all = tcp(port.pid);
        let listens = all.iter().find(|socket| socket.state == LISTENS && socket.local == port.at);
        let listener = TcpListener::from(shared(port.pid, listens.ok_or(ErrorKind::NotFound)?)?);
        let stopped = StoppedProcess::now(port.pid)?;
        reset_connections(port.clients[0], port.at)?;
        // The listener has no timeout of its own, because its process shares the listener's options.
        let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit))? == 0 {
            return Err(io::Error::other("the node does not connect again"));
        }
        let (node, _) = listener.accept()?;
        let owner = TcpStream::connect(port.at)?;
        drop(stopped);
        let overheard = pass_on(&node, &owner);
        // The node sends unreceived data again over its next connection.
        reset(node);
        reset(owner);
        overheard
    }

    /// Sends all recorded bytes again on `stream`, and waits for the other end's messages as the node did.
    pub(crate) fn say_again(&self, speaks: Speaks, stream: &TcpStream) -> io::Result<()> {
        let mut stream = stream;
        if speaks == Speaks::Nothing {
            return stream.write_all(&self.said);
        }
        let (hello, proof) = self.said.split_at(HELLO);
        stream.write_all(hello)?;
        stream.read_exact(&mut [0; CHALLENGE])?;
        stream.write_all(proof)
    }

    /// Returns all recorded bytes.
    pub(crate) fn said(&self) -> &[u8] {
        &self.said
    }

    /// Returns the sender's name, without its secret.
    pub(crate) fn name(&self) -> GivenName {
        GivenName {
            session: self.said[40..56].try_into().expect("sixteen bytes"),
            identity: self.said[59..59 + usize::from(self.said[58])].to_vec(),
            wanted: self.said[92..92 + usize::from(self.said[91])].to_vec(),
            goes_on: true,
            ..GivenName::default()
        }
    }
}

/// Resets every connection of process `pid` to `to`. Returns their number.
pub(crate) fn reset_connections(pid: u32, to: SocketAddr) -> io::Result<usize> {
    let is_to = |socket: &Socket| socket.state == ESTABLISHED && socket.remote == to;
    let connections: Vec<Socket> = tcp(pid).into_iter().filter(is_to).collect();
    let mut count = 0;
    for connection in &connections {
        match shared(pid, connection) {
            Ok(socket) => rustix::net::connect_unspec(socket)?,
            // The connection has broken since it was listed.
            Err(cause) if cause.raw_os_error() == Some(rustix::io::Errno::BADF.raw_os_error()) => continue,
            Err(cause) => return Err(cause),
        }
        count += 1;
    }
    Ok(count)
}

/// Opens another process's socket in this process too.
fn shared(pid: u32, socket: &Socket) -> io::Result<OwnedFd> {
    let process = pidfd_open(id_of(pid)?, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, socket.fd, PidfdGetfdFlags::empty())?)
}

fn id_of(pid: u32) -> io::Result<Pid> {
    Pid::from_raw(pid as i32).ok_or_else(|| ErrorKind::InvalidInput.into())
}

/// A stopped process. Dropping this value lets the process go on.
struct StoppedProcess(Pid);

impl StoppedProcess {
    fn now(pid: u32) -> io::Result<Self> {
        let process = id_of(pid)?;
        kill_process(process, Signal::STOP)?;
        let stopped = StoppedProcess(process);
        let end = Instant::now() + LIMIT;
        while !is_stopped(pid) {
            if Instant::now() > end {
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
        Ok(stopped)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        if let Err(cause) = kill_process(self.0, Signal::CONT) {
            eprintln!("process {:?} cannot go on: {cause}", self.0);
        }
    }
}

/// Forwards the bytes between a node and the listening process, until that process has admitted the node.
fn pass_on(node: &TcpStream, owner: &TcpStream) -> io::Result<Overheard> {
    let (by_node, by_owner) = (HELLO + PROOF, CHALLENGE + VERDICT);
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    let end = Instant::now() + LIMIT;
    while said.len() < by_node || answered.len() < by_owner {
        if Instant::now() > end {
            let heard = format!("a node said {} bytes and heard {}", said.len(), answered.len());
            return Err(io::Error::new(ErrorKind::TimedOut, heard));
        }
        for (from, to, heard) in [(node, owner, &mut said), (owner, node, &mut answered)] {
            let mut piece = [0; 4096];
            let mut from = from;
            from.set_read_timeout(Some(Duration::from_millis(2)))?;
            match from.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    heard.extend_from_slice(&piece[..count]);
                    let mut to = to;
                    to.write_all(&piece[..count])?;
                }
                Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(cause) => return Err(cause),
            }
        }
    }
    said.truncate(by_node);
    Ok(Overheard { said })
}
