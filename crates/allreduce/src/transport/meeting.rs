//! Lets ranks meet at counters in memory that they share: no rank goes on before all have come, and writes
//! made before the meeting are visible after it.
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
    /// Adds to it, and returns the value before.
    fn add(&self, value: u32, ordering: Ordering) -> u32;
}

/// A number that ranks may sleep on.
pub(crate) trait SleepCounter: Number {
    /// Sleeps if it still is `value`, until it is woken or for a while.
    fn sleep(&self, value: u32);
    /// Wakes all that sleep.
    fn wake(&self);
}

/// The greatest length of one sleep.
const NAP: Duration = Duration::from_millis(20);

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
}

impl SleepCounter for AtomicU32 {
    fn sleep(&self, value: u32) {
        let nap = Timespec::try_from(NAP).expect("a nap is a valid time");
        match futex::wait(self, futex::Flags::empty(), value, Some(&nap)) {
            Ok(()) | Err(Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR) => {}
            // The system lacks this call: look at intervals instead.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    fn wake(&self) {
        if let Err(cause) = futex::wake(self, futex::Flags::empty(), i32::MAX as u32) {
            // They wake by themselves after a nap.
            tracing::debug!(%cause, "sleeping ranks could not be woken");
        }
    }
}

/// The counters of a place to meet. All begin at zero.
pub(super) struct Meeting<'a, N> {
    /// Ranks that have come to the present meeting.
    pub(super) arrived: &'a N,
    /// Meetings that have taken place.
    pub(super) generation: &'a N,
    /// Ranks that sleep, or are about to.
    pub(super) sleepers: &'a N,
}

impl<N: SleepCounter> Meeting<'_, N> {
    /// Comes to a meeting of `ranks` ranks. `met` publishes the number of meetings that this rank has come
    /// to. Returns the meeting to wait for, unless this was the last rank.
    pub(super) fn come(&self, met: &N, ranks: u32) -> Option<u32> {
        let generation = self.generation.load(Ordering::Acquire);
        met.store(generation.wrapping_add(1), Ordering::Relaxed);
        if self.arrived.add(1, Ordering::AcqRel) + 1 < ranks {
            return Some(generation);
        }
        self.arrived.store(0, Ordering::Relaxed);
        self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.generation.wake();
        }
        None
    }

    /// Waits until the meeting takes place: awake as long as `is_awake` returns true, then asleep. `look` is
    /// called before each sleep, and its error ends the wait.
    pub(super) fn wait<E>(
        &self,
        generation: u32,
        mut is_awake: impl FnMut() -> bool,
        mut look: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            if self.generation.load(Ordering::Acquire) != generation {
                return Ok(());
            }
            if !is_awake() {
                break;
            }
        }
        self.sleepers.add(1, Ordering::SeqCst);
        let mut outcome = Ok(());
        // The rank that stores the next generation sees the sleeper, or the sleeper sees that generation:
        // both are `SeqCst`.
        while outcome.is_ok() && self.generation.load(Ordering::SeqCst) == generation {
            outcome = look();
            if outcome.is_ok() {
                self.generation.sleep(generation);
            }
        }
        self.sleepers.add(u32::MAX, Ordering::SeqCst);
        outcome
    }
}

/// Offers work anew, before a meeting.
pub(super) fn offer(taken: &impl Number) {
    taken.store(0, Ordering::Relaxed);
}

/// The next piece of `pieces` that nobody has taken, between that meeting and the next.
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

    /// A number of loom's, which treats `SeqCst` as acquire and release: a fence before each such access
    /// stands for the rest.
    pub(crate) struct LoomNumber {
        value: loom::sync::atomic::AtomicU32,
        /// The kernel's queue: it compares and sleeps in one step.
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
    }

    impl SleepCounter for LoomNumber {
        /// Never ends by itself: a wake-up that is lost is a deadlock, which loom reports.
        fn sleep(&self, value: u32) {
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
        counters: [LoomNumber; 3],
        met: [LoomNumber; 3],
        taken: LoomNumber,
        done: LoomNumber,
    }

    impl MeetingPlace {
        fn meet(&self, rank: usize, ranks: u32, looks: usize) {
            let [arrived, generation, sleepers] = &self.counters;
            let meeting = Meeting { arrived, generation, sleepers };
            let left = std::cell::Cell::new(looks);
            let is_awake = || {
                thread::yield_now();
                left.replace(left.get().saturating_sub(1)) > 0
            };
            if let Some(generation) = meeting.come(&self.met[rank], ranks) {
                meeting.wait(generation, is_awake, || Ok::<(), ()>(())).unwrap();
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

    /// Writes its own slot, meets, reads all. Accesses that no ordering keeps apart are an error of loom's:
    /// one slot may be filled while the other is read.
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

    /// The faults that these tests have been seen to find: `AcqRel` of `arrived` weakened in any way, a load
    /// of the generation in `wait` weakened to `Relaxed` or from `SeqCst`, the load of `sleepers` weakened
    /// from `SeqCst`, the store of the generation weakened to `Relaxed`, and a last rank that wakes nobody.
    /// They do not find an access that is weakened from `SeqCst` before a load that has kept its own: the
    /// fence of that load stands for both.
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
