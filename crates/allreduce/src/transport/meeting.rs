//! Barriers (meetings) of ranks, with counters in memory that the ranks share. No rank goes on before all
//! have come, and writes made before the meeting are visible after it. Each operation has a lane for its
//! meetings: its first rank takes a free lane, and the last rank that leaves frees the lane.
//!
//! The counters are a trait, so that the tests run this code under `loom`, which tries every order that the
//! memory model allows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

/// A number that several threads or processes share.
pub(crate) trait Number {
    fn load(&self, ordering: Ordering) -> u32;
    fn store(&self, value: u32, ordering: Ordering);
    /// Adds to the number. Returns the value that it had before.
    fn add(&self, value: u32, ordering: Ordering) -> u32;
    /// Sets the number to 1 if it is 0. Returns true if it was 0.
    fn lock(&self) -> bool;
}

/// A number for whose change ranks may sleep.
pub(crate) trait SleepCounter: Number {
    /// Sleeps until it is woken, for at most `longest`. Returns at once if the number is no longer `value`.
    fn sleep(&self, value: u32, longest: Duration);
    /// Wakes all ranks that sleep on this number.
    fn wake(&self);
}

impl Number for AtomicU32 {
    fn load(&self, ordering: Ordering) -> u32 {
        self.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        self.store(value, ordering);
    }

    fn add(&self, value: u32, ordering: Ordering) -> u32 {
        self.fetch_add(value, ordering)
    }

    fn lock(&self) -> bool {
        self.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl SleepCounter for AtomicU32 {
    fn sleep(&self, value: u32, longest: Duration) {
        let nap = Timespec::try_from(longest).expect("a nap is a valid time");
        match futex::wait(self, futex::Flags::empty(), value, Some(&nap)) {
            Ok(()) | Err(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR) => {}
            // The system lacks this call, so look at intervals instead.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    fn wake(&self) {
        if let Err(cause) = futex::wake(self, futex::Flags::empty(), i32::MAX as u32) {
            // The ranks wake up by themselves after a nap.
            tracing::debug!(%cause, "sleeping ranks could not be woken");
        }
    }
}

/// The counters of a place to meet. All start at zero.
pub(super) struct Meeting<'a, N> {
    /// The number of ranks that have come to the current meeting.
    pub(super) arrived: &'a N,
    /// The number of meetings that have taken place.
    pub(super) generation: &'a N,
}

impl<N: SleepCounter> Meeting<'_, N> {
    /// Takes part in a meeting of `ranks` ranks. Stores in `met` the number of meetings in which this rank
    /// has taken part. The last rank that comes rings the `bell`. Returns the meeting to wait for, or `None`
    /// for the last rank.
    pub(super) fn come(&self, met: &N, ranks: u32, bell: &Bell<'_, N>) -> Option<u32> {
        let generation = self.generation.load(Ordering::Acquire);
        met.store(generation.wrapping_add(1), Ordering::Relaxed);
        if self.arrived.add(1, Ordering::AcqRel) + 1 < ranks {
            return Some(generation);
        }
        self.arrived.store(0, Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        bell.ring();
        None
    }

    /// Returns true if the meeting has taken place.
    pub(super) fn has_met(&self, generation: u32) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }
}

/// The counters that notify all waiting ranks of any meeting that has taken place. All start at zero. A rank
/// reads the bell, checks everything for which it waits, and then waits for the bell to ring again.
pub(super) struct Bell<'a, N> {
    /// The number of times that the bell was rung.
    pub(super) rings: &'a N,
    /// The number of ranks that sleep or are about to sleep.
    pub(super) sleepers: &'a N,
}

impl<N: SleepCounter> Bell<'_, N> {
    /// Returns the number of times that the bell was rung so far.
    pub(super) fn read(&self) -> u32 {
        self.rings.load(Ordering::Acquire)
    }

    fn ring(&self) {
        self.rings.add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.rings.wake();
        }
    }

    /// Looks at the bell as long as `is_awake` returns true. Returns true if the bell has rung since `read`.
    pub(super) fn look(&self, read: u32, mut is_awake: impl FnMut() -> bool) -> bool {
        loop {
            if self.read() != read {
                return true;
            }
            if !is_awake() {
                return false;
            }
        }
    }

    /// Sleeps until the bell rings, for at most `longest`. Returns at once if the bell has rung since `read`.
    pub(super) fn nap(&self, read: u32, longest: Duration) {
        self.sleepers.add(1, Ordering::SeqCst);
        // Either the rank that rings sees the sleeper, or the sleeper sees the ring, because both accesses
        // are `SeqCst`.
        if self.rings.load(Ordering::SeqCst) == read {
            self.rings.sleep(read, longest);
        }
        self.sleepers.add(u32::MAX, Ordering::SeqCst);
    }
}

/// The counters that assign lanes to operations: a stamp and an epoch for each lane. All start at zero.
pub(super) struct Tenancies<'a, N> {
    /// The lock, which a rank holds while it takes a lane.
    pub(super) lock: &'a N,
    /// The stamps of the operations.
    pub(super) stamps: &'a [N],
    /// The epoch of each lane. It is odd while an operation has the lane, and each operation in the lane has
    /// a different epoch.
    pub(super) epochs: &'a [N],
}

/// The number of times that a rank tries the lock before it does something else.
const LOCK_LOOKS: usize = if cfg!(test) { 1 } else { 1000 };

impl<N: Number> Tenancies<'_, N> {
    /// Enters the lane of the operation `stamp`, or takes a free lane for it. Returns the lane's index, or
    /// `None` if no lane is available now. `entered` has the epoch in which this rank was last in each lane.
    /// The rank never enters a lane twice in one epoch, because a later operation may have the same stamp.
    pub(super) fn enter(&self, entered: &mut [u32], stamp: u32) -> Option<usize> {
        for look in 1.. {
            if let Some(index) = self.find(entered, stamp) {
                return Some(index);
            }
            // The rank that has the lock releases it after a few loads and stores, unless it loses its core.
            match self.lock.lock() {
                true => break,
                false if look == LOCK_LOOKS => return None,
                false => std::hint::spin_loop(),
            }
        }
        let found = self.find(entered, stamp).or_else(|| {
            let index = self.epochs.iter().position(|epoch| epoch.load(Ordering::Acquire) % 2 == 0)?;
            self.stamps[index].store(stamp, Ordering::Relaxed);
            entered[index] = self.epochs[index].add(1, Ordering::Release).wrapping_add(1);
            Some(index)
        });
        self.lock.store(0, Ordering::Release);
        found
    }

    /// Enters the lane of an operation, if it has one. The operation keeps the lane until this rank too has
    /// left it.
    fn find(&self, entered: &mut [u32], stamp: u32) -> Option<usize> {
        let lanes = self.epochs.iter().zip(self.stamps).zip(entered);
        lanes.enumerate().find_map(|(index, ((epoch, own), entered))| {
            let epoch = epoch.load(Ordering::Acquire);
            let is_it = epoch % 2 == 1 && epoch != *entered && own.load(Ordering::Relaxed) == stamp;
            is_it.then(|| {
                *entered = epoch;
                index
            })
        })
    }

    /// Leaves a lane. `left` counts the ranks that have left it. The lane is free when all `ranks` ranks have
    /// left.
    pub(super) fn leave(&self, lane: usize, left: &N, ranks: u32) {
        if left.add(1, Ordering::AcqRel) + 1 == ranks {
            left.store(0, Ordering::Relaxed);
            self.epochs[lane].add(1, Ordering::Release);
        }
    }
}

/// Offers work anew, before a meeting.
pub(super) fn offer(taken: &impl Number) {
    taken.store(0, Ordering::Relaxed);
}

/// Takes the next of the offered `pieces`. Returns `None` if all are taken. To be called between the first
/// and the second meeting after the offer.
pub(super) fn take(taken: &impl Number, pieces: usize) -> Option<usize> {
    let piece = taken.add(1, Ordering::Relaxed) as usize;
    (piece < pieces).then_some(piece)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// A number of loom. Loom treats `SeqCst` as acquire and release, so a fence before each such access
    /// supplies the rest.
    pub(crate) struct LoomNumber {
        value: loom::sync::atomic::AtomicU32,
        /// The kernel's queue, which compares and sleeps in one step.
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Default for LoomNumber {
        fn default() -> Self {
            let value = loom::sync::atomic::AtomicU32::new(0);
            LoomNumber { value, queue: Mutex::new(()), woken: Condvar::new() }
        }
    }

    fn fence(ordering: Ordering) -> Ordering {
        if ordering == Ordering::SeqCst {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
        ordering
    }

    impl Number for LoomNumber {
        fn load(&self, ordering: Ordering) -> u32 {
            self.value.load(fence(ordering))
        }

        fn store(&self, value: u32, ordering: Ordering) {
            self.value.store(value, fence(ordering));
        }

        fn add(&self, value: u32, ordering: Ordering) -> u32 {
            self.value.fetch_add(value, fence(ordering))
        }

        fn lock(&self) -> bool {
            self.value.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }
    }

    impl SleepCounter for LoomNumber {
        /// Sleeps without a limit, so that a lost wake-up is a deadlock, which loom reports.
        fn sleep(&self, value: u32, _longest: Duration) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Acquire) == value {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        fn wake(&self) {
            drop(self.queue.lock().unwrap());
            self.woken.notify_all();
        }
    }

    #[derive(Default)]
    struct MeetingPlace {
        counters: [LoomNumber; 4],
        met: [LoomNumber; 3],
        taken: LoomNumber,
        done: LoomNumber,
    }

    impl MeetingPlace {
        fn meet(&self, rank: usize, ranks: u32, looks: usize) {
            let [arrived, generation, rings, sleepers] = &self.counters;
            let (meeting, bell) = (Meeting { arrived, generation }, Bell { rings, sleepers });
            let left = std::cell::Cell::new(looks);
            let is_awake = || {
                thread::yield_now();
                left.replace(left.get().saturating_sub(1)) > 0
            };
            let Some(generation) = meeting.come(&self.met[rank], ranks, &bell) else { return };
            loop {
                let read = bell.read();
                if meeting.has_met(generation) {
                    return;
                }
                if !bell.look(read, is_awake) {
                    bell.nap(read, Duration::MAX);
                }
            }
        }
    }

    /// Runs each rank as a thread in every order that loom finds, with a limited number of preemptions.
    fn ranks(
        ranks: usize,
        preemptions: usize,
        work: impl Fn(usize, &MeetingPlace, &[UnsafeCell<()>]) + Copy + Send + Sync + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let slots: Vec<UnsafeCell<()>> = (0..2 * ranks).map(|_| UnsafeCell::new(())).collect();
            let shared = Arc::new((MeetingPlace::default(), slots));
            let spawn = |rank: usize| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work(rank, &shared.0, &shared.1))
            };
            let threads: Vec<_> = (1..ranks).map(spawn).collect();
            work(0, &shared.0, &shared.1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Each rank writes its own slot, meets, and reads all slots. Loom reports accesses that are not ordered.
    /// One slot may be filled while the other is read.
    fn rounds(count: u32, ranks: usize, looks: usize) -> impl Fn(usize, &MeetingPlace, &[UnsafeCell<()>]) + Copy {
        move |rank, place, slots| {
            for round in 0..count {
                let slot = |rank: usize| &slots[round as usize % 2 * ranks + rank];
                slot(rank).with_mut(drop);
                place.meet(rank, ranks as u32, looks);
                for other in 0..ranks {
                    slot(other).with(drop);
                }
            }
        }
    }

    /// Two lanes. Each has a place to meet, and a slot for each of two ranks.
    #[derive(Default)]
    struct TwoLanes {
        lock: LoomNumber,
        stamps: [LoomNumber; 2],
        epochs: [LoomNumber; 2],
        left: [LoomNumber; 2],
        places: [MeetingPlace; 2],
    }

    impl TwoLanes {
        fn tenancies(&self) -> Tenancies<'_, LoomNumber> {
            Tenancies { lock: &self.lock, stamps: &self.stamps, epochs: &self.epochs }
        }
    }

    /// Runs operations one after another on two ranks, with equal or different stamps. Each rank writes its
    /// own slot of the lane, meets, reads the other rank's slot, and leaves.
    fn operations(stamps: [u32; 3]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let slots: Vec<(UnsafeCell<()>, LoomNumber)> =
                (0..4).map(|_| (UnsafeCell::new(()), LoomNumber::default())).collect();
            let shared = Arc::new((TwoLanes::default(), slots));
            let work = move |rank: usize, (lanes, slots): &(TwoLanes, Vec<(UnsafeCell<()>, LoomNumber)>)| {
                let mut entered = [0; 2];
                for (at, stamp) in (1..).zip(stamps) {
                    let lane = loop {
                        match lanes.tenancies().enter(&mut entered, stamp) {
                            Some(lane) => break lane,
                            None => thread::yield_now(),
                        }
                    };
                    let slot = |rank: usize| &slots[2 * lane + rank];
                    slot(rank).0.with_mut(drop);
                    slot(rank).1.store(at, Ordering::Relaxed);
                    lanes.places[lane].meet(rank, 2, 0);
                    slot(1 - rank).0.with(drop);
                    assert_eq!(slot(1 - rank).1.load(Ordering::Relaxed), at);
                    lanes.tenancies().leave(lane, &lanes.left[lane], 2);
                }
            };
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || work(1, &other));
            work(0, &shared);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_rank_that_is_ahead_takes_another_lane_for_the_next_operation_of_the_same_stamp() {
        operations([7; 3]);
    }

    #[test]
    fn ranks_find_each_other_in_the_lane_of_their_operation() {
        operations([u32::MAX, 0, 1]);
    }

    /// These tests fail if `AcqRel` of `arrived` is weakened in any way, or if the last rank wakes nobody.
    /// They do not fail if an access is weakened from `SeqCst` before a load that is still `SeqCst`, because
    /// the fence of that load orders both.
    #[test]
    fn writes_before_a_meeting_are_visible_after_it_and_no_rank_sleeps_through_it() {
        ranks(2, 3, rounds(3, 2, 0));
    }

    #[test]
    fn nor_does_one_of_three_ranks() {
        ranks(3, 2, rounds(1, 3, 0));
    }

    #[test]
    fn who_looks_for_the_meeting_sees_the_same_as_who_sleeps() {
        ranks(2, 3, rounds(2, 2, 2));
    }

    #[test]
    fn every_piece_of_offered_work_is_taken_once() {
        ranks(2, 3, |rank, place, slots| {
            if rank == 0 {
                offer(&place.taken);
            }
            place.meet(rank, 2, 0);
            let mut count = 0;
            while let Some(piece) = take(&place.taken, 3) {
                slots[piece].with_mut(drop);
                count += 1;
            }
            place.done.add(count, Ordering::Relaxed);
            place.meet(rank, 2, 0);
            slots[..3].iter().for_each(|slot| slot.with(drop));
            assert_eq!(place.done.load(Ordering::Relaxed), 3);
        });
    }
}
