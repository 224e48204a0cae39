//! Waits between jobs until the machine's host leaves it alone.
//!
//! A virtual machine gives memory that a job has freed back to its host, two seconds and more after the job has ended (Linux's free page reporting), and has its
//! processors stopped for it. So a job that follows another at once pays for what that one has freed: most for one of many large processes.

use std::time::Duration;

use crate::harness::machine::ProcessorTime;

/// For so long nothing may have been taken.
const QUIET: Duration = Duration::from_secs(3);
/// A machine that is never left alone is measured as it is.
const LONGEST: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(250);

/// Returns when the host has taken no processor time for three seconds, at the latest after fifteen; both at most as long as the last job took, `job`.
/// At once where the host has never taken any. `wait` waits for so long, or says that there is no more waiting.
pub fn wait_until_quiet(
    job: Duration,
    read: &mut dyn FnMut() -> Option<ProcessorTime>,
    wait: &mut dyn FnMut(Duration) -> bool,
) {
    let Some(mut last) = read().filter(|time| time.has_stolen()) else { return };
    let (mut quiet, mut waited) = (Duration::ZERO, Duration::ZERO);
    while quiet < QUIET.min(job) && waited < LONGEST.min(job) && wait(LOOK) {
        let Some(now) = read() else { return };
        waited += LOOK;
        quiet = if now.has_stolen_since(last) { Duration::ZERO } else { quiet + LOOK };
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long is waited if the host has taken so many ticks at the start, and then one in each of these quarters of a second.
    fn waited(job_s: u64, before: u64, taken: &[u64]) -> f64 {
        let (mut looks, mut waits) = (0, 0);
        let mut read = || {
            let stolen = before + taken.iter().filter(|at| **at <= looks).count() as u64;
            looks += 1;
            ProcessorTime::parse(&format!("cpu  {looks} 0 0 0 0 0 0 {stolen} 0 0\n"))
        };
        let mut wait = |time| {
            assert_eq!(time, LOOK);
            waits += 1;
            true
        };
        wait_until_quiet(Duration::from_secs(job_s), &mut read, &mut wait);
        f64::from(waits) * LOOK.as_secs_f64()
    }

    #[test]
    fn a_job_starts_three_seconds_after_the_host_took_anything() {
        assert_eq!(waited(60, 7, &[]), 3.0);
        assert_eq!(waited(60, 7, &[1, 8]), 5.0);
    }

    #[test]
    fn a_wait_ends_after_fifteen_seconds_and_is_no_longer_than_the_job_before() {
        let always: Vec<u64> = (1..1000).collect();
        assert_eq!(waited(60, 7, &always), 15.0);
        assert_eq!(waited(5, 7, &always), 5.0);
        assert_eq!(waited(1, 7, &[]), 1.0);
        assert_eq!(waited(0, 7, &[]), 0.0);
    }

    #[test]
    fn where_nothing_was_ever_taken_or_nobody_wants_to_wait_there_is_no_wait() {
        assert_eq!(waited(60, 0, &[]), 0.0);
        let mut read = || ProcessorTime::parse("cpu  1 0 0 0 0 0 0 1 0 0\n");
        let mut asked = 0;
        wait_until_quiet(Duration::from_secs(60), &mut read, &mut |_| {
            asked += 1;
            false
        });
        assert_eq!(asked, 1);
    }
}
