//! Memory that several processes of one host map. It is an unnamed file of the kernel.
//!
//! A process makes a [`Region`] and sends the region's [`Address`] to its peers, which open it. The kernel
//! frees the region when the last process that has it ends, in whatever way, and no name is left anywhere.
//! Pages exist only after they are touched.
//!
//! A forked child of the process is no peer, and must not write the shared memory. It has no mapping of a
//! region (`MADV_DONTFORK`), or a private mapping in its place (`Region::keep_for_children`), and the
//! region's descriptor is closed in the child.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::file_limit;
use crate::forked::{self, OfProcess, Process};

/// The descriptors of the regions that this process has made.
static MADE: Mutex<Vec<(RawFd, Process)>> = Mutex::new(Vec::new());

/// The bytes of memory behind the regions that this process has made, whichever process touched them.
pub fn resident_bytes() -> u64 {
    /// The unit of `st_blocks`, whatever the file system's own.
    const BLOCK_BYTES: u64 = 512;
    let blocks = |(descriptor, process): &(RawFd, Process)| {
        if !process.is_here() {
            return 0;
        }
        // SAFETY: a region takes its descriptor off the list before it closes it.
        let file = unsafe { BorrowedFd::borrow_raw(*descriptor) };
        let file = file.try_clone_to_owned().map(File::from);
        file.and_then(|file| file.metadata()).map_or(0, |found| found.blocks())
    };
    MADE.lock().iter().map(blocks).sum::<u64>() * BLOCK_BYTES
}

/// A mapping of shared memory, readable and writable.
pub struct Region {
    start: NonNull<u8>,
    len_bytes: usize,
    file: OfProcess<OwnedFd>,
    identity: (u64, u64),
}

// SAFETY: a `Region` only hands out its address; who reads and writes there agrees with its peers, threads or
// processes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// The address by which a peer on the same host finds a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The process that has the region open.
    pub pid: u32,
    /// The region's descriptor in that process.
    pub descriptor: u32,
    /// The device and the inode of the file. Another process with that number, for example in another
    /// container, has another file.
    pub identity: (u64, u64),
    /// The length in bytes.
    pub len_bytes: u64,
}

impl Region {
    /// Creates a region of zeros. It is an error if the region is longer than the limit of files (`ulimit
    /// -f`).
    pub fn create(len_bytes: usize) -> io::Result<Self> {
        // A system call: glibc has a function for it since 2.27 only.
        let file = File::from(memfd_create(c"ringpull", MemfdFlags::CLOEXEC)?);
        file_limit::without_signal(|| file.set_len(len_bytes as u64))?;
        let region = Self::map(file, len_bytes)?;
        MADE.lock().push((region.file.as_raw_fd(), region.file.process()));
        Ok(region)
    }

    /// Opens a peer's region, while the peer has it open.
    pub fn open(address: &Address) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", address.pid, address.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != address.identity || found.len() != address.len_bytes {
            return Err(io::Error::other("found another file: the ranks do not see each other's processes"));
        }
        Self::map(file, address.len_bytes as usize)
    }

    fn map(file: File, len_bytes: usize) -> io::Result<Self> {
        let found = file.metadata()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choosing, of a file that is open.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping just made. A core file would contain every rank's memory. If that cannot be
        // avoided, it does.
        if unsafe { libc::madvise(start, len_bytes, libc::MADV_DONTDUMP) } != 0 {
            tracing::debug!(cause = %io::Error::last_os_error(), "shared memory will be in core files");
        }
        // SAFETY: as above.
        if unsafe { libc::madvise(start, len_bytes, libc::MADV_DONTFORK) } != 0 {
            let cause = io::Error::last_os_error();
            // SAFETY: as above; nobody else knows it yet.
            unsafe { libc::munmap(start, len_bytes) };
            return Err(cause);
        }
        forked::close_in_child(file.as_raw_fd());
        let start = NonNull::new(start.cast()).expect("a mapping does not begin at address 0");
        let file = OfProcess::new(OwnedFd::from(file));
        Ok(Region { start, len_bytes, file, identity: (found.dev(), found.ino()) })
    }

    /// Lets forked children have the mapping. A child's handler must then call
    /// [`make_private`](Self::make_private).
    pub(super) fn keep_for_children(&self) -> io::Result<()> {
        // SAFETY: the mapping that `map` made.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.len_bytes, libc::MADV_DOFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Replaces the shared memory by private memory of the child. Called in a forked child's handler. The
    /// private memory has the content of the shared, and shows the parent's later writes to each page that
    /// the child has not written. If the system has no room for it (also if it does not overcommit memory),
    /// the memory cannot be touched.
    pub(super) fn make_private(&self) {
        let (start, flags) = (self.start.as_ptr().cast(), libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces the mapping that `map` made, in one step, in a child whose only thread is here.
        let made = unsafe { libc::mmap(start, self.len_bytes, protection, flags, self.file.as_raw_fd(), 0) };
        if made == libc::MAP_FAILED {
            // SAFETY: as above.
            unsafe { libc::mmap(start, self.len_bytes, libc::PROT_NONE, flags | libc::MAP_ANONYMOUS, -1, 0) };
        }
    }

    /// Reads the bytes from `start` on into `into`, which has zeros. Untouched pages stay untouched.
    pub(super) fn read(&self, start: usize, into: &mut [u8]) -> io::Result<()> {
        let (descriptor, end) = (self.file.as_raw_fd(), start + into.len());
        let mut at = start;
        while at < end {
            // SAFETY: moves the offset of a file that nobody reads by its offset.
            let data = unsafe { libc::lseek(descriptor, at as libc::off_t, libc::SEEK_DATA) };
            let Ok(data) = usize::try_from(data) else {
                let cause = io::Error::last_os_error();
                // There are only holes up to the file's end.
                return if cause.raw_os_error() == Some(libc::ENXIO) { Ok(()) } else { Err(cause) };
            };
            if data >= end {
                return Ok(());
            }
            at = data.max(at);
            // SAFETY: as above.
            let hole = unsafe { libc::lseek(descriptor, at as libc::off_t, libc::SEEK_HOLE) };
            let hole = usize::try_from(hole).map_err(|_| io::Error::last_os_error())?.min(end);
            while at < hole {
                let rest = &mut into[at - start..hole - start];
                // SAFETY: the kernel writes at most the length of `rest` into it.
                let got = unsafe { libc::pread(descriptor, rest.as_mut_ptr().cast(), rest.len(), at as libc::off_t) };
                match usize::try_from(got) {
                    Ok(0) => return Ok(()),
                    Ok(got) => at += got,
                    Err(_) => return Err(io::Error::last_os_error()),
                }
            }
        }
        Ok(())
    }

    /// The region's address, for peers.
    pub fn address(&self) -> Address {
        Address {
            pid: std::process::id(),
            descriptor: self.file.as_raw_fd() as u32,
            identity: self.identity,
            len_bytes: self.len_bytes as u64,
        }
    }

    /// Returns the beginning of the mapping.
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives the pages of a range back to the system. The range must consist of whole pages, and reads as
    /// zeros afterwards.
    pub fn discard(&self, start: usize, len_bytes: usize) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the file is open. A call that the compiler does not see into: it changes memory.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, start as libc::off_t, len_bytes as libc::off_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a child there is another mapping or none, and the descriptor is closed. Both may belong to other
        // code by now.
        if !self.file.process().is_here() {
            return;
        }
        MADE.lock().retain(|(descriptor, _)| *descriptor != self.file.as_raw_fd());
        // SAFETY: the mapping that `map` made, unmapped once.
        if unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) } != 0 {
            tracing::debug!(cause = %io::Error::last_os_error(), "a region stays mapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_region_are_the_same_memory_until_it_is_discarded() {
        let one = Region::create(1 << 20).unwrap();
        let other = Region::open(&one.address()).unwrap();
        assert_ne!(one.start(), other.start());
        // SAFETY: both mappings are a mebibyte, and no other thread knows them.
        unsafe {
            one.start().as_ptr().add(4097).write(7);
            assert_eq!(other.start().as_ptr().add(4097).read(), 7);
            one.discard(0, 1 << 16).unwrap();
            assert_eq!(other.start().as_ptr().add(4097).read(), 0);
        }
    }

    #[test]
    fn a_descriptor_of_another_file_is_not_taken_for_the_region() {
        let one = Region::create(4096).unwrap();
        let other = Region::create(4096).unwrap();
        let wrong = Address { descriptor: other.address().descriptor, ..one.address() };
        assert!(Region::open(&wrong).err().unwrap().to_string().contains("another file"));
    }
    #[test]
    fn a_forked_child_has_neither_the_memory_nor_the_file() {
        let one = Region::create(1 << 16).unwrap();
        let other = Region::open(&one.address()).unwrap();
        // SAFETY: the child only asks what there is, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_gone = |region: &Region| {
                    let is_unmapped = libc::msync(region.start().as_ptr().cast(), 1 << 16, libc::MS_ASYNC) == -1;
                    is_unmapped && libc::fcntl(region.file.as_raw_fd(), libc::F_GETFD) == -1
                };
                libc::_exit(i32::from(!(is_gone(&one) && is_gone(&other))));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
