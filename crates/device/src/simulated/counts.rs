//! Counts of requests to simulated devices, for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Simulated;

#[derive(Default)]
pub(super) struct Counts {
    pub(super) steps: AtomicU64,
    pub(super) allocations: AtomicU64,
    pub(super) crossed_bytes: AtomicU64,
    pub(super) sums_over_ranks: AtomicU64,
}

impl Simulated {
    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.counts.steps.load(Ordering::Relaxed)
    }

    /// Returns the number of allocations, of device memory or of pinned memory.
    pub fn allocations(&self) -> u64 {
        self.counts.allocations.load(Ordering::Relaxed)
    }

    /// Returns the bytes copied between devices and the host.
    pub fn crossed_bytes(&self) -> u64 {
        self.counts.crossed_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of sums of parts over ranks.
    pub fn sums_over_ranks(&self) -> u64 {
        self.counts.sums_over_ranks.load(Ordering::Relaxed)
    }
}
