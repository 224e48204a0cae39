//! The control star over TCP: rank 0 listens, the others connect. One thread in each process reads, writes
//! and connects again.
//!
//! | event of a connection | effect |
//! | --- | --- |
//! | its other end closes it, as the end of a process does | the peer is gone |
//! | it fails (a reset, nothing confirmed for `RINGPULL_SILENCE`) | the other ranks connect to rank 0 again, and frames go on where they stopped |
//! | it fails, and the port that the peer's process keeps open is closed | the peer is gone |
//! | nothing is heard over it for `RINGPULL_SILENCE` | the peer is lost, which `progress::watcher` finds |
//!
//! A process that connects must prove the job's secret first (`greeting`), within `GREETING`. Strangers do
//! not delay the ranks (`pending`). The thread is in `thread`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use rustix::net::sockopt;

use ringpull_base::secret::random;
use ringpull_base::strangers::GREETING;
use ringpull_base::{Error, Result, Secret, forked, notice};

use crate::transport::control::Control;
use crate::transport::greeting::{self, CHALLENGE_BYTES, Hello, Nonce, WELCOME_BYTES};
use pending::PendingConnections;
pub(super) use thread::Links;
use thread::{LinkRole, start};

mod pending;
mod thread;

/// The time that one attempt to connect may take, and the time until the next.
const ATTEMPT: Duration = Duration::from_secs(1);
const NEXT_ATTEMPT: Duration = Duration::from_millis(100);
/// The time that rank 0 still waits for the others when one of them is gone. The reader of the events knows
/// more.
const COMING: Duration = Duration::from_millis(200);
/// The interval at which rank 0 looks up while it waits for the others.
const GATHERING: Duration = Duration::from_millis(20);

/// The time limits of a start.
#[derive(Debug, Clone, Copy)]
pub struct StartLimits {
    /// A rank that does not come is named after this time, and each time it has doubled.
    pub warn: Duration,
    /// A rank that could not be reached for this long is lost.
    pub silence: Duration,
}

/// Rank 0's listening end, before the others are there.
pub struct Hub {
    pending: PendingConnections,
    secret: Secret,
}

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::io(action, "a control connection", &cause)
}

impl Hub {
    /// Listens on ports that the system chooses: on loopback alone if all ranks are on this host.
    pub fn listen(is_local: bool) -> Result<Self> {
        Ok(Hub { pending: PendingConnections::listen(is_local)?, secret: Secret::new_random()? })
    }

    /// Returns the text with which the other ranks find this hub and prove that they are of its job: the
    /// secret, then addresses, separated by blanks. It goes through MPI, to the ranks of the job alone.
    pub fn invitation(&self) -> Result<String> {
        let mut invitation = self.secret.reveal().to_owned();
        for address in self.pending.addresses().map_err(failed("name"))? {
            invitation.push(' ');
            invitation.push_str(&address.to_string());
        }
        Ok(invitation)
    }

    /// Waits until every other rank has connected, or `meanwhile` returns an error. Returns an error if a
    /// rank has connected and is gone, and others do not come soon.
    pub fn gather(
        self,
        size: usize,
        limits: StartLimits,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Control> {
        let (come, arrivals) = unbounded();
        let (links, events) = start(0, size, limits, self.secret, LinkRole::Hub(self.pending), Some(come))?;
        let begun = Instant::now();
        let (mut missing, mut warning) = ((1..size).collect::<Vec<usize>>(), limits.warn);
        let mut gone_since: Option<Instant> = None;
        while !missing.is_empty() {
            meanwhile()?;
            if let Some((rank, cause)) = links.first_loss()
                && gone_since.get_or_insert_with(Instant::now).elapsed() >= COMING
            {
                return Err(Error::PeerLost {
                    peer: format!("rank {rank}"),
                    ranks: vec![rank],
                    cause,
                    operation: "start".to_owned(),
                    rank: Some(0),
                });
            }
            match arrivals.recv_timeout(GATHERING.min(limits.silence)) {
                Ok(rank) => missing.retain(|missing| *missing != rank),
                Err(_) if begun.elapsed() >= limits.silence => {
                    return Err(Error::PeerLost {
                        peer: format!("rank(s) {missing:?}"),
                        ranks: missing,
                        cause: format!("no control connection within {} s", limits.silence.as_secs()),
                        operation: "start".to_owned(),
                        rank: Some(0),
                    });
                }
                Err(_) if begun.elapsed() >= warning => {
                    notice(&format!(
                        "warning: rank 0 has waited {} s for the control connections of rank(s) {missing:?}",
                        begun.elapsed().as_secs()
                    ));
                    warning *= 2;
                }
                Err(_) => {}
            }
        }
        Ok(Control::over(0, size, links, events))
    }
}

/// Connects rank `rank` to the hub that wrote `invitation`. Ends when `meanwhile` returns an error.
pub fn join(
    rank: usize,
    size: usize,
    invitation: &str,
    limits: StartLimits,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<Control> {
    let mut words = invitation.split(' ');
    let secret = words
        .next()
        .and_then(|word| Secret::within(word).ok())
        .ok_or_else(|| Error::protocol(rank, "rank 0", "an invitation that cannot be read"))?;
    let addresses: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
    let begun = Instant::now();
    let (mut last, mut attempt) = ("no address was given".to_owned(), 0);
    while begun.elapsed() < limits.silence {
        meanwhile()?;
        for address in &addresses {
            // The process is there as long as this port is.
            let dialled = TcpStream::connect_timeout(address, ATTEMPT).and_then(|stream| {
                let presence = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
                forked::close_in_child(presence.as_raw_fd());
                attempt += 1;
                let port = presence.local_addr()?.port();
                let hello = Hello { rank: rank as u32, attempt, received: 0, port };
                let theirs = greet(&stream, &secret, hello, GREETING)?;
                Ok((stream, theirs, presence, hello.port))
            });
            match dialled {
                Ok((stream, theirs, presence, port)) => {
                    let role = LinkRole::Leaf { address: *address, port, attempt, _presence: presence };
                    let (links, events) = start(rank, size, limits, secret, role, None)?;
                    links.attach(0, stream, theirs, limits.silence).map_err(failed("use"))?;
                    return Ok(Control::over(rank, size, links, events));
                }
                Err(cause) => last = format!("{address}: {cause}"),
            }
        }
        std::thread::sleep(NEXT_ATTEMPT);
    }
    Err(Error::PeerLost {
        peer: "rank 0".to_owned(),
        ranks: vec![0],
        cause: format!("its control port could not be reached ({last})"),
        operation: "start".to_owned(),
        rank: Some(rank),
    })
}

/// Proves the secret to rank 0, and checks rank 0's proof. Returns the number of frames that rank 0 has
/// received.
fn greet(stream: &TcpStream, secret: &Secret, hello: Hello, limit: Duration) -> std::io::Result<u64> {
    let mut stream = stream;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    // If this end gives up, rank 0 must not take that for the end of the process.
    sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    let mut challenge: Nonce = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge)?;
    let nonce: Nonce = random().map_err(std::io::Error::other)?;
    stream.write_all(&hello.encode(secret, &challenge, &nonce))?;
    let mut welcome = [0; WELCOME_BYTES];
    stream.read_exact(&mut welcome)?;
    let theirs = greeting::read_welcome(&welcome, secret, &challenge, &nonce);
    let theirs = theirs.ok_or_else(|| std::io::Error::other("a stranger answered"))?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    sockopt::set_socket_linger(stream, None)?;
    Ok(theirs)
}

#[cfg(test)]
mod tests;
