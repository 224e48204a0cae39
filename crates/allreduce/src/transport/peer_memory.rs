//! Reads and writes memory of another process of this host through the kernel (`process_vm_readv`). So a
//! buffer that no other process maps needs no copy in shared memory.
//!
//! The system may forbid that: only a process that may trace another (`ptrace(2)`) may read its memory. So
//! every rank first tries to read a number from every other rank.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// A number of this process that others can find and check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The address of the number.
    pub address: u64,
    /// The number, which no other process has in its memory.
    pub value: u64,
}

impl Probe {
    /// The probe of a process that must not be read.
    pub const NONE: Probe = Probe { address: 0, value: 0 };
}

/// Returns this process's number. Allows the processes of this launcher to read it, if the system requires a
/// permission.
pub fn probe() -> Probe {
    static VALUE: OnceLock<u64> = OnceLock::new();
    let value = VALUE.get_or_init(|| {
        allow_processes_of_the_launcher();
        let mut bytes = [0; 8];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    });
    Probe { address: std::ptr::from_ref(value) as u64, value: *value }
}

/// Allows processes of the launcher to read this process. Yama's scope 1, Ubuntu's default, requires a
/// process to name another process that may trace it. The descendants of the named process may then trace it
/// too.
fn allow_processes_of_the_launcher() {
    let scope = std::fs::read_to_string(Path::new("/proc/sys/kernel/yama/ptrace_scope"));
    if scope.is_ok_and(|scope| scope.trim() == "1")
        && let Some(launcher) = rustix::process::getppid()
        && let Err(cause) = rustix::process::set_ptracer(rustix::process::PTracer::ProcessID(launcher))
    {
        tracing::debug!(%cause, "processes of the launcher may not read this one");
    }
}

/// Returns true if this process can read the number of the process `pid`, and it is the expected one.
pub fn can_read(pid: u32, probe: Probe) -> bool {
    // Miri does not know the call.
    if cfg!(miri) || probe == Probe::NONE {
        return false;
    }
    let mut value = 0_u64;
    // SAFETY: the number has that many bytes.
    let outcome = unsafe { read(pid, probe.address, std::ptr::from_mut(&mut value).cast(), size_of::<u64>()) };
    outcome.is_ok() && value == probe.value && value != 0
}

/// Copies from memory of the process `pid`.
///
/// # Safety
/// `to` is valid for `len_bytes` bytes, and nobody else touches them. Bytes that the other process writes
/// meanwhile may be read in part.
pub unsafe fn read(pid: u32, from: u64, to: *mut u8, len_bytes: usize) -> io::Result<()> {
    transfer(len_bytes, |done| {
        let own = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: len_bytes - done };
        let other = libc::iovec { iov_base: (from + done as u64) as *mut _, iov_len: len_bytes - done };
        // SAFETY: there is one range in each process. The caller has lent the own range, and the kernel
        // checks the other.
        unsafe { libc::process_vm_readv(pid.cast_signed(), &raw const own, 1, &raw const other, 1, 0) }
    })
}

/// Copies to memory of the process `pid`.
///
/// # Safety
/// `from` is valid for `len_bytes` bytes. The other process has lent `len_bytes` bytes at `to`, and nobody
/// else touches them.
pub unsafe fn write(pid: u32, from: *const u8, to: u64, len_bytes: usize) -> io::Result<()> {
    transfer(len_bytes, |done| {
        let own = libc::iovec { iov_base: from.wrapping_add(done).cast_mut().cast(), iov_len: len_bytes - done };
        let other = libc::iovec { iov_base: (to + done as u64) as *mut _, iov_len: len_bytes - done };
        // SAFETY: there is one range in each process, and the caller has lent both.
        unsafe { libc::process_vm_writev(pid.cast_signed(), &raw const own, 1, &raw const other, 1, 0) }
    })
}

/// Calls `some` with the number of bytes done, until all bytes are done.
fn transfer(len_bytes: usize, some: impl Fn(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len_bytes {
        match some(done) {
            count @ 1.. => done += count.cast_unsigned(),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let cause = io::Error::last_os_error();
                if cause.kind() != io::ErrorKind::Interrupted {
                    return Err(cause);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know the call")]
    fn memory_of_a_process_is_read_and_written_and_what_is_not_there_is_an_error() {
        let pid = std::process::id();
        if !can_read(pid, probe()) {
            eprintln!("skipped: this system lets no process read another's memory");
            return;
        }
        assert!(!can_read(pid, Probe { value: 1, ..probe() }) && !can_read(pid, Probe { address: 8, value: 1 }));
        let given: Vec<u8> = (0..70_000_u32).map(|at| at as u8).collect();
        let (mut to, len_bytes) = (vec![0; given.len()], given.len());
        // SAFETY: both have that many bytes.
        unsafe { read(pid, given.as_ptr() as u64, to.as_mut_ptr(), len_bytes).unwrap() };
        assert_eq!(to, given);
        to.fill(0);
        // SAFETY: as above; nobody else has them.
        unsafe { write(pid, given.as_ptr(), to.as_mut_ptr() as u64, len_bytes).unwrap() };
        assert_eq!(to, given);
        // SAFETY: as above; the kernel refuses the address.
        let error = unsafe { read(pid, 4096, to.as_mut_ptr(), len_bytes) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
