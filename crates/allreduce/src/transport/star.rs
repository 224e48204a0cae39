//! The control star over TCP: rank 0 listens, the others connect, each connection carries length-prefixed frames.
//!
//! The kernel closes a killed process's sockets at once, so a peer's death is noticed within a round trip, whatever MPI
//! is doing; keep-alive probes notice a host that went silent. A stranger who connects lacks the job's nonce and is turned away.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;

use ringpull_base::{Error, Result};

use crate::transport::control::{Control, Event};

/// The longest frame; a longer one is a protocol error.
const MAX_FRAME_BYTES: usize = 16 << 20;
const GREETING_BYTES: usize = 8 + 4;

/// Rank 0's listening end, before the others are there.
pub struct Hub {
    listener: TcpListener,
    nonce: u64,
}

/// The connections of one rank; `None` where there is no wire.
pub(super) struct Links {
    rank: usize,
    streams: Vec<Option<Mutex<TcpStream>>>,
}

impl Hub {
    /// Listens on a port that the system chooses.
    pub fn listen() -> Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", 0)).map_err(|cause| Error::io("listen on", "0.0.0.0", &cause))?;
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let nonce = (clock.as_nanos() as u64).rotate_left(17) ^ (u64::from(std::process::id()) << 32);
        Ok(Hub { listener, nonce })
    }

    /// What the other ranks need to find this hub: the nonce, then addresses, separated by blanks.
    pub fn invitation(&self) -> Result<String> {
        let port = self.listener.local_addr().map_err(|cause| Error::io("name", "the control socket", &cause))?.port();
        let mut found: Vec<IpAddr> = if_addrs::get_if_addrs()
            .map_err(|cause| Error::io("list", "network interfaces", &cause))?
            .into_iter()
            .map(|interface| interface.ip())
            .filter(IpAddr::is_ipv4)
            .collect();
        // Loopback last: on another host it leads to a stranger.
        found.sort_by_key(IpAddr::is_loopback);
        let addresses: Vec<String> = found.into_iter().map(|ip| SocketAddr::new(ip, port).to_string()).collect();
        Ok(format!("{:x} {}", self.nonce, addresses.join(" ")))
    }

    /// Waits until every other rank has connected.
    pub fn gather(self, size: usize, limit: Duration) -> Result<Control> {
        let deadline = Instant::now() + limit;
        let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        self.listener.set_nonblocking(true).map_err(|cause| Error::io("use", "the control socket", &cause))?;
        while streams.iter().skip(1).any(Option::is_none) {
            match self.listener.accept() {
                Ok((stream, from)) => match welcome(stream, self.nonce, size) {
                    Ok((rank, stream)) => streams[rank] = Some(stream),
                    Err(cause) => tracing::warn!(%from, %cause, "turned away a connection to the control port"),
                },
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        let missing: Vec<usize> = (1..size).filter(|rank| streams[*rank].is_none()).collect();
                        return Err(Error::PeerLost {
                            peer: format!("rank(s) {missing:?}"),
                            cause: format!("no control connection within {} s", limit.as_secs()),
                            operation: "start".to_owned(),
                            rank: 0,
                        });
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(cause) => return Err(Error::io("accept on", "the control socket", &cause)),
            }
        }
        wire(0, streams)
    }
}

/// Connects rank `rank` to the hub that wrote `invitation`.
pub fn join(rank: usize, size: usize, invitation: &str, limit: Duration) -> Result<Control> {
    let mut words = invitation.split(' ');
    let nonce = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default();
    let addresses: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
    let deadline = Instant::now() + limit;
    let mut last = "no address was given".to_owned();
    while Instant::now() < deadline {
        for address in &addresses {
            match greet(*address, nonce, rank) {
                Ok(stream) => {
                    let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
                    streams[0] = Some(stream);
                    return wire(rank, streams);
                }
                Err(cause) => last = format!("{address}: {cause}"),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::PeerLost {
        peer: "rank 0".to_owned(),
        cause: format!("its control port could not be reached ({last})"),
        operation: "start".to_owned(),
        rank,
    })
}

fn greet(address: SocketAddr, nonce: u64, rank: usize) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut greeting = [0u8; GREETING_BYTES];
    greeting[..8].copy_from_slice(&nonce.to_le_bytes());
    greeting[8..].copy_from_slice(&(rank as u32).to_le_bytes());
    stream.write_all(&greeting)?;
    let mut answer = [0u8; 8];
    stream.read_exact(&mut answer)?;
    if answer != (!nonce).to_le_bytes() {
        return Err(std::io::Error::other("a stranger answered"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

fn welcome(mut stream: TcpStream, nonce: u64, size: usize) -> std::io::Result<(usize, TcpStream)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut greeting = [0u8; GREETING_BYTES];
    stream.read_exact(&mut greeting)?;
    let rank = u32::from_le_bytes([greeting[8], greeting[9], greeting[10], greeting[11]]) as usize;
    if greeting[..8] != nonce.to_le_bytes() || rank == 0 || rank >= size {
        return Err(std::io::Error::other("it is not of this job"));
    }
    stream.write_all(&(!nonce).to_le_bytes())?;
    stream.set_read_timeout(None)?;
    Ok((rank, stream))
}

/// Starts a reader for each connection.
fn wire(rank: usize, streams: Vec<Option<TcpStream>>) -> Result<Control> {
    let size = streams.len();
    let (news, events) = unbounded();
    let mut links = Vec::new();
    for (peer, stream) in streams.into_iter().enumerate() {
        let Some(stream) = stream else {
            links.push(None);
            continue;
        };
        let failed = |cause: std::io::Error| Error::io("use", "a control connection", &cause);
        stream.set_nodelay(true).map_err(failed)?;
        probe_when_silent(&stream).map_err(|cause| failed(cause.into()))?;
        let reading = stream.try_clone().map_err(failed)?;
        [&stream, &reading].into_iter().for_each(|end| ringpull_base::forked::close_in_child(end.as_raw_fd()));
        let news = news.clone();
        std::thread::Builder::new()
            .name(format!("ringpull-ctl{peer}"))
            .spawn(move || read_frames(peer, reading, &news))
            .map_err(failed)?;
        links.push(Some(Mutex::new(stream)));
    }
    Ok(Control::over(rank, size, Links { rank, streams: links }, events))
}

/// A host that answers nothing is given up after about 8 s.
fn probe_when_silent(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)
}

fn read_frames(peer: usize, mut stream: TcpStream, news: &Sender<Event>) {
    let cause = loop {
        match read_frame(&mut stream) {
            Ok(bytes) => {
                if news.send(Event::Frame { from: peer, bytes }).is_err() {
                    return;
                }
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => break "its process ended".to_owned(),
            Err(cause) => break format!("its control connection broke: {cause}"),
        }
    };
    // Nobody listens any more once this end has closed.
    drop(news.send(Event::Gone { rank: peer, cause }));
}

fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0u8; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME_BYTES {
        return Err(std::io::Error::other(format!("a frame of {len} bytes")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Links {
    pub(super) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        let Some(stream) = self.streams.get(to).and_then(Option::as_ref) else {
            return Ok(());
        };
        let mut framed = Vec::with_capacity(4 + bytes.len());
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len as usize <= MAX_FRAME_BYTES);
        let len = len.ok_or_else(|| {
            let what = format!("a control message of {} bytes, of at most {MAX_FRAME_BYTES}", bytes.len());
            Error::argument(what, "use fewer or shorter keys in one step")
        })?;
        framed.extend_from_slice(&len.to_le_bytes());
        framed.extend_from_slice(bytes);
        stream.lock().write_all(&framed).map_err(|cause| Error::PeerLost {
            peer: format!("rank {to}"),
            cause: format!("its control connection broke: {cause}"),
            operation: "a control message".to_owned(),
            rank: self.rank,
        })
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for stream in self.streams.iter().flatten() {
            // The readers hold clones; without a shutdown they would keep the connection open. A broken one is closed already.
            drop(stream.lock().shutdown(Shutdown::Both));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_order_a_stranger_is_turned_away_and_a_death_is_noticed() {
        let hub = Hub::listen().unwrap();
        let invitation = hub.invitation().unwrap();
        let port = hub.listener.local_addr().unwrap().port();
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let limit = Duration::from_secs(5);
        let peer = std::thread::spawn(move || join(1, 2, &invitation, limit).unwrap());
        let middle = hub.gather(2, limit).unwrap();
        let leaf = peer.join().unwrap();
        for n in 0..3u8 {
            leaf.send(0, &[n]).unwrap();
        }
        for n in 0..3u8 {
            let event = middle.events().recv_timeout(limit).unwrap();
            assert_eq!(event, Event::Frame { from: 1, bytes: vec![n] });
        }
        let error = leaf.send(0, &vec![0; MAX_FRAME_BYTES + 1]).unwrap_err().to_string();
        assert!(error.contains("16777217 bytes"), "{error}");
        drop(leaf);
        assert!(matches!(middle.events().recv_timeout(limit).unwrap(), Event::Gone { rank: 1, .. }));
    }

    #[test]
    fn a_rank_that_never_comes_is_named() {
        let error = Hub::listen().unwrap().gather(3, Duration::from_millis(10)).err().unwrap().to_string();
        assert!(error.contains("rank(s) [1, 2]"), "{error}");
    }
}
