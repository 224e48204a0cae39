//! Protects a process's peers and memory from its forked children.
//!
//! A child of `fork` has a copy of this process's memory, its descriptors and the mappings that it shares
//! with peers, but only the thread that forked. So a store belongs to the [`Process`] that made it: in a
//! child its calls are errors and dropping it does nothing ([`OfProcess`]). In the child a handler of
//! `pthread_atfork` closes descriptors that would keep the parent's connections open ([`close_in_child`]),
//! and runs the [`Hooks`] of code that shares memory or handles signals.
//!
//! A child's handler may only do what a signal handler may do: it takes no lock, and no memory from the heap.
//! A child of `vfork` or `posix_spawn` runs no handlers, as it is about to become another program; our
//! descriptors close by themselves there.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::{Error, Result};

/// The number of forks between this process and the first that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// This process's number, so that no system call is needed.
static PID: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u32,
    pid: u32,
}

impl Process {
    /// Returns this process. From now on its children are distinguished from it.
    pub fn this() -> Self {
        watch();
        Process { generation: GENERATION.load(Ordering::Relaxed), pid: PID.load(Ordering::Relaxed) }
    }

    /// Returns true if the caller runs in this process, and not in a forked child of it. Costs one load.
    #[inline]
    pub fn is_here(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.generation
    }

    /// Returns an error in a forked child, which cannot use `what`, such as "this store".
    #[inline]
    pub fn check(self, what: &str) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked { what: what.to_owned(), pid: self.pid }) }
    }
}

/// A value that only the process that made it may end. If a forked child drops it, it is leaked, since its
/// end would wait for threads that the child lacks, or send on the parent's connections.
pub struct OfProcess<T> {
    value: Option<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    /// Binds a value to this process.
    pub fn new(value: T) -> Self {
        OfProcess { value: Some(value), process: Process::this() }
    }

    /// Returns the owning process.
    pub fn process(&self) -> Process {
        self.process
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only `drop` takes it")
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.process.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

/// The functions that are called around a fork. `child` may only do what a signal handler may do.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Called in the parent, before the fork.
    pub prepare: fn(),
    /// Called in the parent, after the fork.
    pub parent: fn(),
    /// Called in the child.
    pub child: fn(),
}

impl Hooks {
    /// Does nothing.
    pub const NONE: Hooks = Hooks { prepare: || (), parent: || (), child: || () };
}

static HOOKS: List<Hooks> = List::new();

/// Runs `hooks` around every fork from now on.
pub fn around_forks(hooks: Hooks) {
    watch();
    HOOKS.push(hooks);
}

/// A descriptor that a child closes, if it is still the same file as when it was registered. There is one
/// entry for each number.
struct Descriptor {
    number: RawFd,
    device: AtomicU64,
    /// The file's inode. It is 0 while the entry is being changed; no file has inode 0.
    inode: AtomicU64,
}

static DESCRIPTORS: List<Descriptor> = List::new();

/// Makes forked children close `descriptor`, so that its peer notices the end of this process at once. This
/// need not be undone: if the number later means another file, children leave it open. Does nothing if the
/// descriptor is not open.
pub fn close_in_child(descriptor: RawFd) {
    watch();
    let Some((device, inode)) = identity(descriptor) else { return };
    let place = DESCRIPTORS.iter().find(|place| place.number == descriptor);
    let place = place.unwrap_or_else(|| {
        DESCRIPTORS.push(Descriptor { number: descriptor, device: AtomicU64::new(0), inode: AtomicU64::new(0) })
    });
    place.inode.store(0, Ordering::Release);
    place.device.store(device, Ordering::Release);
    place.inode.store(inode, Ordering::Release);
}

/// Returns the device and the inode of an open file. Safe in a signal handler.
fn identity(descriptor: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid `stat`; the call fills it or fails, and takes any number.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    (unsafe { libc::fstat(descriptor, &raw mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

/// Registers the handlers, once. They also work in children that fork in turn.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PID.store(std::process::id(), Ordering::Relaxed);
        if cfg!(miri) {
            return;
        }
        // SAFETY: plain functions, which live as long as the library.
        if unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) } != 0 {
            tracing::warn!("forked children of this process cannot be distinguished from it: do not fork");
        }
    });
}

extern "C" fn before() {
    HOOKS.iter().for_each(|hooks| (hooks.prepare)());
}

extern "C" fn after_in_parent() {
    HOOKS.iter().for_each(|hooks| (hooks.parent)());
}

extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    PID.store(std::process::id(), Ordering::Relaxed);
    HOOKS.iter().for_each(|hooks| (hooks.child)());
    for place in DESCRIPTORS.iter() {
        let named = (place.device.load(Ordering::Acquire), place.inode.load(Ordering::Acquire));
        if named.1 != 0 && identity(place.number) == Some(named) {
            // SAFETY: closes the child's copy of a descriptor of ours; its owner is leaked there.
            unsafe { libc::close(place.number) };
            place.inode.store(0, Ordering::Release);
        }
    }
}

/// A list that only grows, for readers that may take no lock. Its elements live for ever.
pub(crate) struct List<T: 'static> {
    first: AtomicPtr<Node<T>>,
}

struct Node<T: 'static> {
    value: T,
    next: Option<&'static Node<T>>,
}

impl<T> List<T> {
    pub(crate) const fn new() -> Self {
        List { first: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(crate) fn push(&self, value: T) -> &'static T {
        let node = Box::into_raw(Box::new(Node { value, next: None }));
        let mut first = self.first.load(Ordering::Acquire);
        loop {
            // SAFETY: the node is this call's own until it is in the list, and every node in it lives for
            // ever.
            unsafe { (*node).next = first.as_ref() };
            match self.first.compare_exchange_weak(first, node, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it is never freed, and nobody changes it any more.
                Ok(_) => return unsafe { &(*node).value },
                Err(other) => first = other,
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: nodes live for ever and are not changed once they are in the list.
        let first: Option<&'static Node<T>> = unsafe { self.first.load(Ordering::Acquire).as_ref() };
        std::iter::successors(first, |node| node.next).map(|node| &node.value)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Runs `work` in a forked child. Returns true if it returned true. It must not allocate, since another
    /// test's thread may hold the allocator's lock. (glibc's own is free in a child.)
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child ends by `_exit` before it returns to the test.
        match unsafe { libc::fork() } {
            0 => {
                let code = i32::from(!work());
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for the child just made.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_child_knows_that_it_is_not_its_parent() {
        let process = Process::this();
        assert!(process.is_here());
        assert!(in_child(|| !process.is_here() && Process::this().is_here()));
        assert!(in_child(|| in_child(|| !process.is_here())));
        let error = Process { generation: u32::MAX, pid: 7 }.check("this store").unwrap_err().to_string();
        assert!(error.starts_with("this store belongs to process 7; a forked child cannot use it\n"), "{error}");
    }

    #[test]
    fn a_child_leaks_what_its_parent_ends() {
        static ENDED: AtomicU32 = AtomicU32::new(0);
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                ENDED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let made = OfProcess::new(Ends);
        let mut place = Some(made);
        assert!(in_child(|| {
            drop(place.take());
            ENDED.load(Ordering::Relaxed) == 0
        }));
        drop(place);
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_childs_copy_of_a_connection_is_closed_and_another_file_of_its_number_is_not() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let number = here.as_raw_fd();
        close_in_child(number);
        assert!(in_child(|| identity(number).is_none()));
        assert!(identity(number).is_some());
        // A child that lives on does not keep the connection open.
        let (mut hold, wait) = UnixStream::pair().unwrap();
        // SAFETY: the child only reads and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: reads a byte into one that is there, then ends the child.
            unsafe {
                libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        drop(here);
        assert_eq!(there.read(&mut [0]).unwrap(), 0, "the child has it open");
        std::io::Write::write_all(&mut hold, &[1]).unwrap();
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the number is free, or another test's; a copy on it would be wrong then, so it is only made
        // if it is free.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
            assert!(in_child(|| identity(number).is_some()));
            // SAFETY: closes the copy just made.
            unsafe { libc::close(number) };
        }
    }
}
