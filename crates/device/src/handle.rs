//! Memory, streams, events and connections with other ranks. Each has one owner, which frees it when it is
//! dropped.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLockReadGuard, RwLockWriteGuard};

use ringpull_base::{Error, Result};

use super::loan::Loan;
use super::{GoOn, Meeting, PinnedHost, Platform, failed};

/// The place of memory.
#[derive(Clone)]
pub enum Home {
    /// On a device.
    Device(usize),
    /// On the host, pinned.
    Host(PinnedHost),
}

/// A range of bytes that devices work on. Its content is undefined until something is written to it.
pub struct Memory {
    platform: Arc<dyn Platform>,
    home: Home,
    address: u64,
    len_bytes: usize,
    /// The owner of memory that is lent to us.
    lender: Option<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Allocates memory of a device.
    pub fn on(platform: &Arc<dyn Platform>, device: usize, len_bytes: usize) -> Result<Arc<Self>> {
        // No library allocates memory of length 0.
        let address = platform.allocate(device, len_bytes.max(1))?;
        let (platform, home) = (Arc::clone(platform), Home::Device(device));
        Ok(Arc::new(Memory { platform, home, address, len_bytes, lender: None }))
    }

    /// Takes foreign memory of a device. Its `lender` is dropped with it.
    pub fn lent(
        platform: &Arc<dyn Platform>,
        device: usize,
        loan: &Loan,
        lender: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>> {
        let address = platform.adopt(device, loan)?;
        let (platform, home) = (Arc::clone(platform), Home::Device(device));
        Ok(Arc::new(Memory { platform, home, address, len_bytes: loan.len_bytes(), lender: Some(lender) }))
    }

    /// Allocates pinned memory of the host.
    pub fn pinned(platform: &Arc<dyn Platform>, len_bytes: usize) -> Result<Arc<Self>> {
        let (address, pinned) = platform.allocate_pinned(len_bytes.max(1))?;
        let (platform, home) = (Arc::clone(platform), Home::Host(pinned));
        Ok(Arc::new(Memory { platform, home, address, len_bytes, lender: None }))
    }

    /// Returns the place of the memory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the device of the memory, if it is on one.
    pub fn device(&self) -> Option<usize> {
        match self.home {
            Home::Device(device) => Some(device),
            Home::Host(_) => None,
        }
    }

    /// Returns the address of the memory's platform.
    pub(super) fn platform_address(&self) -> *const dyn Platform {
        &raw const *self.platform
    }

    /// Returns the first address of the memory, as the platform names it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.home {
            Home::Device(_) if self.lender.is_some() => self.platform.disown(self.address),
            Home::Device(device) => self.platform.free(device, self.address),
            Home::Host(_) => self.platform.free_pinned(self.address),
        }
    }
}

/// A part of some memory.
#[derive(Clone)]
pub struct Slice {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Slice {
    /// The bytes `range` of `memory`.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn of(memory: &Arc<Memory>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= memory.len_bytes, "{range:?} lies within the memory");
        Slice { memory: Arc::clone(memory), range }
    }

    /// All of `memory`.
    pub fn all(memory: &Arc<Memory>) -> Self {
        Self::of(memory, 0..memory.len_bytes)
    }

    /// Returns the device of the memory, if it is on one.
    pub fn device(&self) -> Option<usize> {
        self.memory.device()
    }

    /// The memory it is of.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The bytes of the memory that it is.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A part of this part.
    ///
    /// # Panics
    /// If the range is not within it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.len_bytes(), "{range:?} lies within the slice");
        Self::of(&self.memory, self.range.start + range.start..self.range.start + range.end)
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.memory.address + self.range.start as u64
    }

    /// The size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Returns the bytes, for the host to read. Returns an error if it is not pinned memory, or if a device
    /// may still write it.
    pub fn host_bytes(&self) -> Result<MappedRwLockReadGuard<'_, [u8]>> {
        let pinned = self.pinned()?;
        self.memory.platform.host_access(self, false)?;
        Ok(RwLockReadGuard::map(pinned.read(), |buffer| &buffer.bytes()[self.range.clone()]))
    }

    /// Returns the bytes, for the host to write. Returns an error if it is not pinned memory, or if a device
    /// may still use it.
    pub fn host_bytes_mut(&self) -> Result<MappedRwLockWriteGuard<'_, [u8]>> {
        let pinned = self.pinned()?;
        self.memory.platform.host_access(self, true)?;
        Ok(RwLockWriteGuard::map(pinned.write(), |buffer| &mut buffer.bytes_mut()[self.range.clone()]))
    }

    fn pinned(&self) -> Result<&PinnedHost> {
        match &self.memory.home {
            Home::Host(pinned) => Ok(pinned),
            Home::Device(device) => Err(Error::argument(
                format!("the host would touch memory of {}:{device}", self.memory.platform.name()),
                "copy it to pinned memory first",
            )),
        }
    }
}

/// A queue of one device.
pub struct Stream {
    platform: Arc<dyn Platform>,
    device: usize,
    id: u64,
    owned: bool,
}

impl Stream {
    /// Creates a stream of `device`.
    pub fn on(platform: &Arc<dyn Platform>, device: usize) -> Result<Arc<Self>> {
        let id = platform.create_stream(device)?;
        Ok(Arc::new(Stream { platform: Arc::clone(platform), device, id, owned: true }))
    }

    /// Returns a handle of a foreign stream of `device`. The stream must outlive the handle.
    pub fn foreign(platform: &Arc<dyn Platform>, device: usize, id: u64) -> Arc<Self> {
        Arc::new(Stream { platform: Arc::clone(platform), device, id, owned: false })
    }

    /// Its device.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if another library owns the stream, and queues its later work there.
    pub fn is_foreign(&self) -> bool {
        !self.owned
    }

    /// Records an event at the current end of the stream.
    pub fn record(&self) -> Result<Event> {
        let id = self.platform.record(self)?;
        Ok(Event { platform: Arc::clone(&self.platform), device: self.device, id })
    }

    /// Lets later work of this stream run after `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.platform.wait(self, event)
    }

    /// Lets later work of this stream run after the current work of `other`.
    pub fn follow(&self, other: &Stream) -> Result<()> {
        if self.id == other.id && self.device == other.device { Ok(()) } else { self.wait(&other.record()?) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned {
            self.platform.destroy_stream(self.device, self.id);
        }
    }
}

/// A position in a stream.
pub struct Event {
    platform: Arc<dyn Platform>,
    device: usize,
    id: u64,
}

impl Event {
    /// The device of its stream.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits until the work before the event is done. Blocks the calling thread. The wait also ends with an
    /// error of the device or of a collective under way, and after `limit`. Collectives are then aborted, so
    /// that no stream waits for ever.
    pub fn synchronize(&self, limit: Duration) -> Result<()> {
        self.synchronize_while(limit, &|| Ok(()))
    }

    /// Waits as [`synchronize`](Self::synchronize) does. An error of `go_on` ends the wait too.
    pub fn synchronize_while(&self, limit: Duration, go_on: GoOn<'_>) -> Result<()> {
        let (deadline, spins) = (Instant::now() + limit, AtomicU32::new(0));
        loop {
            let outcome = self.platform.is_done(self).and_then(|done| self.platform.check().map(|()| done));
            match outcome.and_then(|done| if done { Ok(done) } else { go_on().map(|()| done) }) {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() < deadline => pause(&spins),
                Ok(false) => {
                    self.platform.abort();
                    let text = format!("work on {}:{} was not done in {limit:?}", self.platform.name(), self.device);
                    return Err(failed(self.platform.name(), "wait for an event", -1, text));
                }
                Err(cause) => {
                    self.platform.abort();
                    return Err(cause);
                }
            }
        }
    }
}

/// The devices of this process, each joined with the devices of its number in the other ranks.
pub struct JoinedDevices {
    platform: Arc<dyn Platform>,
    id: u64,
}

impl JoinedDevices {
    /// Joins the devices. Blocks until every rank has come; collective.
    pub fn at(platform: &Arc<dyn Platform>, meeting: &Meeting, go_on: GoOn<'_>) -> Result<Self> {
        let id = platform.join(meeting, go_on)?;
        Ok(JoinedDevices { platform: Arc::clone(platform), id })
    }

    /// Returns its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for JoinedDevices {
    fn drop(&mut self) {
        self.platform.leave(self.id);
    }
}

/// Pauses in a wait. Waits are short while data moves and long while peers compute, so this first polls at
/// once, and later leaves the processor to others.
fn pause(spins: &AtomicU32) {
    if spins.fetch_add(1, Ordering::Relaxed) < 200 {
        std::thread::yield_now();
    } else {
        std::thread::park_timeout(Duration::from_micros(50));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.platform.destroy_event(self.device, self.id);
    }
}
