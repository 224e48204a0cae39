//! A shared window of the ranks of one host. It has counters for barriers, and room for the data that the
//! ranks exchange.
//!
//! Every rank has a *local rank*. Ranks meet (a barrier): no rank passes a meeting before all have come, and
//! writes made before it are visible after it. A rank that waits first yields its core for a moment. It then
//! sleeps in the kernel until the last rank comes to any meeting, so that ranks may outnumber cores. It wakes
//! up now and then to check if the job was stopped or other work has come.
//!
//! Each operation has a *lane*, which its ranks enter and leave. So several operations may be under way, and
//! ranks may begin them in different orders. The first lanes have long slots, and the others have short
//! slots.
//!
//! ```text
//!   which lane is whose | a local rank's beats, one line each | lane 0 | lane 1 | ...
//!   lane: counters | a local rank's state, one line each | a short slot a local rank | slots: 2 a local rank | sums: 2
//! ```
//!
//! One of the two slots may be filled while the other is read. The window is one [`Region`]: it vanishes when
//! its processes end, and its pages take memory only when they are first touched.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpull_base::Awake;
use ringpull_base::buffer::region::{Address, Region};

use crate::transport::Stamp;
use crate::transport::meeting::{self, Bell, Meeting, Tenancies};

/// The most operations that a rank may have under way in the window at once.
pub const MOST_UNDER_WAY: usize = 16;
/// The length of the part of the queue in which a rank looks for operations to begin. The part starts with
/// the first operation that the rank cannot begin yet.
pub const AHEAD: usize = 16;
/// The number of lanes. At most this number of operations have begun on some rank and wait for another rank.
/// Each has one lane at a time. Ranks leave the other lanes without waiting for anything. So an operation
/// finds a lane at once or soon.
pub const LANES: usize = MOST_UNDER_WAY + AHEAD;
/// The number of lanes with long slots. A rank takes the first free lane. So a job with one operation after
/// another uses two lanes, which stay in the cache.
const LONG_LANES: usize = 4;
/// The bytes of a short slot.
pub const SHORT_BYTES: usize = 16 << 10;
/// The bytes of a slot in the lanes that have no long slots.
const SHORTER_SLOT_BYTES: usize = 64 << 10;
/// The least bytes of a slot of the first lanes. Slots are as long as possible while all slots of a lane stay
/// in the last-level cache. The reason is that every piece costs a meeting, and a meeting with a rank that
/// waits for a core takes as long as summing megabytes.
pub const SLOT_BYTES: usize = 256 << 10;
const LONGEST_SLOT_BYTES: usize = 1 << 20;
/// The bytes of all slots and sums of a lane. If slots of the least length need more, a lane has more.
const ALL_SLOTS_BYTES: usize = 8 << 20;

const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// The offsets at the window's beginning, each on its own cache lines. They are those of the lock of the
/// lanes, the bell, the number of ranks that sleep on the bell, the number (plus 1) of a local rank whose
/// memory another rank could not use, the stamps of all lanes, the epochs of all lanes, and each local rank's
/// count of its progress.
const LOCK: usize = 0;
const RINGS: usize = LINE_BYTES;
const SLEEPERS: usize = 2 * LINE_BYTES;
const UNUSABLE: usize = 3 * LINE_BYTES;
const STAMPS: usize = 4 * LINE_BYTES;
const EPOCHS: usize = STAMPS + (LANES * size_of::<u32>()).next_multiple_of(LINE_BYTES);
const BEATS: usize = EPOCHS + (LANES * size_of::<u32>()).next_multiple_of(LINE_BYTES);
/// The offsets at a lane's beginning, each on its own cache line.
const ARRIVED: usize = 0;
const GENERATION: usize = LINE_BYTES;
const LEFT: usize = 2 * LINE_BYTES;
const LOCAL_RANKS: usize = 3 * LINE_BYTES;
/// The offsets within a local rank's state. They are those of the number of meetings in which the rank took
/// part, the number of pieces of its work that are taken, the number that it shows, and the name of its
/// operation.
const MET: usize = 0;
const TAKEN: usize = 4;
const SHOWN: usize = 8;
const NAME: usize = 16;

/// The time for which a waiting rank yields its core again and again before it sleeps. Waking up takes a good
/// part of this time.
const AWAKE: Duration = Duration::from_micros(100);
/// The longest time of a sleep. It is limited because other work may come.
const NAP: Duration = Duration::from_millis(4);
/// The most that one nap adds to the time waited. If a nap took longer, this process was held up, not its
/// peers.
const MOST_COUNTED: Duration = Duration::from_millis(200);

/// The error of a wait in which no rank made progress for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// The local ranks that did not come.
    pub local_ranks: Vec<usize>,
    /// The time for which this rank has waited.
    pub waited: Duration,
}

/// One rank's view of the window.
pub struct Window {
    region: Region,
    local_rank: usize,
    local_size: usize,
    layout: WindowLayout,
}

/// The offsets in a window for a number of local ranks. `short` and `slots` are offsets within a lane.
#[derive(Clone, Copy)]
struct WindowLayout {
    lanes: usize,
    short: usize,
    slots: usize,
    /// The bytes of a slot of the first lanes.
    slot_bytes: usize,
    /// The bytes of each of the first lanes, and of each of the other lanes.
    lane_bytes: [usize; 2],
}

impl WindowLayout {
    fn of(local_size: usize) -> Self {
        let slot_bytes = slot_bytes(local_size);
        let lanes = (BEATS + local_size * LINE_BYTES).next_multiple_of(PAGE_BYTES);
        let short = (LOCAL_RANKS + local_size * LINE_BYTES).next_multiple_of(PAGE_BYTES);
        let slots = short + local_size * SHORT_BYTES;
        let all_slots = |slot_bytes| 2 * (local_size + 1) * slot_bytes;
        // More ranks make a window longer, but not its slots, because it may be made for more ranks than
        // there are.
        let lane_bytes = [all_slots(slot_bytes).max(ALL_SLOTS_BYTES), all_slots(SHORTER_SLOT_BYTES)];
        WindowLayout { lanes, short, slots, slot_bytes, lane_bytes: lane_bytes.map(|bytes| slots + bytes) }
    }

    /// The offset of a lane, and the bytes of its slots.
    fn lane(&self, index: usize) -> (usize, usize) {
        let (long, shorter) = (index.min(LONG_LANES), index.saturating_sub(LONG_LANES));
        let slot_bytes = if index < LONG_LANES { self.slot_bytes } else { SHORTER_SLOT_BYTES };
        (self.lanes + long * self.lane_bytes[0] + shorter * self.lane_bytes[1], slot_bytes)
    }

    fn len_bytes(&self) -> usize {
        self.lane(LANES).0
    }
}

/// Returns the bytes of a slot in a window for this number of local ranks.
fn slot_bytes(local_size: usize) -> usize {
    let equal = ALL_SLOTS_BYTES / (2 * (local_size + 1));
    (equal / SLOT_BYTES * SLOT_BYTES).clamp(SLOT_BYTES, LONGEST_SLOT_BYTES)
}

impl Window {
    /// Creates a window with room for `local_size` ranks.
    pub fn create(local_size: usize) -> io::Result<Region> {
        Region::create(WindowLayout::of(local_size).len_bytes())
    }

    /// Returns `local_rank`'s view of a window that was created for `local_size` or more ranks.
    pub fn over(region: Region, local_rank: usize, local_size: usize) -> io::Result<Self> {
        assert!(local_rank < local_size, "local rank {local_rank} of {local_size}");
        let layout = WindowLayout::of(local_size);
        if region.len_bytes() < layout.len_bytes() {
            return Err(io::Error::other("the window is too small"));
        }
        Ok(Window { region, local_rank, local_size, layout })
    }

    /// The address at which peers find the window.
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

    /// Enters the lane of the operation `stamp`. Returns `None` if no lane is free now. `entered` is this
    /// rank's record of the lanes, which starts with zeros.
    pub fn enter(&self, stamp: Stamp, entered: &mut [u32; LANES]) -> Option<usize> {
        self.tenancies().enter(entered, stamp)
    }

    /// Leaves a lane, after this rank has read all that it needs there.
    pub fn leave(&self, lane: usize) {
        self.tenancies().leave(lane, self.lane(lane).number(LEFT), self.local_size as u32);
    }

    /// One lane of the window, which this rank has entered.
    pub fn lane(&self, index: usize) -> WindowLane<'_> {
        let (start, slot_bytes) = self.layout.lane(index);
        WindowLane { window: self, start, slot_bytes }
    }

    /// Returns the number of meetings that have taken place. A rank reads this number first, then checks
    /// everything for which it waits, and then [waits](WindowWait::wait).
    pub fn rings(&self) -> u32 {
        self.bell().read()
    }

    fn bell(&self) -> Bell<'_, AtomicU32> {
        Bell { rings: self.number(RINGS), sleepers: self.number(SLEEPERS) }
    }

    /// Records that this rank could not use a local rank's memory. All ranks see it after the next meeting,
    /// and the record stays.
    pub fn fail(&self, local_rank: usize) {
        self.number(UNUSABLE).store(local_rank as u32 + 1, Ordering::Relaxed);
    }

    /// Returns the local rank whose memory another rank could not use before the last meeting.
    pub fn failed(&self) -> Option<usize> {
        self.number(UNUSABLE).load(Ordering::Relaxed).checked_sub(1).map(|local_rank| local_rank as usize)
    }

    /// Shows the waiting ranks that this rank makes progress.
    pub fn beat(&self) {
        self.beats(self.local_rank).fetch_add(1, Ordering::Relaxed);
    }

    fn tenancies(&self) -> Tenancies<'_, AtomicU32> {
        #[allow(clippy::cast_ptr_alignment, reason = "every such offset is that of a line of the cache")]
        let all = |offset| {
            // SAFETY: aligned, within the region, and never touched but as these atomic numbers.
            unsafe { std::slice::from_raw_parts(self.at(offset).cast::<AtomicU32>(), LANES) }
        };
        Tenancies { lock: self.number(LOCK), stamps: all(STAMPS), epochs: all(EPOCHS) }
    }

    fn beats(&self, local_rank: usize) -> &AtomicU32 {
        self.number(BEATS + local_rank * LINE_BYTES)
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

/// One rank's view of a lane.
#[derive(Clone, Copy)]
pub struct WindowLane<'a> {
    window: &'a Window,
    start: usize,
    slot_bytes: usize,
}

impl<'a> WindowLane<'a> {
    /// A local rank's short slot, of `SHORT_BYTES`.
    pub fn short_slot(self, local_rank: usize) -> *mut u8 {
        self.at(self.window.layout.short + local_rank * SHORT_BYTES)
    }

    /// The bytes of a slot, and of the room for sums.
    pub fn slot_bytes(self) -> usize {
        self.slot_bytes
    }

    /// A local rank's slot, of [`slot_bytes`](Self::slot_bytes). `turn` counts the uses. Even and odd turns
    /// have different slots.
    pub fn slot(self, turn: usize, local_rank: usize) -> *mut u8 {
        self.at(self.window.layout.slots + (turn % 2 * self.window.local_size + local_rank) * self.slot_bytes)
    }

    /// The room for sums, of [`slot_bytes`](Self::slot_bytes).
    pub fn sums(self, turn: usize) -> *mut u8 {
        self.slot(0, 2 * self.window.local_size + turn % 2)
    }

    /// Shows a number to the other local ranks, to be read after the next meeting.
    pub fn show(self, number: u64) {
        self.long(self.window.local_rank, SHOWN).store(number, Ordering::Relaxed);
    }

    /// Returns the number that a local rank showed before the last meeting.
    pub fn see(self, local_rank: usize) -> u64 {
        self.long(local_rank, SHOWN).load(Ordering::Relaxed)
    }

    /// Names this rank's operation, before its first meeting.
    pub fn name(self, name: u64) {
        self.long(self.window.local_rank, NAME).store(name, Ordering::Relaxed);
    }

    /// Returns a local rank that has given the operation another name. To be called after the first meeting.
    pub fn differs(self, name: u64) -> Option<usize> {
        (0..self.window.local_size).find(|local_rank| self.long(*local_rank, NAME).load(Ordering::Relaxed) != name)
    }

    /// Offers this local rank's work anew. Any rank may take pieces of it after the next meeting. All pieces
    /// are taken before the second meeting.
    pub fn offer(self) {
        meeting::offer(self.taken(self.window.local_rank));
    }

    /// Takes the next of the `pieces` of a local rank's work. Returns `None` if all are taken.
    pub fn take(self, local_rank: usize, pieces: usize) -> Option<usize> {
        meeting::take(self.taken(local_rank), pieces)
    }

    /// Takes part in the next meeting. Returns the meeting to wait for, or `None` if this was the last rank.
    pub fn come(self) -> Option<u32> {
        let Window { local_rank, local_size, .. } = *self.window;
        self.window.beat();
        self.meeting().come(self.met(local_rank), local_size as u32, &self.window.bell())
    }

    /// Returns true if a meeting has taken place.
    pub fn has_met(self, meeting: u32) -> bool {
        self.meeting().has_met(meeting)
    }

    fn meeting(self) -> Meeting<'a, AtomicU32> {
        let [arrived, generation] = [ARRIVED, GENERATION].map(|offset| self.number(offset));
        Meeting { arrived, generation }
    }

    fn met(self, local_rank: usize) -> &'a AtomicU32 {
        self.number(LOCAL_RANKS + local_rank * LINE_BYTES + MET)
    }

    fn taken(self, local_rank: usize) -> &'a AtomicU32 {
        self.number(LOCAL_RANKS + local_rank * LINE_BYTES + TAKEN)
    }

    fn long(self, local_rank: usize, place: usize) -> &'a AtomicU64 {
        // SAFETY: aligned, within the region, and never touched but as this atomic number.
        unsafe { AtomicU64::from_ptr(self.at(LOCAL_RANKS + local_rank * LINE_BYTES + place).cast()) }
    }

    fn number(self, offset: usize) -> &'a AtomicU32 {
        self.window.number(self.start + offset)
    }

    fn at(self, offset: usize) -> *mut u8 {
        self.window.at(self.start + offset)
    }
}

/// One wait of a rank, for a meeting or for a lane.
pub struct WindowWait {
    awake: Awake,
    looked: Instant,
    /// The time for which no rank has come to a meeting or made progress.
    waited: Duration,
    activity: Option<u32>,
}

impl WindowWait {
    /// Begins a wait.
    pub fn begin() -> Self {
        WindowWait { awake: Awake::new(AWAKE), looked: Instant::now(), waited: Duration::ZERO, activity: None }
    }

    /// Waits a little, awake at first, then asleep. Returns at once if a meeting has taken place since
    /// `rings` was [read](Window::rings). `meeting` has the lane and the number of the meeting for which this
    /// rank waits, or is `None` if the rank waits for a free lane. Returns true if it has slept in vain.
    /// Returns an error if no rank came to any meeting or made progress for `limit`.
    pub fn wait(
        &mut self,
        window: &Window,
        rings: u32,
        meeting: Option<(usize, u32)>,
        limit: Duration,
    ) -> Result<bool, Absence> {
        if window.bell().look(rings, || self.awake.is_awake()) {
            return Ok(false);
        }
        window.bell().nap(rings, NAP);
        let now = Instant::now();
        self.waited += now.duration_since(self.looked).min(MOST_COUNTED);
        self.looked = now;
        let local_ranks = || 0..window.local_size;
        let beats = local_ranks().map(|local_rank| window.beats(local_rank).load(Ordering::Relaxed));
        let activity = beats.fold(0, u32::wrapping_add);
        if self.activity.replace(activity).is_some_and(|before| before != activity) {
            self.waited = Duration::ZERO;
        }
        if self.waited <= limit {
            return Ok(window.rings() == rings);
        }
        let is_missing = |local_rank: &usize| {
            let came = |(lane, number): (usize, u32)| {
                window.lane(lane).met(*local_rank).load(Ordering::Relaxed) == number.wrapping_add(1)
            };
            *local_rank != window.local_rank && !meeting.is_some_and(came)
        };
        Err(Absence { local_ranks: local_ranks().filter(is_missing).collect(), waited: self.waited })
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

    /// Takes part in the next meeting of a lane and waits for it.
    fn meet(window: &Window, lane: usize, limit: Duration) -> Result<(), Absence> {
        let Some(meeting) = window.lane(lane).come() else { return Ok(()) };
        let mut wait = WindowWait::begin();
        loop {
            let rings = window.rings();
            if window.lane(lane).has_met(meeting) {
                return Ok(());
            }
            wait.wait(window, rings, Some((lane, meeting)), limit)?;
        }
    }

    #[test]
    fn numbers_shown_before_a_meeting_are_seen_after_it_in_every_lane() {
        std::thread::scope(|scope| {
            for window in windows(5) {
                scope.spawn(move || {
                    let mut entered = [0; LANES];
                    for round in 0..200u64 {
                        let mut wait = WindowWait::begin();
                        let lane = loop {
                            let rings = window.rings();
                            match window.enter(round as u32 / 3, &mut entered) {
                                Some(lane) => break lane,
                                None => drop(wait.wait(&window, rings, None, LIMIT).unwrap()),
                            }
                        };
                        window.lane(lane).show(round * 10 + window.local_rank() as u64);
                        meet(&window, lane, LIMIT).unwrap();
                        for local_rank in 0..window.local_size() {
                            assert_eq!(window.lane(lane).see(local_rank), round * 10 + local_rank as u64);
                        }
                        window.leave(lane);
                    }
                });
            }
        });
    }

    #[test]
    fn ranks_that_begin_operations_in_different_orders_find_each_other() {
        let views = windows(2);
        let mut entered = [[0; LANES]; 2];
        let stamps: Vec<Stamp> = (100..100 + LANES as Stamp).collect();
        let first: Vec<_> = stamps.iter().map(|stamp| views[0].enter(*stamp, &mut entered[0])).collect();
        assert!(first.iter().all(Option::is_some));
        assert_eq!(views[0].enter(7, &mut entered[0]), None, "all lanes are taken");
        for (stamp, lane) in stamps.iter().zip(&first).rev() {
            assert_eq!(views[1].enter(*stamp, &mut entered[1]), *lane);
        }
        first.iter().flatten().for_each(|lane| views[0].leave(*lane));
        assert_eq!(views[0].enter(7, &mut entered[0]), None, "the other rank has left none");
        views[1].leave(first[3].unwrap());
        assert_eq!(views[0].enter(7, &mut entered[0]), first[3]);
    }

    #[test]
    fn who_does_not_come_in_time_is_named() {
        let views = windows(3);
        let limit = Duration::from_millis(300);
        std::thread::scope(|scope| {
            let waiting = [0, 2].map(|local_rank| {
                let window = &views[local_rank];
                scope.spawn(move || meet(window, 0, limit))
            });
            for waiting in waiting {
                assert!(matches!(waiting.join().unwrap(), Err(Absence { local_ranks, .. }) if local_ranks == [1]));
            }
        });
    }

    #[test]
    fn the_places_of_the_window_do_not_overlap() {
        for local_size in [1, 2, 3, 8, 20] {
            // A window may have been made for more ranks than the host has.
            let region = Window::create(local_size + 3).unwrap();
            let window = Window::over(region, 0, local_size).unwrap();
            let len_bytes = window.region.len_bytes();
            let mut places: Vec<(usize, usize)> = vec![(window.at(0) as usize, BEATS + local_size * LINE_BYTES)];
            for lane in (0..LANES).map(|lane| window.lane(lane)) {
                let slot_bytes = lane.slot_bytes();
                places.push((lane.at(0) as usize, LOCAL_RANKS + local_size * LINE_BYTES));
                places.extend((0..2).map(|turn| (lane.sums(turn) as usize, slot_bytes)));
                for local_rank in 0..local_size {
                    places.push((lane.short_slot(local_rank) as usize, SHORT_BYTES));
                    places.extend((0..2).map(|turn| (lane.slot(turn, local_rank) as usize, slot_bytes)));
                }
            }
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(places.last().is_some_and(|place| place.0 + place.1 <= window.at(0) as usize + len_bytes));
        }
    }

    #[test]
    fn the_fewer_ranks_the_longer_a_slot_and_all_of_them_stay_in_a_cache() {
        assert_eq!([1, 2, 3, 8, 15, 64].map(slot_bytes).map(|bytes| bytes >> 10), [1024, 1024, 1024, 256, 256, 256]);
    }
}
