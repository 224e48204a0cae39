//! The connection of a rank to its launcher. The rank's side sends output, and the launcher sends orders.
//!
//! `mpirun` cannot do that. It cuts the lines of ranks and mixes them, and after a signal it kills ranks
//! before they have ended. So the program between `mpirun` and a rank ([`wrapper`](super::wrapper)) connects
//! to the launcher ([`control`](super::control)), as the daemons of `mpirun` do. Both prove that they have
//! the job's secret, the rank's side first. Then the rank's side sends frames, and the launcher sends bytes,
//! which are the numbers of signals.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ringpull_base::Secret;
use ringpull_base::secret::{CODE_BYTES, random};

use super::output::PIECE;

/// The frames that the rank's side sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RankFrame {
    /// The first frame: the rank's name, such as `rank 3`.
    Name(String),
    Out(Vec<u8>),
    Err(Vec<u8>),
    /// The rank has ended with this code, and all its output was sent.
    Ended(i32),
    /// The rank has ended, but a process that it has started still holds its output.
    Outlived,
}

/// The order that allows a rank's side to end with the exit code of its rank. Every other order is the number
/// of a signal.
pub(super) const LEAVE: u8 = 0;
/// The answer to [`RankFrame::Ended`]: the launcher has read everything before it. The rank's side waits for
/// this answer. If it closed the connection earlier and an order arrived then, the output on its way would be
/// lost.
pub(super) const RECEIVED: u8 = u8::MAX;

/// The time without a byte after which a connection is probed. The next constants are the time between two
/// probes, and the number of unanswered probes after which it counts as broken. Firewalls forget silent
/// connections after some minutes.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const KEEP_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_PROBES: u32 = 8;
/// The time for which either side waits for the other's proof.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time that an address may take to answer.
const CONNECT: Duration = Duration::from_secs(2);
const MAGIC: [u8; 8] = *b"RPRANK\x02\n";

/// One end of a connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to `host:port`, or to the socket in a file.
    fn connect(address: &str) -> Result<Self> {
        if address.starts_with('/') {
            return UnixStream::connect(address).map(Stream::Unix);
        }
        let mut failure = Error::from(ErrorKind::NotFound);
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(Stream::Tcp(stream)),
                Err(cause) => failure = cause,
            }
        }
        Err(failure)
    }

    pub(super) fn shutdown(&self) {
        let done = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
        if let Err(cause) = done {
            tracing::debug!(%cause, "a rank's connection had ended");
        }
    }

    fn set_patience(&self, patience: Option<Duration>) -> Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_nodelay(true)?;
                // A firewall forgets connections that are silent for long.
                rustix::net::sockopt::set_socket_keepalive(stream, true)?;
                rustix::net::sockopt::set_tcp_keepidle(stream, KEEP_IDLE)?;
                rustix::net::sockopt::set_tcp_keepintvl(stream, KEEP_INTERVAL)?;
                rustix::net::sockopt::set_tcp_keepcnt(stream, KEEP_PROBES)?;
                stream.set_read_timeout(patience)
            }
            Stream::Unix(stream) => stream.set_read_timeout(patience),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(to),
            Stream::Unix(stream) => (&mut &*stream).read(to),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).write(from),
            Stream::Unix(stream) => (&mut &*stream).write(from),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The socket on which the launcher listens.
#[derive(Debug)]
pub(super) enum RankListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl RankListener {
    pub(super) fn at(path: &Path) -> Result<Self> {
        UnixListener::bind(path).map(RankListener::Unix)
    }

    /// Takes the next connection, if there is one.
    pub(super) fn accept(&self) -> Result<Stream> {
        let stream = match self {
            RankListener::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            RankListener::Unix(listener) => Stream::Unix(listener.accept()?.0),
        };
        Ok(stream)
    }
}

impl AsFd for RankListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            RankListener::Tcp(listener) => listener.as_fd(),
            RankListener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Connects to the launcher of this job at the first of these addresses where it answers. The launcher has
/// proved that it belongs to the job.
pub(super) fn connect(addresses: &[String], secret: &Secret) -> Result<Stream> {
    let mut failure = Error::from(ErrorKind::NotFound);
    for address in addresses {
        match Stream::connect(address).and_then(|stream| ask(&stream, secret).map(|()| stream)) {
            Ok(stream) => return Ok(stream),
            Err(cause) => failure = cause,
        }
    }
    Err(failure)
}

/// Makes the rank's part of the proofs.
fn ask(stream: &Stream, secret: &Secret) -> Result<()> {
    stream.set_patience(Some(PATIENCE))?;
    let own = fresh()?;
    (&mut &*stream).write_all(&[&MAGIC[..], &own].concat())?;
    let other = read_hello(stream)?;
    (&mut &*stream).write_all(&secret.code("rank", &[&own, &other]))?;
    let mut proof = [0; CODE_BYTES];
    (&mut &*stream).read_exact(&mut proof)?;
    if !secret.is_code(&proof, "launcher", &[&own, &other]) {
        return Err(stranger());
    }
    stream.set_patience(None)
}

/// Makes the launcher's part of the proofs.
pub(super) fn answer(stream: &Stream, secret: &Secret) -> Result<()> {
    stream.set_patience(Some(PATIENCE))?;
    let own = fresh()?;
    let other = read_hello(stream)?;
    (&mut &*stream).write_all(&[&MAGIC[..], &own].concat())?;
    let mut proof = [0; CODE_BYTES];
    (&mut &*stream).read_exact(&mut proof)?;
    if !secret.is_code(&proof, "rank", &[&other, &own]) {
        return Err(stranger());
    }
    (&mut &*stream).write_all(&secret.code("launcher", &[&other, &own]))?;
    stream.set_patience(None)
}

fn fresh() -> Result<[u8; 32]> {
    random().map_err(Error::other)
}

fn read_hello(stream: &Stream) -> Result<[u8; 32]> {
    let (mut magic, mut number) = ([0; MAGIC.len()], [0; 32]);
    (&mut &*stream).read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(stranger());
    }
    (&mut &*stream).read_exact(&mut number)?;
    Ok(number)
}

fn stranger() -> Error {
    Error::new(ErrorKind::PermissionDenied, "the other end is not of this job")
}

impl RankFrame {
    pub(super) fn send(&self, mut to: impl Write) -> Result<()> {
        let code;
        let (kind, bytes): (u8, &[u8]) = match self {
            RankFrame::Name(name) => (0, name.as_bytes()),
            RankFrame::Out(bytes) => (1, bytes),
            RankFrame::Err(bytes) => (2, bytes),
            RankFrame::Ended(ended) => {
                code = ended.to_be_bytes();
                (3, &code)
            }
            RankFrame::Outlived => (4, &[]),
        };
        let length = u32::try_from(bytes.len()).map_err(Error::other)?;
        let mut frame = Vec::with_capacity(5 + bytes.len());
        frame.push(kind);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(bytes);
        to.write_all(&frame)
    }

    pub(super) fn receive(mut from: impl Read) -> Result<Self> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > PIECE {
            return Err(Error::from(ErrorKind::InvalidData));
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(match kind {
            0 => RankFrame::Name(String::from_utf8_lossy(&bytes).into_owned()),
            1 => RankFrame::Out(bytes),
            2 => RankFrame::Err(bytes),
            3 => RankFrame::Ended(i32::from_be_bytes(bytes.try_into().map_err(|_| ErrorKind::InvalidData)?)),
            4 => RankFrame::Outlived,
            _ => return Err(Error::from(ErrorKind::InvalidData)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_admits_only_the_other_of_its_own_job() {
        let [one, other] = [(), ()].map(|()| Secret::new_random().unwrap());
        for (rank, is_admitted) in [(&one, true), (&other, false)] {
            let (near, far) = UnixStream::pair().map(|(near, far)| (Stream::Unix(near), Stream::Unix(far))).unwrap();
            std::thread::scope(|scope| {
                // Dropped after the answer, as the launcher drops strangers.
                let answered = scope.spawn(|| answer(&{ far }, &one).is_ok());
                assert_eq!(ask(&near, rank).is_ok(), is_admitted);
                assert_eq!(answered.join().unwrap(), is_admitted);
            });
        }
    }

    #[test]
    fn frames_arrive_as_they_were_sent_and_no_longer_one_is_read() {
        let frames = [
            RankFrame::Name("rank 3".to_owned()),
            RankFrame::Out(vec![0, 255, b'\n']),
            RankFrame::Err(vec![7; PIECE]),
            RankFrame::Ended(-1),
            RankFrame::Outlived,
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.send(&mut bytes).unwrap());
        let mut from = &bytes[..];
        assert_eq!(frames.each_ref().map(|_| RankFrame::receive(&mut from).unwrap()), frames);
        assert!(RankFrame::receive(&[1, 255, 255, 255, 255][..]).is_err());
    }
}
