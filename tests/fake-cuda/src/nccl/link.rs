//! The link of a rank to its hub: a call within the process, or a connection of the loopback.
//!
//! A message is a kind, five numbers, a length and bytes of this length. An answer is a code, a length and
//! bytes.

use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::hub::{Call, NcclHub};
use super::sums::ElementKind;
use super::{REMOTE_ERROR, SUCCESS, SYSTEM_ERROR};

const JOIN: u64 = 0;
const EXCHANGE: u64 = 1;
const PART: u64 = 2;

/// Numbers before the bytes of a message.
const NUMBERS: usize = 7;

pub(super) enum Link {
    Here(Arc<NcclHub>),
    /// A collective and its rank's parting do not come at once; ending may.
    There {
        stream: Mutex<TcpStream>,
        other: TcpStream,
    },
}

impl Link {
    pub(super) fn here(hub: Arc<NcclHub>) -> Self {
        Link::Here(hub)
    }

    /// Connects to the hub of this id. Waits for all ranks.
    pub(super) fn to(id: &[u8; 128], [rank, size, device]: [usize; 3], is_aborted: &AtomicBool) -> Result<Self, c_int> {
        let text = String::from_utf8_lossy(id);
        let address: SocketAddr = text.trim_end_matches('\0').parse().map_err(|_| super::INVALID_ARGUMENT)?;
        let stream = TcpStream::connect(address).map_err(|_| SYSTEM_ERROR)?;
        stream.set_nodelay(true).map_err(|_| SYSTEM_ERROR)?;
        let other = stream.try_clone().map_err(|_| SYSTEM_ERROR)?;
        let link = Link::There { stream: Mutex::new(stream), other };
        // A thread that aborts has no link yet that it could end.
        link.ask([JOIN, rank as u64, size as u64, device as u64, 0, 0, 0], &[], is_aborted)?;
        Ok(link)
    }

    fn ask(&self, numbers: [u64; NUMBERS], bytes: &[u8], is_aborted: &AtomicBool) -> Result<Vec<u8>, c_int> {
        let Link::There { stream, .. } = self else { return Err(SYSTEM_ERROR) };
        let mut stream = stream.lock();
        let mut exchange = || -> io::Result<(c_int, Vec<u8>)> {
            stream.write_all(&numbers.map(u64::to_le_bytes).concat())?;
            stream.write_all(bytes)?;
            stream.set_read_timeout(Some(super::LOOK))?;
            loop {
                match stream.peek(&mut [0]) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => break,
                    Err(cause) if matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                        if is_aborted.load(Ordering::Acquire) {
                            return Err(cause);
                        }
                    }
                    Err(cause) => return Err(cause),
                }
            }
            stream.set_read_timeout(None)?;
            let [code, len] = read_numbers(&mut stream)?;
            let mut answer = vec![0; len as usize];
            stream.read_exact(&mut answer)?;
            Ok((code as c_int, answer))
        };
        match exchange() {
            Ok((SUCCESS, answer)) => Ok(answer),
            Ok((code, _)) => Err(code),
            Err(_) => Err(REMOTE_ERROR),
        }
    }

    pub(super) fn exchange(&self, rank: usize, call: Call, is_aborted: &AtomicBool) -> Result<Vec<u8>, c_int> {
        match self {
            Link::Here(hub) => hub.exchange(rank, call, is_aborted),
            Link::There { .. } => {
                let kind = ElementKind::ALL.iter().position(|kind| *kind == call.kind).unwrap_or(0) as u64;
                let (root, len, given) = (call.root as u64, call.len_bytes as u64, call.bytes.len() as u64);
                self.ask([EXCHANGE, call.number, kind, call.dtype as u64, root, len, given], &call.bytes, is_aborted)
            }
        }
    }

    pub(super) fn part(&self, rank: usize, is_aborted: &AtomicBool) -> Result<(), c_int> {
        match self {
            Link::Here(hub) => hub.part(rank, is_aborted),
            Link::There { .. } => self.ask([PART, 0, 0, 0, 0, 0, 0], &[], is_aborted).map(drop),
        }
    }

    /// Ends the link. Nothing of this rank reaches the hub any more.
    pub(super) fn end(&self, rank: usize) {
        match self {
            Link::Here(hub) => hub.lose(rank),
            Link::There { other, .. } => drop(other.shutdown(Shutdown::Both)),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Link::There { other, .. } = self {
            drop(other.shutdown(Shutdown::Both));
        }
    }
}

fn read_numbers<const COUNT: usize>(from: &mut TcpStream) -> io::Result<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        *number = u64::from_le_bytes(bytes);
    }
    Ok(numbers)
}

/// Listens for the ranks of `hub` as long as the process lives. Returns the hub's id.
pub(super) fn serve(hub: Arc<NcclHub>) -> io::Result<[u8; 128]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    let mut id = [0; 128];
    id[..address.len()].copy_from_slice(address.as_bytes());
    thread::Builder::new().name("fake-nccl".to_owned()).spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let hub = Arc::clone(&hub);
            thread::spawn(move || serve_one(&hub, stream));
        }
    })?;
    Ok(id)
}

fn serve_one(hub: &NcclHub, mut stream: TcpStream) {
    let Ok([JOIN, rank, size, device, ..]) = read_numbers::<NUMBERS>(&mut stream) else { return };
    let rank = rank as usize;
    let never = AtomicBool::new(false);
    let come = hub.expect(rank, size as usize, device as usize).and_then(|()| hub.all(&never)).map(|()| Vec::new());
    let mut is_well = answer(&mut stream, come);
    while is_well {
        is_well = match read_numbers::<NUMBERS>(&mut stream) {
            Ok([EXCHANGE, number, kind, dtype, root, len_bytes, given]) => {
                let (kind, dtype, root) = (ElementKind::ALL[kind as usize], dtype as c_int, root as usize);
                let bytes = vec![0; given as usize];
                let mut call = Call { number, kind, dtype, root, len_bytes: len_bytes as usize, bytes };
                stream.read_exact(&mut call.bytes).is_ok() && answer(&mut stream, hub.exchange(rank, call, &never))
            }
            Ok([PART, ..]) => answer(&mut stream, hub.part(rank, &never).map(|()| Vec::new())),
            _ => false,
        };
    }
    hub.lose(rank);
}

fn answer(to: &mut TcpStream, outcome: Result<Vec<u8>, c_int>) -> bool {
    let (code, bytes) = outcome.map_or_else(|code| (code, Vec::new()), |bytes| (SUCCESS, bytes));
    let head = [code as u64, bytes.len() as u64].map(u64::to_le_bytes).concat();
    to.write_all(&head).and_then(|()| to.write_all(&bytes)).is_ok()
}
