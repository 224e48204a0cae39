//! Memory that several processes of one host map: an unnamed file of the kernel's.
//!
//! A process makes a [`Region`] and tells its peers the region's [`Address`], which they open. The kernel frees it with
//! the last process that has it, however that ends: no name is left anywhere. Pages exist once they are touched.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::file_limit;

/// The descriptors of the regions that this process has made.
static MADE: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// The bytes of memory behind the regions that this process has made, whoever touched them.
pub fn resident_bytes() -> u64 {
    /// The unit of `st_blocks`, whatever the file system's own.
    const BLOCK_BYTES: u64 = 512;
    let blocks = |descriptor: &RawFd| {
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
    file: OwnedFd,
    identity: (u64, u64),
}

// SAFETY: a `Region` only hands out its address; who reads and writes there agrees with its peers, threads or processes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Where a peer on the same host finds a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The process that has it open.
    pub pid: u32,
    /// Its descriptor there.
    pub descriptor: u32,
    /// Device and inode of the file: another process of that number, in another container say, has another file.
    pub identity: (u64, u64),
    /// Its length.
    pub len_bytes: u64,
}

impl Region {
    /// A new region of zeros. Longer than files may be (`ulimit -f`), it is an error.
    pub fn create(len_bytes: usize) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let descriptor = unsafe { libc::memfd_create(c"ringpull".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        file_limit::without_signal(|| file.set_len(len_bytes as u64))?;
        let region = Self::map(file, len_bytes)?;
        MADE.lock().push(region.file.as_raw_fd());
        Ok(region)
    }

    /// A peer's region, while that peer has it open.
    pub fn open(address: &Address) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", address.pid, address.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != address.identity || found.len() != address.len_bytes {
            return Err(io::Error::other("another file is there: the ranks do not see each other's processes"));
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
        // SAFETY: the mapping just made. A core file would hold every rank's memory; if it cannot be kept out, it is.
        if unsafe { libc::madvise(start, len_bytes, libc::MADV_DONTDUMP) } != 0 {
            tracing::debug!(cause = %io::Error::last_os_error(), "shared memory will be in core files");
        }
        let start = NonNull::new(start.cast()).expect("a mapping does not begin at address 0");
        Ok(Region { start, len_bytes, file: file.into(), identity: (found.dev(), found.ino()) })
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

    /// Where it is mapped.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives the pages of a range back to the system; it reads as zeros afterwards. The range is of whole pages.
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
        MADE.lock().retain(|descriptor| *descriptor != self.file.as_raw_fd());
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
}
