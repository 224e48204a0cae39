//! Names that one process of this host holds at a time. With them a process that wants a role finds out if
//! another process has it.
//!
//! A name is an abstract socket. The kernel gives it to one process and takes it back when that process ends,
//! however it ends; there is no file that could be left behind or planted. Any user may take any such name,
//! so only a holder of this user counts.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::forked;

/// The most processes that may ask for the holder of a name. A host may allow fewer.
const QUESTIONS: i32 = 4096;

/// A name that this process has until it ends. Its forked children do not have it, nor does a program that
/// replaces this process by `exec`.
#[derive(Debug)]
pub struct Claim {
    _socket: OwnedFd,
}

impl Claim {
    /// Takes the name. If another process has it, returns that process as an error. Returns `None` if the
    /// system has no such names, or another user has taken the name.
    pub fn take(name: &str) -> Result<Option<Self>, u32> {
        /// The number of questions to a holder that is about to take the name, or about to end.
        const ATTEMPTS: usize = 50;
        let Ok(address) = address_of(name) else { return Ok(None) };
        for _ in 0..ATTEMPTS {
            let Ok(socket) = new_socket() else { return Ok(None) };
            match bind(&socket, &address) {
                Ok(()) if listen(&socket, QUESTIONS).is_ok() => {
                    forked::close_in_child(socket.as_raw_fd());
                    return Ok(Some(Claim { _socket: socket }));
                }
                Err(Errno::ADDRINUSE) => match holder(&address) {
                    Err(Errno::CONNREFUSED) => std::thread::sleep(Duration::from_millis(1)),
                    Ok(Some(pid)) => return Err(pid),
                    Ok(None) | Err(_) => return Ok(None),
                },
                Ok(()) | Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns the process that has the name.
    pub fn holder(name: &str) -> Option<u32> {
        holder(&address_of(name).ok()?).ok()?
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns the address of a name. In another container, where other processes may have these numbers, it is
/// different.
fn address_of(name: &str) -> Result<SocketAddrUnix, Errno> {
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let user = rustix::process::getuid().as_raw();
    let hash = xxh3_128(format!("{name}\n{user}\n{}", processes.display()).as_bytes());
    SocketAddrUnix::new_abstract_name(format!("ringpull-{hash:032x}").as_bytes())
}

/// Returns the process that listens at the address, if it is this user's.
fn holder(address: &SocketAddrUnix) -> Result<Option<u32>, Errno> {
    let socket = new_socket()?;
    connect(&socket, address)?;
    let peer = sockopt::socket_peercred(&socket)?;
    let is_ours = peer.uid == rustix::process::getuid();
    Ok(is_ours.then(|| peer.pid.as_raw_pid() as u32))
}

/// Describes a process by its number and its command: `pid 71 (python train.py)`.
pub fn in_words(pid: u32) -> String {
    const LONGEST: usize = 80;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let mut text: String = String::from_utf8_lossy(&words.join(&b' ')).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return format!("pid {pid}");
    }
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).collect::<String>() + "...";
    }
    format!("pid {pid} ({text})")
}

/// Returns true if this process was started by `pid`, or by a process that `pid` has started, and so on.
pub fn is_ancestor(pid: u32) -> bool {
    let parent_of = |process: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in brackets, may contain anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let parents = std::iter::successors(Some(std::process::id()), |process| parent_of(*process)).skip(1);
    parents.take_while(|parent| *parent > 0).any(|parent| parent == pid)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_has_one_holder_until_that_process_ends() {
        let name = format!("a test of {}", std::process::id());
        let claim = Claim::take(&name).unwrap().expect("this system has abstract sockets");
        assert_eq!(Claim::take(&name).unwrap_err(), std::process::id());
        assert_eq!(Claim::holder(&name), Some(std::process::id()));
        assert_eq!(Claim::holder("of nobody"), None);
        // A child that runs another program does not have the name.
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(claim);
        // Another test's child has a copy of the socket for a moment.
        while Claim::holder(&name).is_some() {
            std::thread::yield_now();
        }
        assert!(Claim::take(&name).unwrap().is_some());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_knows_those_that_started_it() {
        assert!(is_ancestor(std::os::unix::process::parent_id()));
        assert!(!is_ancestor(std::process::id()));
        let own = in_words(std::process::id());
        assert!(own.starts_with(&format!("pid {} (", std::process::id())), "{own}");
        assert_eq!(in_words(u32::MAX), format!("pid {}", u32::MAX));
    }
}
