//! Memory, streams, events and meetings with other ranks, with one owner each, who gives them back when
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

/// A run of bytes that devices work on. Its content is not defined until something was written to it.
pub struct Memory {
    platform: Arc<dyn Platform>,
    home: Home,
    address: u64,
    len_bytes: usize,
    /// The owner of memory that is not ours to give back.
    lender: Option<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Memory of a device.
    pub fn on(platform: &Arc<dyn Platform>, device: usize, len_bytes: usize) -> Result<Arc<Self>> {
        // No library gives out memory of no length.
        let address = platform.allocate(device, len_bytes.max(1))?;
        let (platform, home) = (Arc::clone(platform), Home::Device(device));
        Ok(Arc::new(Memory { platform, home, address, len_bytes, lender: None }))
    }

    /// Somebody else's memory of a device, whose `lender` is dropped with it.
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

    /// Pinned memory of the host.
    pub fn pinned(platform: &Arc<dyn Platform>, len_bytes: usize) -> Result<Arc<Self>> {
        let (address, pinned) = platform.allocate_pinned(len_bytes.max(1))?;
        let (platform, home) = (Arc::clone(platform), Home::Host(pinned));
        Ok(Arc::new(Memory { platform, home, address, len_bytes, lender: None }))
    }

    /// Returns the place of the memory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The device it is on, if it is on one.
    pub fn device(&self) -> Option<usize> {
        match self.home {
            Home::Device(device) => Some(device),
            Home::Host(_) => None,
        }
    }

    /// Returns the address of its platform.
    pub(super) fn platform_address(&self) -> *const dyn Platform {
        &raw const *self.platform
    }

    /// Its first address, as the platform names it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
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

    /// The device it is on, if it is on one.
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

    /// Its size.
    pub fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Its bytes, for the host to read. An error if it is not pinned memory, or if a device may still write
    /// it.
    pub fn host_bytes(&self) -> Result<MappedRwLockReadGuard<'_, [u8]>> {
        let pinned = self.pinned()?;
        self.memory.platform.host_access(self, false)?;
        Ok(RwLockReadGuard::map(pinned.read(), |buffer| &buffer.bytes()[self.range.clone()]))
    }

    /// Its bytes, for the host to write. An error if it is not pinned memory, or if a device may still use
    /// it.
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
    /// A new stream of `device`.
    pub fn on(platform: &Arc<dyn Platform>, device: usize) -> Result<Arc<Self>> {
        let id = platform.create_stream(device)?;
        Ok(Arc::new(Stream { platform: Arc::clone(platform), device, id, owned: true }))
    }

    /// Somebody else's stream of `device`, which outlives this.
    pub fn foreign(platform: &Arc<dyn Platform>, device: usize, id: u64) -> Arc<Self> {
        Arc::new(Stream { platform: Arc::clone(platform), device, id, owned: false })
    }

    /// Its device.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if another library owns it, and queues its later work on it.
    pub fn is_foreign(&self) -> bool {
        !self.owned
    }

    /// Marks its present end.
    pub fn record(&self) -> Result<Event> {
        let id = self.platform.record(self)?;
        Ok(Event { platform: Arc::clone(&self.platform), device: self.device, id })
    }

    /// Lets later work of this stream run after `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.platform.wait(self, event)
    }

    /// Lets later work of this stream run after the present work of `other`.
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

/// A place in a stream.
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

    /// Its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits until the work before it is done; blocks the calling thread. An error of the device, or of a
    /// collective that is under way, or `limit`, ends the wait; collectives are then aborted, so that no
    /// stream waits for ever.
    pub fn synchronize(&self, limit: Duration) -> Result<()> {
        self.synchronize_while(limit, &|| Ok(()))
    }

    /// As [`synchronize`](Self::synchronize); an error of `go_on` ends the wait too.
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
    /// Joins them. Blocks until every rank has come; collective.
    pub fn at(platform: &Arc<dyn Platform>, meeting: &Meeting, go_on: GoOn<'_>) -> Result<Self> {
        let id = platform.join(meeting, go_on)?;
        Ok(JoinedDevices { platform: Arc::clone(platform), id })
    }

    /// Its name in the platform.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for JoinedDevices {
    fn drop(&mut self) {
        self.platform.leave(self.id);
    }
}

/// Waits are short while data moves and long while peers compute: first look again at once, then leave the
/// processor to others.
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
