//! The control star over TCP: rank 0 listens, the others connect, and each pair has a session
//! (`ringpull-session`).
//!
//! The end of a process closes its connection, and the peer counts as gone at once. A connection that fails
//! is made again. If the peer's process has ended meanwhile, the peer counts as gone when its port is found
//! closed. A peer that is silent for `RINGPULL_SILENCE` is lost; `progress::watcher` finds that.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ringpull_base::{Error, Result, Secret, notice};
use ringpull_session::{DialTarget, Door, Endpoint, listen};

use crate::transport::control::Control;
use crate::transport::links::{Links, StarSink, identity, rank_of, settings};

/// The time for which rank 0 still waits for the others when one of them is gone. The reader of the events
/// then knows more about the loss.
const COMING: Duration = Duration::from_millis(200);
/// The interval at which a rank that waits for the others calls `meanwhile`.
const GATHERING: Duration = Duration::from_millis(20);

/// The time limits of a start.
#[derive(Debug, Clone, Copy)]
pub struct StartLimits {
    /// The time after which a missing rank is named in a warning. It doubles with each warning.
    pub warn: Duration,
    /// The time after which a rank that cannot be reached is lost.
    pub silence: Duration,
}

/// Rank 0's listening end, before the others have connected.
pub struct Hub {
    sockets: Vec<TcpListener>,
    secret: Secret,
}

impl Hub {
    /// Listens on ports that the system chooses. If all ranks are on this host, listens on loopback only.
    /// Otherwise listens on every interface, since rank 0 cannot know which of them the other ranks can
    /// reach.
    pub fn listen(is_local: bool) -> Result<Self> {
        let addresses = if is_local { vec![Ipv4Addr::LOCALHOST.into()] } else { interfaces()? };
        let (mut sockets, mut failure) = (Vec::new(), std::io::Error::from(ErrorKind::AddrNotAvailable));
        for ip in addresses {
            match listen(SocketAddr::new(ip, 0)) {
                Ok(socket) => sockets.push(socket),
                // An address may have been removed, or may not be usable yet.
                Err(cause) => failure = cause,
            }
        }
        if sockets.is_empty() {
            return Err(Error::io("listen for", "control connections", &failure));
        }
        Ok(Hub { sockets, secret: Secret::new_random()? })
    }

    /// Returns the addresses on which it listens. Loopback is the last, because on another host it leads to a
    /// stranger.
    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let addresses = self.sockets.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>();
        addresses.map_err(|cause| Error::io("name", "a control connection", &cause))
    }

    /// Returns the text with which the other ranks find this hub and prove that they are of its job. It has
    /// the secret and then the addresses, separated by blanks. It is sent through MPI, so only the ranks of
    /// the job get it.
    pub fn invitation(&self) -> Result<String> {
        let mut invitation = self.secret.reveal().to_owned();
        for address in self.addresses()? {
            invitation.push(' ');
            invitation.push_str(&address.to_string());
        }
        Ok(invitation)
    }

    /// Waits until every other rank has connected, or `meanwhile` returns an error. Returns an error if a
    /// rank has connected and is gone, and the others do not come soon.
    pub fn gather(
        self,
        size: usize,
        limits: StartLimits,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Control> {
        let (sink, events, arrivals) = StarSink::new(0);
        let admits = Box::new(move |name: &[u8]| rank_of(name).is_some_and(|rank| (1..size).contains(&rank)));
        let (name, settings) = ("rank 0".to_owned(), settings(limits.silence));
        let door = Door { name, secret: Some(self.secret), admits, most: size, settings };
        let links = Links { endpoint: Endpoint::listen(self.sockets, door, sink.clone())?, sink };
        let begun = Instant::now();
        let (mut missing, mut warning) = ((1..size).collect::<Vec<usize>>(), limits.warn);
        let mut ways: Vec<IpAddr> = Vec::new();
        let mut gone_since: Option<Instant> = None;
        while !missing.is_empty() {
            meanwhile()?;
            if let Some((rank, cause)) = links.first_loss()
                && gone_since.get_or_insert_with(Instant::now).elapsed() >= COMING
            {
                return Err(lost(0, format!("rank {rank}"), vec![rank], cause));
            }
            match arrivals.recv_timeout(GATHERING.min(limits.silence)) {
                Ok(arrival) => {
                    let (rank, way) = arrival?;
                    missing.retain(|missing| *missing != rank);
                    ways.push(way);
                }
                Err(_) if begun.elapsed() >= limits.silence => {
                    let cause = format!("no control connection within {} s", limits.silence.as_secs());
                    return Err(lost(0, format!("rank(s) {missing:?}"), missing, cause));
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
        links.endpoint.keep(ways);
        Ok(Control::over(0, size, links, events))
    }
}

/// Returns the error of a start without these ranks.
fn lost(rank: usize, peer: String, ranks: Vec<usize>, cause: String) -> Error {
    Error::PeerLost { peer, ranks, cause, operation: "start".to_owned(), rank: Some(rank) }
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
        .ok_or_else(|| Error::protocol(rank, "rank 0", "unreadable invitation"))?;
    let addresses: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
    let lost = |cause| lost(rank, "rank 0".to_owned(), vec![0], cause);
    let unreached = format!("its control port could not be reached ({addresses:?})");
    if addresses.is_empty() {
        return Err(lost(unreached));
    }
    let (sink, events, arrivals) = StarSink::new(rank);
    let (name, settings) = ("rank 0".to_owned(), settings(limits.silence));
    let target =
        DialTarget { to: addresses, name, identity: identity(rank), secret: Some(secret), settings, has_port: true };
    let links = Links { endpoint: Endpoint::connect(target, sink.clone())?.0, sink };
    let begun = Instant::now();
    while begun.elapsed() < limits.silence {
        meanwhile()?;
        match arrivals.recv_timeout(GATHERING) {
            Ok(Ok(_)) => return Ok(Control::over(rank, size, links, events)),
            Ok(Err(refusal)) => return Err(lost(refusal.to_string())),
            Err(_) => {}
        }
    }
    Err(lost(unreached))
}

/// Returns the addresses of this host, loopback last, without those that need the name of a link.
fn interfaces() -> Result<Vec<IpAddr>> {
    let found = if_addrs::get_if_addrs().map_err(|cause| Error::io("list", "network interfaces", &cause))?;
    let mut found: Vec<IpAddr> = found.into_iter().map(|interface| interface.ip()).collect();
    found.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    found.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    Ok(found)
}

#[cfg(test)]
mod tests;
