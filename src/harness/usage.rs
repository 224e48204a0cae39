//! What a measurement costs beside time: processor seconds, memory, and what a rank uses that only waits.

use std::fs;

use serde::{Deserialize, Serialize};

/// The costs of one operation, averages over the ranks but for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Processor seconds of a rank for each GB (10^9 bytes) of its payload.
    #[serde(rename = "cpu_s_per_GB")]
    pub cpu_s_per_gb: Option<f64>,
    /// The part of a core that a rank used while it waited for a late one.
    pub waiting_cpu: Option<f64>,
    /// The most that any rank's resident memory grew beyond what it held, payload included, before the first iteration.
    pub extra_rss_bytes: Option<u64>,
}

/// Processor seconds of all threads of this process so far.
pub fn cpu_s() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}

/// Watches this process's resident memory from its making on.
#[derive(Debug)]
pub struct Memory {
    before: Option<u64>,
}

impl Memory {
    /// Takes what is resident now as the beginning, and forgets earlier peaks.
    pub fn watch() -> Self {
        // 5 resets the peak. Where that is not allowed, an earlier peak may hide this one: then there is no figure.
        let reset = fs::write("/proc/self/clear_refs", "5").is_ok();
        Memory { before: status_bytes("VmRSS:").filter(|_| reset) }
    }

    /// How far the peak went beyond the beginning.
    pub fn grown_bytes(&self) -> Option<u64> {
        Some(status_bytes("VmHWM:")?.saturating_sub(self.before?))
    }
}

fn status_bytes(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
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
    fn memory_that_was_touched_and_freed_is_remembered() {
        // Other tests of this process free memory meanwhile: once is enough.
        let grown = (0..10).map(|_| {
            let memory = Memory::watch();
            drop(std::hint::black_box(vec![1u8; 64 << 20]));
            memory.grown_bytes()
        });
        let grown: Vec<u64> = grown.flatten().collect();
        assert!(grown.is_empty() || grown.iter().any(|grown| *grown >= 32 << 20), "{grown:?}");
    }
}
