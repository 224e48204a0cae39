//! The limit of a worker's unfinished pushes: at most [`PUSHES`] of each key, and [`BYTES`] of a store, not
//! counting the first of each key. Then a push waits, for otherwise the copies of pushed values, and with
//! servers the rounds that wait for a slow worker, would fill the memory of this process or of the servers.
//!
//! Unfinished is a push whose sum or round is not complete, as far as this worker knows. `PUSHES` lets a
//! worker be that many steps ahead of the slowest; a loop that pulls what it pushes, or reads its outputs,
//! never has more than one or two. `BYTES` is several steps of a model of 100 MB, and less than a host's
//! memory; a larger model keeps one step.
//!
//! # Why nobody waits for ever
//!
//! A push waits only for earlier pushes of the same key; the first unfinished one of a key never waits,
//! however many bytes there are. Ranks push every key of a step once, in any order within the step. Say that
//! some rank has come to step s, and none is at an earlier one. A push of step t waits for pushes of step t-1
//! or earlier, so it waits for nothing only while some rank is before step t. No push of a rank at step s
//! does, and so such a rank goes on, until step s is done everywhere. The same holds if all ranks make their
//! calls in one order: then the rank with the fewest calls waits for none.
//!
//! A program of neither kind (one rank pushes "a" ten times and then "b" ten times, another "b" before "a")
//! could end in a circle. So a wait ends after [`SHORTEST`] in any case, and the push is made; each further
//! wait that ends so may take twice as long, up to [`LONGEST`], so that a worker that is late for an hour
//! does not fill the memory all the same.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringpull_base::{Key, Result};

/// Unfinished pushes of a key, beyond which the next one waits.
pub(super) const PUSHES: u64 = 4;

/// Bytes of unfinished pushes of a store, beyond which a push waits whose key has one.
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

/// Returns true if a push of `len_bytes` has to wait: `unfinished` ones of its key, and the bytes of all of
/// the store's.
pub(super) fn is_full(unfinished: u64, unfinished_bytes: impl FnOnce() -> u64, len_bytes: usize) -> bool {
    unfinished >= PUSHES || (unfinished > 0 && unfinished_bytes() + len_bytes as u64 > BYTES)
}

impl Backlog {
    /// Waits until there is room for a push of `key`, but not for ever: `room` says whether there is within a
    /// time.
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
