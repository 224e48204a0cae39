//! The processor and the memory of a host, and other facts that the kernel or a program reports in one line.

use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use ringpull_base::topology::memory_bytes;

use crate::text::several;

/// The processor of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Cores this process may use.
    pub cores: usize,
    /// The processor's model; `None` where the kernel names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Hosts with the same hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    /// Their number.
    pub hosts: usize,
    #[serde(flatten)]
    pub hardware: Hardware,
}

impl Hardware {
    pub fn survey() -> Self {
        Hardware {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_bytes: memory_bytes().map(|bytes| bytes as u64),
        }
    }

    /// The hardware in words, as far as it is known, such as `2 cores of Intel(R) Xeon(R), 23.4 GiB`.
    pub fn words(&self) -> String {
        let processor = self.processor.as_ref().map_or(String::new(), |model| format!(" of {model}"));
        let memory = self.memory_bytes.map_or(String::new(), |bytes| format!(", {}", gib(bytes)));
        format!("{}{processor}{memory}", several(self.cores, "core"))
    }
}

/// Converts bytes to gibibytes, as text.
pub fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30))
}

/// The work of this machine's processors since it started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTime {
    all: u64,
    /// Ticks in which this machine was ready to run, but its hypervisor ran something else.
    stolen: u64,
}

impl ProcessorTime {
    /// Reads the ticks so far. Returns `None` if the kernel does not report them.
    pub fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the `cpu` line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guests'
    /// time, which follows, is part of user's.
    pub fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let stolen = *ticks.get(7)?;
        Some(ProcessorTime { all: ticks.iter().sum(), stolen })
    }

    /// Returns true if the hypervisor has ever taken any time.
    pub fn has_stolen(self) -> bool {
        self.stolen > 0
    }

    /// Returns true if the hypervisor has taken any time since `before`.
    pub fn has_stolen_since(self, before: Self) -> bool {
        self.stolen > before.stolen
    }

    /// The part of the processors' time that was stolen since `before`; `None` if no time has passed.
    pub fn stolen_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|ticks| *ticks > 0)?;
        Some(self.stolen.saturating_sub(before.stolen) as f64 / all as f64)
    }
}

/// Returns the first line that a program prints, if the program succeeds.
pub fn first_line(program: &str, words: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(words).stdin(Stdio::null()).output().ok().filter(|it| it.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(|line| line.trim().to_owned())
}

/// The value of a name in a file of `name: value` lines.
pub fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_read_from_proc_stat() {
        let of = |idle: u64, stolen: u64| {
            format!("cpu  100 0 50 {idle} 10 0 5 {stolen} 40 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n")
        };
        let read = |idle, stolen| ProcessorTime::parse(&of(idle, stolen)).unwrap();
        assert_eq!(read(1968, 32).stolen_since(read(1000, 0)), Some(0.032));
        assert_eq!(read(2000, 5).stolen_since(read(1000, 5)), Some(0.0));
        assert_eq!(read(1000, 5).stolen_since(read(1000, 5)), None, "no time has passed");
        assert_eq!(ProcessorTime::parse("cpu  1 2 3 4\n"), None, "a kernel that does not count it");
        assert_eq!(ProcessorTime::parse("intr 5\n"), None);
    }
}
