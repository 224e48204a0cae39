//! Simulated devices of several ranks, threads or processes of this host, in place of NCCL between ranks.
//!
//! An id is an address. The maker of an id listens there until all members have come. After that it adds up,
//! in each round, the values of all members in the order of the ranks, and sends the sum to all. As with
//! NCCL, a member that does not come keeps all others waiting, and a member that is gone ends the round of
//! all with an error.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ringpull_base::{Buffer, DType, Error, Result};

use super::super::work::CollectiveKind;
use super::super::{GoOn, UniqueId, failed, parted, reference};
use super::health::Health;

/// The time between two checks of a wait for a member.
const LOOK: Duration = Duration::from_millis(2);
/// The message to members when all have come.
const ALL_HERE: [u8; 1] = [1];

/// Listens for members until they have gone, or until `health` ends. Returns the id.
pub(super) fn host(health: &Arc<Health>) -> Result<UniqueId> {
    let listen = || -> io::Result<UniqueId> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let mut id = [0; size_of::<UniqueId>()];
        let address = listener.local_addr()?.to_string();
        id[..address.len()].copy_from_slice(address.as_bytes());
        let health = Arc::clone(health);
        let serve = move || {
            if let Err(cause) = serve(&listener, &health) {
                tracing::debug!(%cause, "simulated devices of several ranks were disconnected");
            }
        };
        thread::Builder::new().name("ringpull-simhub".to_owned()).spawn(serve)?;
        Ok(id)
    };
    listen().map_err(|cause| failed("sim", "unique id", 703, cause.to_string()))
}

fn serve(listener: &TcpListener, health: &Health) -> io::Result<()> {
    let mut members: Vec<Option<TcpStream>> = Vec::new();
    while members.is_empty() || members.iter().any(Option::is_none) {
        if health.aborted.load(Ordering::Acquire) {
            return Ok(());
        }
        match listener.accept() {
            Ok((mut member, _)) => {
                member.set_nonblocking(false)?;
                member.set_nodelay(true)?;
                let [rank, size] = read_numbers(&mut member)?.map(|number| number as usize);
                members.resize_with(size, || None);
                let seat = members.get_mut(rank).ok_or_else(|| io::Error::other(format!("rank {rank} of {size}")))?;
                *seat = Some(member);
            }
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(cause) => return Err(cause),
        }
    }
    let mut members: Vec<TcpStream> = members.into_iter().flatten().collect();
    members.iter_mut().try_for_each(|member| member.write_all(&ALL_HERE))?;
    loop {
        let given = read_round(&mut members)?;
        let parts: Vec<Buffer> = given.iter().map(|(_, part)| Buffer::copy_of(part.bytes())).collect();
        let (dtype, len) = (given[0].0, parts[0].bytes().len());
        if given.iter().any(|(other, part)| (*other, part.bytes().len()) != (dtype, len)) {
            return Err(io::Error::other("members whose dtypes or lengths differ"));
        }
        let sum = reference::collect(CollectiveKind::AllReduce, dtype, &parts, &[len]);
        members.iter_mut().try_for_each(|member| member.write_all(sum[0].bytes()))?;
    }
}

fn read_numbers(from: &mut TcpStream) -> io::Result<[u64; 2]> {
    let mut numbers = [0u64; 2];
    from.read_exact(bytemuck::cast_slice_mut(&mut numbers))?;
    Ok(numbers)
}

/// Reads the values of each member, in order. Returns an error as soon as any member has gone.
fn read_round(members: &mut [TcpStream]) -> io::Result<Vec<(DType, Buffer)>> {
    let mut given: Vec<Option<(DType, Buffer)>> = members.iter().map(|_| None).collect();
    while given.iter().any(Option::is_none) {
        for (member, given) in members.iter_mut().zip(&mut given) {
            member.set_nonblocking(true)?;
            let seen = member.peek(&mut [0]);
            member.set_nonblocking(false)?;
            match seen {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof)),
                Ok(_) if given.is_none() => *given = Some(read_part(member)?),
                Err(cause) if cause.kind() != ErrorKind::WouldBlock => return Err(cause),
                _ => {}
            }
        }
        thread::sleep(LOOK / 20);
    }
    Ok(given.into_iter().flatten().collect())
}

fn read_part(from: &mut TcpStream) -> io::Result<(DType, Buffer)> {
    let [dtype, len] = read_numbers(from)?;
    let dtype = DType::ALL.get(dtype as usize).ok_or_else(|| io::Error::other("no dtype"))?;
    let mut part = Buffer::zeroed(len as usize);
    from.read_exact(part.bytes_mut())?;
    Ok((*dtype, part))
}

/// A device's connection to the members of its number.
pub(super) struct Link(TcpStream);

impl Link {
    /// Joins `id` as member `rank` of `size`. Returns when all members have joined.
    pub(super) fn join(id: &UniqueId, rank: usize, size: usize, go_on: GoOn<'_>) -> Result<Arc<Self>> {
        let text = String::from_utf8_lossy(id);
        let address: SocketAddr = text.trim_end_matches('\0').parse().map_err(|_| {
            Error::argument(
                format!("{text:?} is no simulated platform's id"),
                "pass the id that a simulated platform made",
            )
        })?;
        let come = || -> io::Result<TcpStream> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.write_all(bytemuck::cast_slice(&[rank as u64, size as u64]))?;
            stream.set_read_timeout(Some(LOOK))?;
            Ok(stream)
        };
        let mut stream = come().map_err(|cause| parted("join", cause.to_string()))?;
        let mut told = [0; ALL_HERE.len()];
        loop {
            match stream.read_exact(&mut told) {
                Ok(()) => break,
                Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => go_on()?,
                Err(cause) => return Err(parted("join", cause.to_string())),
            }
        }
        stream.set_read_timeout(None).map_err(|cause| parted("join", cause.to_string()))?;
        Ok(Arc::new(Link(stream)))
    }

    /// Returns the sum of the members' values. Waits for them.
    pub(super) fn sum(&self, dtype: DType, part: &Buffer) -> Result<Buffer> {
        let place = DType::ALL.iter().position(|one| *one == dtype).unwrap_or(DType::ALL.len());
        let exchange = || -> io::Result<Buffer> {
            let mut stream = &self.0;
            stream.write_all(bytemuck::cast_slice(&[place as u64, part.bytes().len() as u64]))?;
            stream.write_all(part.bytes())?;
            let mut sum = Buffer::zeroed(part.bytes().len());
            stream.read_exact(sum.bytes_mut())?;
            Ok(sum)
        };
        exchange().map_err(|cause| parted("a sum over ranks", cause.to_string()))
    }

    /// Ends the connection for all members. A wait for a sum then returns an error.
    pub(super) fn close(&self) {
        if let Err(cause) = self.0.shutdown(Shutdown::Both) {
            tracing::debug!(%cause, "the link had ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn meet(size: usize, health: &Arc<Health>) -> Vec<Arc<Link>> {
        let id = host(health).unwrap();
        let joining: Vec<_> =
            (0..size).map(|rank| thread::spawn(move || Link::join(&id, rank, size, &|| Ok(())))).collect();
        joining.into_iter().map(|link| link.join().unwrap().unwrap()).collect()
    }

    #[test]
    fn members_get_the_sum_of_all_until_one_is_gone() {
        let health = Arc::default();
        let links = meet(3, &health);
        for round in 0..3 {
            let summing: Vec<_> = links
                .iter()
                .enumerate()
                .map(|(rank, link)| {
                    let link = Arc::clone(link);
                    let part = Buffer::copy_of(bytemuck::cast_slice(&[rank as f32, round as f32]));
                    thread::spawn(move || link.sum(DType::F32, &part).unwrap().bytes().to_vec())
                })
                .collect();
            for sum in summing {
                let sum: [f32; 2] = bytemuck::pod_read_unaligned(&sum.join().unwrap());
                assert_eq!(sum, [3.0, 3.0 * round as f32]);
            }
        }
        links[2].close();
        let text = links[0].sum(DType::F32, &Buffer::zeroed(4)).err().unwrap().to_string();
        assert!(text.contains("another rank is lost"), "{text}");
    }

    #[test]
    fn a_wait_for_a_member_that_does_not_come_stops_on_request() {
        let health: Arc<Health> = Arc::default();
        let (id, since) = (host(&health).unwrap(), Instant::now());
        let go_on = || {
            let late = since.elapsed() > Duration::from_millis(20);
            if late { Err(Error::argument("told", "to stop")) } else { Ok(()) }
        };
        let text = Link::join(&id, 0, 2, &go_on).err().unwrap().to_string();
        assert!(text.contains("told"), "{text}");
        assert!(Link::join(&[b'x'; 128], 0, 2, &go_on).is_err());
    }
}
