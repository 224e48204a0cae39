//! The limit of a worker's unfinished pushes. There may be [`PUSHES`] of each key, and [`BYTES`] of a store,
//! not counting the first push of each key. Beyond that a push waits. Otherwise the copies of pushed values
//! would fill the memory of this process, and with servers the rounds that wait for a slow worker would fill
//! the servers' memory.
//!
//! A push is unfinished if its sum or round is not complete, as far as this worker knows. `PUSHES` lets a
//! worker be that number of steps ahead of the slowest worker. A loop that pulls each key that it pushes, or
//! reads its outputs, never has more than one or two unfinished pushes. `BYTES` is enough for several steps
//! of a model of 100 MB, and less than a host's memory. A larger model has at most one step unfinished.
//!
//! # Why nobody waits for ever
//!
//! A push waits only for earlier pushes of its key. The first unfinished push of a key never waits, whatever
//! the number of bytes. Ranks push every key of a step once, in any order within the step. Let s be the
//! earliest step at which some rank is. A push of step t waits for pushes of step t-1 or earlier, so it waits
//! in vain only while some rank is before step t. A push of a rank at step s therefore does not wait in vain,
//! and such a rank goes on until step s is done everywhere. The conclusion also holds if all ranks make their
//! calls in one order: the rank with the fewest calls then waits for no other rank.
//!
//! In any other program, ranks could wait for each other in a circle. An example is a program in which one
//! rank pushes "a" ten times and then "b" ten times, and another rank pushes "b" before "a". So a wait ends
//! after [`SHORTEST`] in any case, and the push is made. Each further wait that ends in this way may take
//! twice as long as the last, up to [`LONGEST`]. So the memory is not filled even if a worker is late for an
//! hour.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringpull_base::{Key, Result};

/// The number of unfinished pushes of a key at which the next push waits.
pub(super) const PUSHES: u64 = 4;

/// The bytes of unfinished pushes of a store beyond which a push waits if its key has an unfinished push.
pub(super) const BYTES: u64 = 1 << 30;

/// The longest wait of a push, at first and later.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

/// The state of a store's waits.
#[derive(Default)]
pub(super) struct Backlog {
    /// The number of waits in a row that have ended without room.
    vain: AtomicU32,
}

/// Returns true if a push of `len_bytes` has to wait. `unfinished` is the number of its key's unfinished
/// pushes, and `unfinished_bytes` returns the bytes of all unfinished pushes of the store.
pub(super) fn is_full(unfinished: u64, unfinished_bytes: impl FnOnce() -> u64, len_bytes: usize) -> bool {
    unfinished >= PUSHES || (unfinished > 0 && unfinished_bytes() + len_bytes as u64 > BYTES)
}

impl Backlog {
    /// Waits until there is room for a push of `key`, but not for ever. `room` waits for at most the given
    /// time, and returns true if there is room.
    pub(super) fn wait(&self, key: &Key, mut room: impl FnMut(Duration) -> Result<bool>) -> Result<()> {
        if room(Duration::ZERO)? {
            return Ok(());
        }
        let vain = self.vain.load(Ordering::Relaxed);
        let limit = SHORTEST.saturating_mul(1 << vain.min(8)).min(LONGEST);
        if room(limit)? {
            self.vain.store(0, Ordering::Relaxed);
        } else {
            self.vain.store(vain.saturating_add(1), Ordering::Relaxed);
            tracing::debug!(%key, ?limit, "pushed although earlier pushes of the key are not done");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_push_of_a_key_never_waits_and_others_by_their_number_and_by_bytes() {
        let all = usize::try_from(BYTES).unwrap();
        assert!(!is_full(0, || u64::MAX - 1, 1));
        assert!(!is_full(1, || BYTES - 8, 8) && is_full(1, || BYTES - 8, 9));
        assert!(!is_full(PUSHES - 1, || 0, all) && is_full(PUSHES, || 0, 0));
    }

    #[test]
    fn waits_in_vain_end_and_become_longer_until_one_is_not() {
        let (backlog, key) = (Backlog::default(), Key::from("k"));
        let mut limits = Vec::new();
        let vain = |limits: &mut Vec<Duration>| {
            let room = |limit: Duration| {
                limits.extend((!limit.is_zero()).then_some(limit));
                Ok(false)
            };
            backlog.wait(&key, room).unwrap();
        };
        (0..6).for_each(|_| vain(&mut limits));
        backlog.wait(&key, |limit| Ok(!limit.is_zero())).unwrap();
        vain(&mut limits);
        let seconds: Vec<u64> = limits.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 60, 60, 5]);
    }
}
