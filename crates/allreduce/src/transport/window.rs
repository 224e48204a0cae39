//! A shared window of the ranks of one host: a place to meet, and room for the data that they show each
//! other.
//!
//! Every rank has a *local rank*. Ranks meet: none passes a meeting before all have come, and writes made
//! before it are visible after it. A rank that waits gives its core away for a moment. It then sleeps in the
//! kernel until the last rank comes, so that ranks may outnumber cores. It wakes now and then to see if the
//! job was stopped.
//!
//! ```text
//!   counters | a local rank's state, one line each | short slots: 2 a local rank | slots: 2 a local rank | sums: 2
//! ```
//!
//! Of the two slots, one may be filled while the other is read. The window is one [`Region`]: nothing is left
//! of it when its processes end.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpull_base::Awake;
use ringpull_base::buffer::region::{Address, Region};

use crate::transport::meeting::{self, Meeting};

/// The bytes of a short slot.
pub const SHORT_BYTES: usize = 16 << 10;
/// The least bytes of a slot. A slot is long, as far as all slots stay in the last cache: every piece costs a
/// meeting, and a meeting with a rank that waits for a core costs as much as summing megabytes.
pub const SLOT_BYTES: usize = 256 << 10;
const LONGEST_SLOT_BYTES: usize = 1 << 20;
/// The bytes of all slots and places for sums, unless their least is more.
const ALL_SLOTS_BYTES: usize = 8 << 20;

const LINE_BYTES: usize = 64;
/// The counters, each on a line of its own.
const ARRIVED: usize = 0;
const GENERATION: usize = LINE_BYTES;
const SLEEPERS: usize = 2 * LINE_BYTES;
/// The local rank, from 1, whose memory another rank could not use; 0 if there is none.
const UNUSABLE: usize = 3 * LINE_BYTES;
const LOCAL_RANKS: usize = 4 * LINE_BYTES;
/// The places within a local rank's state: the number of meetings it came to, the number of times it made
/// progress, the number it shows, the number of pieces of its work that are taken, and the names of its
/// present operation and of the one before.
const MET: usize = 0;
const BEATS: usize = 4;
const SHOWN: usize = 8;
const TAKEN: usize = 16;
const NAMES: usize = 24;

/// The time for which a waiting rank gives its core away again and again before it sleeps: to wake up takes a
/// good part of that time.
const AWAKE: Duration = Duration::from_micros(100);
/// The longest time that counts as a nap. A nap is far shorter; a longer time is the absence of this process,
/// not of its peers.
const LONGEST_NAP: Duration = Duration::from_millis(200);

/// The reason for which a meeting did not take place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// The job was stopped.
    Stopped,
    /// These local ranks did not come, and no rank made progress for this long.
    Missing {
        /// The local ranks.
        local_ranks: Vec<usize>,
        /// The time that it has waited.
        waited: Duration,
    },
}

/// One rank's view of the window.
pub struct Window {
    region: Region,
    local_rank: usize,
    local_size: usize,
    short: usize,
    slots: usize,
    sums: usize,
    slot_bytes: usize,
}

/// Returns the bytes of a slot in a window of this many local ranks.
fn slot_bytes(local_size: usize) -> usize {
    let equal = ALL_SLOTS_BYTES / (2 * (local_size + 1));
    (equal / SLOT_BYTES * SLOT_BYTES).clamp(SLOT_BYTES, LONGEST_SLOT_BYTES)
}

impl Window {
    /// A new window with room for `local_size` ranks.
    pub fn create(local_size: usize) -> io::Result<Region> {
        Region::create(Self::len_bytes(local_size))
    }

    /// The view from `local_rank` of a window that was created for `local_size` or more ranks.
    pub fn over(region: Region, local_rank: usize, local_size: usize) -> io::Result<Self> {
        assert!(local_rank < local_size, "local rank {local_rank} of {local_size}");
        if region.len_bytes() < Self::len_bytes(local_size) {
            return Err(io::Error::other("the window is too small"));
        }
        let short = (LOCAL_RANKS + local_size * LINE_BYTES).next_multiple_of(4096);
        let slots = (short + 2 * local_size * SHORT_BYTES).next_multiple_of(4096);
        let slot_bytes = slot_bytes(local_size);
        Ok(Window {
            region,
            local_rank,
            local_size,
            short,
            slots,
            sums: slots + 2 * local_size * slot_bytes,
            slot_bytes,
        })
    }

    fn len_bytes(local_size: usize) -> usize {
        let counters = (LOCAL_RANKS + local_size * LINE_BYTES).next_multiple_of(4096);
        (counters + 2 * local_size * SHORT_BYTES).next_multiple_of(4096)
            + (2 * (local_size + 1) * SLOT_BYTES).max(ALL_SLOTS_BYTES)
    }

    /// The address at which peers find it.
    pub fn address(&self) -> Address {
        self.region.address()
    }

    /// This rank's local rank.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The number of local ranks.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// A local rank's short slot, of `SHORT_BYTES`; `turn` counts the uses.
    pub fn short_slot(&self, turn: usize, local_rank: usize) -> *mut u8 {
        self.at(self.short + (turn % 2 * self.local_size + local_rank) * SHORT_BYTES)
    }

    /// The bytes of a slot, and of the place for sums.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// A local rank's slot, of [`slot_bytes`](Self::slot_bytes).
    pub fn slot(&self, turn: usize, local_rank: usize) -> *mut u8 {
        self.at(self.slots + (turn % 2 * self.local_size + local_rank) * self.slot_bytes)
    }

    /// The place for sums, of [`slot_bytes`](Self::slot_bytes).
    pub fn sums(&self, turn: usize) -> *mut u8 {
        self.at(self.sums + turn % 2 * self.slot_bytes)
    }

    /// Shows a number to the other local ranks, to be read after the next meeting.
    pub fn show(&self, number: u64) {
        self.shown(self.local_rank).store(number, Ordering::Relaxed);
    }

    /// Returns the number that a local rank showed before the last meeting.
    pub fn see(&self, local_rank: usize) -> u64 {
        self.shown(local_rank).load(Ordering::Relaxed)
    }

    /// Names this rank's operation number `turn`, before its first meeting.
    pub fn name(&self, turn: usize, name: u64) {
        self.name_of(turn, self.local_rank).store(name, Ordering::Relaxed);
    }

    /// Returns a local rank that has given its operation number `turn` another name. To be called between the
    /// operation's first meeting and the next operation.
    pub fn differs(&self, turn: usize, name: u64) -> Option<usize> {
        (0..self.local_size).find(|local_rank| self.name_of(turn, *local_rank).load(Ordering::Relaxed) != name)
    }

    fn name_of(&self, turn: usize, local_rank: usize) -> &AtomicU64 {
        self.long(LOCAL_RANKS + local_rank * LINE_BYTES + NAMES + turn % 2 * 8)
    }

    /// Lets all ranks know after the next meeting, for good, that this one could not use a local rank's
    /// memory.
    pub fn fail(&self, local_rank: usize) {
        self.number(UNUSABLE).store(local_rank as u32 + 1, Ordering::Relaxed);
    }

    /// The local rank whose memory another rank could not use before the last meeting.
    pub fn failed(&self) -> Option<usize> {
        self.number(UNUSABLE).load(Ordering::Relaxed).checked_sub(1).map(|local_rank| local_rank as usize)
    }

    /// Offers this local rank's work anew. Any rank may take it after the next meeting, and all of it is
    /// taken before the one after.
    pub fn offer(&self) {
        meeting::offer(self.taken(self.local_rank));
    }

    /// The next piece of a local rank's work, of `pieces`, that no rank has taken.
    pub fn take(&self, local_rank: usize, pieces: usize) -> Option<usize> {
        meeting::take(self.taken(local_rank), pieces)
    }

    /// Shows the waiting ranks that this one makes progress.
    pub fn beat(&self) {
        self.number(LOCAL_RANKS + self.local_rank * LINE_BYTES + BEATS).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns when every local rank has called it the same number of times as this one. Returns an error
    /// soon after `stop` is set, or if for `limit` no rank came or made progress. After an error the window
    /// cannot be used.
    pub fn meet(&self, stop: &AtomicBool, limit: Duration) -> Result<(), Absence> {
        let [arrived, generation, sleepers] = [ARRIVED, GENERATION, SLEEPERS].map(|offset| self.number(offset));
        let meeting = Meeting { arrived, generation, sleepers };
        let Some(generation) = meeting.come(self.met(self.local_rank), self.local_size as u32) else { return Ok(()) };
        let mut awake = Awake::new(AWAKE);
        let mut patience = None;
        meeting.wait(
            generation,
            || awake.is_awake(),
            || {
                if stop.load(Ordering::Acquire) {
                    return Err(Absence::Stopped);
                }
                patience.get_or_insert_with(|| Inactivity::new(self)).look(self, generation, limit)
            },
        )
    }

    /// Returns a number that changes whenever a local rank comes or beats.
    fn activity(&self) -> u32 {
        (0..self.local_size).fold(0u32, |sum, local_rank| {
            let beats = self.number(LOCAL_RANKS + local_rank * LINE_BYTES + BEATS).load(Ordering::Relaxed);
            sum.wrapping_add(beats).wrapping_add(self.met(local_rank).load(Ordering::Relaxed))
        })
    }

    fn met(&self, local_rank: usize) -> &AtomicU32 {
        self.number(LOCAL_RANKS + local_rank * LINE_BYTES + MET)
    }

    fn taken(&self, local_rank: usize) -> &AtomicU32 {
        self.number(LOCAL_RANKS + local_rank * LINE_BYTES + TAKEN)
    }

    fn shown(&self, local_rank: usize) -> &AtomicU64 {
        self.long(LOCAL_RANKS + local_rank * LINE_BYTES + SHOWN)
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: aligned, within the region, and never touched but as this atomic number.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    fn number(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned, within the region, and never touched but as this atomic number.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: every offset asked for is within the region, which `over` has checked to be long enough.
        unsafe { self.region.start().as_ptr().add(offset) }
    }
}

/// The time that a rank has waited while none came or made progress.
struct Inactivity {
    waited: Duration,
    activity: u32,
    looked: Instant,
}

impl Inactivity {
    fn new(window: &Window) -> Self {
        Inactivity { waited: Duration::ZERO, activity: window.activity(), looked: Instant::now() }
    }

    fn look(&mut self, window: &Window, generation: u32, limit: Duration) -> Result<(), Absence> {
        let now = Instant::now();
        self.waited += now.duration_since(self.looked).min(LONGEST_NAP);
        self.looked = now;
        let present = window.activity();
        if present != self.activity {
            (self.activity, self.waited) = (present, Duration::ZERO);
        }
        if self.waited <= limit {
            return Ok(());
        }
        let came = generation.wrapping_add(1);
        let missing = |local_rank: &usize| window.met(*local_rank).load(Ordering::Relaxed) != came;
        Err(Absence::Missing { local_ranks: (0..window.local_size).filter(missing).collect(), waited: self.waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn windows(count: usize) -> Vec<Window> {
        let region = Window::create(count).unwrap();
        let address = region.address();
        let mut views = vec![Window::over(region, 0, count).unwrap()];
        views.extend(
            (1..count).map(|local_rank| Window::over(Region::open(&address).unwrap(), local_rank, count).unwrap()),
        );
        views
    }

    #[test]
    fn counters_published_before_a_meeting_are_visible_after_it() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for window in windows(5) {
                let stop = &stop;
                scope.spawn(move || {
                    for round in 0..200u64 {
                        window.show(round * 10 + window.local_rank() as u64);
                        window.meet(stop, LIMIT).unwrap();
                        for local_rank in 0..window.local_size() {
                            assert_eq!(window.see(local_rank), round * 10 + local_rank as u64);
                        }
                        window.meet(stop, LIMIT).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_stop_ends_a_meeting_that_somebody_never_comes_to() {
        let views = windows(2);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| views[0].meet(&stop, LIMIT));
            stop.store(true, Ordering::Release);
            assert_eq!(waiting.join().unwrap(), Err(Absence::Stopped));
        });
    }

    #[test]
    fn who_does_not_come_in_time_is_named() {
        let views = windows(3);
        let stop = AtomicBool::new(false);
        let limit = Duration::from_millis(300);
        std::thread::scope(|scope| {
            let (one, other) =
                (scope.spawn(|| views[0].meet(&stop, limit)), scope.spawn(|| views[2].meet(&stop, limit)));
            for waiting in [one, other] {
                assert!(
                    matches!(waiting.join().unwrap(), Err(Absence::Missing { local_ranks, .. }) if local_ranks == [1])
                );
            }
        });
    }

    #[test]
    fn the_places_of_the_window_do_not_overlap() {
        for local_size_of_window in [1, 2, 3, 8, 20] {
            // A window may have been made for more ranks than the host has.
            let region = Window::create(local_size_of_window + 3).unwrap();
            let window = Window::over(region, 0, local_size_of_window).unwrap();
            let (slot_bytes, len_bytes) = (window.slot_bytes(), window.region.len_bytes());
            let counters = LOCAL_RANKS + local_size_of_window * LINE_BYTES;
            let mut places: Vec<(usize, usize)> = vec![(window.at(0) as usize, counters)];
            for turn in 0..2 {
                places.push((window.sums(turn) as usize, slot_bytes));
                for local_rank in 0..local_size_of_window {
                    places.push((window.short_slot(turn, local_rank) as usize, SHORT_BYTES));
                    places.push((window.slot(turn, local_rank) as usize, slot_bytes));
                }
            }
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(places[places.len() - 1].0 + slot_bytes <= window.at(0) as usize + len_bytes);
        }
    }

    #[test]
    fn the_fewer_ranks_the_longer_a_slot_and_all_of_them_stay_in_a_cache() {
        assert_eq!([1, 2, 3, 8, 15, 64].map(slot_bytes).map(|bytes| bytes >> 10), [1024, 1024, 1024, 256, 256, 256]);
    }
}
