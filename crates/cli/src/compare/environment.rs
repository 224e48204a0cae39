//! Where and when a comparison ran.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, the versions and the date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// When it began, UTC, such as `2026-01-31 12:00 UTC`.
    pub date: String,
    /// Cores of the machine that ran it.
    pub cores: usize,
    /// Its kernel.
    pub kernel: String,
    /// This crate's version.
    pub ringpull: String,
    /// The MPI that starts and joins the ranks, by `mpirun`'s own words.
    pub mpi: String,
}

impl Environment {
    /// Asks the machine.
    pub fn survey() -> Self {
        let uname = rustix::system::uname();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Environment {
            date: format_utc(now.as_secs()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            ringpull: env!("CARGO_PKG_VERSION").to_owned(),
            mpi: mpi_version().unwrap_or_else(|| "no mpirun".to_owned()),
        }
    }
}

fn mpi_version() -> Option<String> {
    let output = std::process::Command::new("mpirun").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}

/// A Unix time as a date and time of day in UTC.
///
/// Days are counted from 1 March of year 0, so that the leap day ends a year; 400 years have 146097 days.
fn format_utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day_of_month:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_have_their_dates() {
        assert_eq!(format_utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(format_utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(format_utc(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(format_utc(1_709_251_200), "2024-03-01 00:00 UTC");
        assert_eq!(format_utc(4_107_542_399), "2100-02-28 23:59 UTC");
        assert_eq!(format_utc(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}
