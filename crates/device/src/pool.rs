//! Memory that is reused, because allocating may wait for a whole device, or for the system to pin pages.
//!
//! Lengths are rounded up, and each rounded length is a separate class. Only unused memory is returned to the
//! pool. Memory that a library may still write after an error never is.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::Result;

use super::Platform;
use super::handle::Memory;

/// The place of memory, a device or pinned on the host, and its length.
type Class = (Option<usize>, usize);

/// Memory of one platform between two uses.
#[derive(Default)]
pub struct Pool(Mutex<BTreeMap<Class, Vec<Arc<Memory>>>>);

impl Pool {
    /// Returns memory of at least `len_bytes` on `device`, or pinned on the host. Its content is undefined.
    /// If the pool has none of this class, memory is allocated. That may wait for the device, and is an error
    /// if there is not enough memory.
    pub fn take(&self, platform: &Arc<dyn Platform>, device: Option<usize>, len_bytes: usize) -> Result<Arc<Memory>> {
        let len_bytes = rounded(len_bytes);
        if let Some(kept) = self.0.lock().get_mut(&(device, len_bytes)).and_then(Vec::pop) {
            return Ok(kept);
        }
        match device {
            Some(device) => Memory::on(platform, device, len_bytes),
            None => Memory::pinned(platform, len_bytes),
        }
    }

    /// Takes back memory of [`take`](Self::take). To be called when the host knows that everything that uses
    /// it is done.
    pub fn give(&self, memory: Arc<Memory>) {
        self.0.lock().entry((memory.device(), memory.len_bytes())).or_default().push(memory);
    }
}

/// Rounds a length up to a power of two, and beyond a mebibyte to an eighth of a power of two, so that whole
/// gradients waste less than a quarter of their length.
fn rounded(len_bytes: usize) -> usize {
    const FINE_FROM: usize = 1 << 20;
    let power = len_bytes.next_power_of_two();
    if power <= FINE_FROM { power } else { len_bytes.next_multiple_of(power / 8) }
}

#[cfg(test)]
mod tests {
    use super::super::Simulated;
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again_where_it_lies_and_fits() {
        let (simulated, pool) = (Simulated::new(2), Pool::default());
        let platform: Arc<dyn Platform> = simulated.clone();
        let take = |device, len_bytes| pool.take(&platform, device, len_bytes).unwrap();
        pool.give(take(Some(1), 100));
        assert_eq!(take(Some(1), 128).len_bytes(), 128);
        assert_eq!(simulated.allocations(), 1);
        pool.give(take(Some(1), 100));
        drop((take(Some(0), 100), take(Some(1), 129), take(None, 0), take(Some(1), 65)));
        assert_eq!(simulated.allocations(), 5, "the last alone was there");
    }

    #[test]
    fn large_lengths_waste_less_than_a_quarter() {
        assert_eq!([0, 1, 100, (1 << 20) - 1, 1 << 20].map(rounded), [1, 1, 128, 1 << 20, 1 << 20]);
        for len in [(1 << 20) + 1, 411_041_792, 512 << 20, (512 << 20) + 1] {
            assert!(rounded(len) >= len && rounded(len) - len < len / 4, "{len}");
            assert_eq!(rounded(rounded(len)), rounded(len));
        }
        assert_eq!(rounded(411_041_792), 448 << 20);
    }
}
