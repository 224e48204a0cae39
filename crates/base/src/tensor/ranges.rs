//! The locks on memory of other libraries, by address.
//!
//! Tensors over our own memory share it by clones of one handle, so they share its lock. Memory of another
//! library may come anew with every call: two tensors may be over one array, or over views of it. So a guard
//! of such a tensor holds, besides the tensor's own lock, the range of addresses. A range that is written
//! overlaps no other held range. Ranges that are read may overlap each other. A thread that needs a held
//! range waits for it, as for the lock of a tensor.
//!
//! An access costs a lookup in a sorted set of the held ranges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::lent::{READ, StoreLoan};

/// Addresses of memory, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    start: usize,
    end: usize,
}

impl Range {
    /// `len_bytes` bytes from `start`, unless there are none.
    pub(super) fn of(start: usize, len_bytes: usize) -> Option<Self> {
        (len_bytes > 0).then(|| Range { start, end: start.saturating_add(len_bytes) })
    }

    pub(super) fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns the power of two of the range's length, rounded down.
    fn power(self) -> u32 {
        (self.end - self.start).max(1).ilog2()
    }
}

/// A range that is held until this is dropped.
pub(super) struct RangeLock {
    range: Range,
    is_written: bool,
    number: u64,
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        table.remove(self.range, self.is_written, self.number);
        HELD.fetch_sub(1, Relaxed);
        let is_awaited = table.waiting > 0;
        drop(table);
        if is_awaited {
            FREED.notify_all();
        }
    }
}

/// Waits until the range can be held, but not beyond `deadline`, if there is one. After the deadline returns
/// the holder of a part of the range.
pub(super) fn hold(
    range: Range,
    is_written: bool,
    lent: &Arc<StoreLoan>,
    deadline: Option<Instant>,
) -> Result<RangeLock, Arc<StoreLoan>> {
    let mut table = TABLE.lock();
    wait(&mut table, range, is_written, deadline)?;
    let number = table.insert(range, is_written, lent);
    HELD.fetch_add(1, Relaxed);
    Ok(RangeLock { range, is_written, number })
}

/// Waits until the range could be held, but not beyond `deadline`. Returns true if it could be. Another
/// thread may hold it since then.
pub(super) fn is_free(range: Range, is_written: bool, deadline: Instant) -> bool {
    // Usually no range is held at all.
    HELD.load(Relaxed) == 0 || wait(&mut TABLE.lock(), range, is_written, Some(deadline)).is_ok()
}

fn wait(
    table: &mut MutexGuard<'_, HeldRanges>,
    range: Range,
    is_written: bool,
    deadline: Option<Instant>,
) -> Result<(), Arc<StoreLoan>> {
    /// The time after which a holder's store is notified again. It is needed because a tensor is locked
    /// before it is lent.
    const AGAIN: Duration = Duration::from_millis(50);
    while let Some((number, holder)) = table.conflict(range, is_written) {
        if table.is_of_another_process() {
            continue;
        }
        // The table is unlocked meanwhile, because a store may release ranges when it is notified.
        MutexGuard::unlocked(table, || holder.come_for(READ));
        if table.conflict(range, is_written).is_none_or(|(now, _)| now != number) {
            continue;
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Err(holder);
        }
        let until = now + AGAIN;
        table.waiting += 1;
        let _wait = crate::waits::wait();
        FREED.wait_until(table, deadline.map_or(until, |deadline| deadline.min(until)));
        table.waiting -= 1;
    }
    Ok(())
}

static TABLE: Mutex<HeldRanges> = Mutex::new(HeldRanges::new());
/// The number of ranges that are held.
static HELD: AtomicUsize = AtomicUsize::new(0);
static FREED: Condvar = Condvar::new();

struct Holder {
    number: u64,
    end: usize,
    lent: Arc<StoreLoan>,
}

/// The ranges that are held.
struct HeldRanges {
    /// The written ranges, by their start. They are disjoint.
    written: BTreeMap<usize, Holder>,
    /// The read ranges, by the power of two of their length and by their start. Among ranges of one power,
    /// those that overlap a given range begin close to it, however long other ranges are.
    read: BTreeMap<(u32, usize, u64), Holder>,
    /// The number of ranges of each power of two.
    powers: [u32; usize::BITS as usize],
    /// The number of ranges that were ever held.
    last: u64,
    /// The process that held the first range.
    process: u32,
    /// The number of threads that wait for a range.
    waiting: usize,
}

impl HeldRanges {
    const fn new() -> Self {
        HeldRanges {
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            powers: [0; usize::BITS as usize],
            last: 0,
            process: 0,
            waiting: 0,
        }
    }

    /// Returns true if this table is a copy from the process that forked this one. The threads that held
    /// ranges do not exist here, so the table must be emptied.
    fn is_of_another_process(&mut self) -> bool {
        let (process, last) = (std::process::id(), self.last);
        let is_copy = self.process != process;
        if is_copy {
            *self = HeldRanges { last, process, ..HeldRanges::new() };
        }
        is_copy
    }

    /// Returns the number and the tensor of a holder that conflicts with `range`.
    fn conflict(&self, range: Range, is_written: bool) -> Option<(u64, Arc<StoreLoan>)> {
        let written = self.written.range(..range.end).next_back().map(|(_, holder)| holder);
        let written = written.filter(|holder| holder.end > range.start);
        let reading = || {
            if !is_written || self.read.is_empty() {
                return None;
            }
            let powers = self.powers.iter().zip(0u32..).filter(|(count, _)| **count > 0);
            powers
                .flat_map(|(_, power)| {
                    let first = range.start.saturating_sub(2usize.checked_shl(power).unwrap_or(usize::MAX));
                    self.read.range((power, first, 0)..(power, range.end, 0))
                })
                .map(|(_, holder)| holder)
                .find(|holder| holder.end > range.start)
        };
        written.or_else(reading).map(|holder| (holder.number, Arc::clone(&holder.lent)))
    }

    fn insert(&mut self, range: Range, is_written: bool, lent: &Arc<StoreLoan>) -> u64 {
        if self.last == 0 {
            self.process = std::process::id();
        }
        self.last += 1;
        let holder = Holder { number: self.last, end: range.end, lent: Arc::clone(lent) };
        if is_written {
            self.written.insert(range.start, holder);
        } else {
            self.powers[range.power() as usize] += 1;
            self.read.insert((range.power(), range.start, self.last), holder);
        }
        self.last
    }

    fn remove(&mut self, range: Range, is_written: bool, number: u64) {
        if is_written {
            // In a forked process the range may have been removed before, and another may be in its place.
            if self.written.get(&range.start).is_some_and(|holder| holder.number == number) {
                self.written.remove(&range.start);
            }
        } else if self.read.remove(&(range.power(), range.start, number)).is_some() {
            self.powers[range.power() as usize] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern, the same in every run.
    fn random(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize
    }

    #[test]
    fn a_range_conflicts_with_what_is_held_as_in_a_plain_list() {
        let (mut table, mut held) = (HeldRanges::new(), Vec::<(Range, bool, u64)>::new());
        let lent = Arc::<StoreLoan>::default();
        let mut state = 1;
        for _ in 0..20_000 {
            let length = 1 + random(&mut state) % (1 << (random(&mut state) % 9));
            let range = Range::of(random(&mut state) % 2000, length).unwrap();
            let is_written = random(&mut state).is_multiple_of(2);
            let conflicts = |(other, other_is_written, _): &&(Range, bool, u64)| {
                other.overlaps(range) && (is_written || *other_is_written)
            };
            let found = table.conflict(range, is_written).map(|(number, _)| number);
            assert_eq!(found.is_some(), held.iter().any(|one| conflicts(&one)), "{range:?} {is_written} in {held:?}");
            assert!(found.is_none_or(|number| held.iter().filter(conflicts).any(|one| one.2 == number)));
            if found.is_none() {
                held.push((range, is_written, table.insert(range, is_written, &lent)));
            }
            if held.len() > 40 || (found.is_some() && !held.is_empty()) {
                let (range, is_written, number) = held.swap_remove(random(&mut state) % held.len());
                table.remove(range, is_written, number);
            }
        }
        for (range, is_written, number) in held {
            table.remove(range, is_written, number);
        }
        assert!(table.written.is_empty() && table.read.is_empty() && table.powers == [0; usize::BITS as usize]);
    }

    #[test]
    fn a_forked_process_does_not_wait_for_what_its_parent_held() {
        let (mut table, lent, range) = (HeldRanges::new(), Arc::default(), Range::of(8, 8).unwrap());
        let parents = table.insert(range, true, &lent);
        assert!(!table.is_of_another_process() && table.conflict(range, false).is_some());
        table.process += 1;
        assert!(table.is_of_another_process() && table.conflict(range, true).is_none());
        let own = table.insert(range, true, &lent);
        table.remove(range, true, parents);
        assert_eq!(table.conflict(range, true).map(|(number, _)| number), Some(own));
    }

    #[test]
    fn no_bytes_are_no_range() {
        assert_eq!(Range::of(8, 0), None);
    }
}
