//! The costs of a measurement besides its time: processor seconds, memory, and the processor use of waiting
//! ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ringpull_base::buffer::region;

use crate::hardware::field;
use crate::statistics::Summary;

/// The costs of one operation: averages over the ranks, except for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Processor seconds of a rank for each GB (10^9 bytes) of its payload.
    #[serde(rename = "cpu_s_per_GB")]
    pub cpu_s_per_gb: Option<f64>,
    /// The part of a core that a rank used while it waited for a late rank.
    pub waiting_cpu: Option<f64>,
    /// The largest growth of a rank's memory since before the first iteration, without its neighbours' memory
    /// that it maps. It is read during the warm-up and at the end.
    pub extra_rss_bytes: Option<u64>,
    /// The bytes of optimizer states on the rank that has the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

impl Usage {
    /// The costs of several jobs: the median of their processor time, and the most memory.
    pub fn over_jobs(jobs: &[Usage]) -> Usage {
        let median = |of: fn(&Usage) -> Option<f64>| {
            let known: Vec<f64> = jobs.iter().filter_map(of).collect();
            Summary::of(&known).map(|summary| summary.median)
        };
        Usage {
            cpu_s_per_gb: median(|job| job.cpu_s_per_gb),
            waiting_cpu: median(|job| job.waiting_cpu),
            extra_rss_bytes: jobs.iter().filter_map(|job| job.extra_rss_bytes).max(),
            state_bytes: jobs.iter().filter_map(|job| job.state_bytes).max(),
        }
    }
}

/// Processor seconds of all threads of this process so far.
pub fn cpu_s() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}

/// Watches the growth of this process's memory, without its neighbours' memory that it maps.
#[derive(Debug)]
pub struct Memory {
    before: Option<u64>,
    peak: Arc<AtomicU64>,
    /// The channel that the watching thread waits on. Dropping it ends the thread.
    watched: Option<Sender<()>>,
}

impl Memory {
    /// Begins to watch. A thread reads the memory every few milliseconds, which costs several percent of a
    /// core: call [`stop`](Self::stop) before anything is timed.
    pub fn watch() -> Self {
        /// A shorter peak may be missed.
        const INTERVAL: Duration = Duration::from_millis(5);
        let (watched, end) = channel();
        let peak = Arc::new(AtomicU64::new(0));
        let highest = Arc::clone(&peak);
        let watch = move || {
            while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                highest.fetch_max(held_bytes().unwrap_or(0), Ordering::Relaxed);
            }
        };
        let spawned = std::thread::Builder::new().name("ringpull-memory".to_owned()).spawn(watch);
        if let Err(cause) = &spawned {
            tracing::debug!(%cause, "memory is not watched");
        }
        Memory { before: held_bytes().filter(|_| spawned.is_ok()), peak, watched: Some(watched) }
    }

    /// Ends the thread. Afterwards only the memory at the end counts.
    pub fn stop(&mut self) {
        self.watched = None;
    }

    /// The growth from the beginning to the peak.
    pub fn grown_bytes(&self) -> Option<u64> {
        Some(held_bytes()?.max(self.peak.load(Ordering::Relaxed)).saturating_sub(self.before?))
    }
}

fn held_bytes() -> Option<u64> {
    let anonymous = field("/proc/self/status", "RssAnon")?;
    let kib: u64 = anonymous.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024 + region::resident_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = cpu_s();
        while cpu_s() <= before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn memory_that_was_used_and_freed_counts() {
        // Other tests of this process may free memory meanwhile, so one success of ten is enough.
        let grown = (0..10).map(|_| {
            let memory = Memory::watch();
            let held = std::hint::black_box(vec![1u8; 64 << 20]);
            std::thread::sleep(Duration::from_millis(50));
            drop(held);
            memory.grown_bytes()
        });
        let grown: Vec<u64> = grown.flatten().collect();
        assert!(grown.iter().any(|grown| *grown >= 32 << 20), "{grown:?}");
    }
}
