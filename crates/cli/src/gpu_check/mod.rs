//! The checks of `scripts/gpu-check` on a machine with GPUs: every kernel compared with the reference,
//! collectives, ranks that share a GPU, and the speed. On simulated devices it runs all checks except the
//! speed.

mod speed;
mod stores;

pub(crate) use speed::UNIT;
pub(crate) use stores::rank_of_a_job;

use std::time::Duration;

use serde::Serialize;

use ringpull_base::Result;
use ringpull_device::Survey;

/// A check and its result.
#[derive(Debug, Serialize)]
pub(crate) struct GpuCheck {
    pub name: String,
    pub found: String,
    /// `None` if this machine cannot run the check.
    pub passed: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Speed {
    pub name: String,
    /// The bytes that one run reads and writes.
    pub bytes: u64,
    pub seconds: Vec<f64>,
    /// The median, in bytes per second. For a collective it is the bus bandwidth, as nccl-tests define it.
    pub bytes_per_s: f64,
    /// The speed divided by its limit. The limit is the measured copy on the device; for staging, its slower
    /// stage; for collectives, the copy from device to device.
    pub share: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct GpuFindings {
    pub devices: Vec<String>,
    pub survey: Survey,
    pub checks: Vec<GpuCheck>,
    /// The measurements; empty over simulated devices.
    pub speeds: Vec<Speed>,
}

impl GpuFindings {
    /// Checks the devices of this name, and measures them with buffers of `bytes` bytes.
    pub(crate) fn gather(name: &str, bytes: usize) -> Result<Self> {
        let devices = ringpull_device::open(name)?;
        let operations = ringpull_device::check_operations(&devices, bytes).into_iter();
        let mut checks: Vec<GpuCheck> = operations
            .map(|(name, outcome)| check(name, outcome.map(|()| "the reference's bits".to_owned())))
            .collect();
        checks.extend(stores::checks(name, &devices));
        let speeds = if name.starts_with("sim") { Vec::new() } else { speed::measure(name, &devices, bytes)? };
        Ok(GpuFindings {
            devices: (0..devices.count()).map(|device| devices.platform().describe(device)).collect(),
            survey: ringpull_device::survey(),
            checks,
            speeds,
        })
    }

    pub(crate) fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed != Some(false))
    }

    /// The findings as text.
    pub(crate) fn table(&self) -> String {
        let mut lines: Vec<String> = self.devices.iter().map(|device| format!("device          {device}")).collect();
        lines.push(format!("driver          {}", self.survey.driver));
        lines.push(format!("NCCL            {}", self.survey.nccl));
        lines.push(format!("NVRTC           {}", self.survey.nvrtc));
        lines.extend(self.checks.iter().map(|GpuCheck { name, found, passed }| {
            let word = match passed {
                Some(true) => "ok",
                Some(false) => "FAILED",
                None => "skipped",
            };
            format!("{word:<8} {name}: {found}")
        }));
        lines.extend(self.speeds.iter().map(|Speed { name, bytes_per_s, share, .. }| {
            format!("{name:<36} {:>9.1} GB/s {:>6.1} %", bytes_per_s / 1e9, share * 100.0)
        }));
        lines.join("\n") + "\n"
    }
}

fn check(name: impl Into<String>, outcome: Result<String>) -> GpuCheck {
    match outcome {
        Ok(found) => GpuCheck { name: name.into(), found, passed: Some(true) },
        Err(cause) => GpuCheck { name: name.into(), found: cause.to_string(), passed: Some(false) },
    }
}

/// The time limit of every operation.
const LIMIT: Duration = Duration::from_secs(30);
/// The device that lends tensors.
const FIRST: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_holds_on_simulated_devices() {
        let findings = GpuFindings::gather("sim:2", UNIT).unwrap();
        assert!(findings.passed(), "{}", findings.table());
        assert!(findings.checks.len() > 20 && findings.speeds.is_empty());
    }
}
