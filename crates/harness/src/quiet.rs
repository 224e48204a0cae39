//! Waits between jobs until the hypervisor takes no more processor time from this virtual machine.
//!
//! With free page reporting, a virtual machine returns the memory that a job has freed to its hypervisor. It
//! begins two seconds after the job's end, and stops the machine's processors meanwhile. So a job that
//! follows at once is slowed down by the memory that the last job has freed. The wait avoids that. It does
//! not avoid the time that the next job needs to get memory back, nor the time that other guests take.

use std::time::Duration;

use crate::hardware::ProcessorTime;

/// The time in which the hypervisor must have taken nothing.
const QUIET: Duration = Duration::from_secs(3);
/// After this the job is measured anyway.
const LONGEST: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(250);

/// Returns when the hypervisor has taken no processor time for three seconds. It waits at most 15 s, and at
/// most as long as the last job took (`job`). It returns immediately after a job of less than three seconds,
/// which frees little memory, or if the hypervisor has never taken any time. `wait` sleeps; if `wait` returns
/// `false`, the function returns.
pub fn wait_until_quiet(
    job: Duration,
    read: &mut dyn FnMut() -> Option<ProcessorTime>,
    wait: &mut dyn FnMut(Duration) -> bool,
) {
    if job < QUIET {
        return;
    }
    let Some(mut last) = read().filter(|time| time.has_stolen()) else { return };
    let (mut quiet, mut left) = (Duration::ZERO, LONGEST.min(job));
    while quiet < QUIET && !left.is_zero() {
        let look = LOOK.min(left);
        if !wait(look) {
            return;
        }
        let Some(now) = read() else { return };
        left -= look;
        quiet = if now.has_stolen_since(last) { Duration::ZERO } else { quiet + look };
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the wait after a job, in ms. The hypervisor has taken `before` ticks before the wait, and one
    /// more tick before each read in `taken`.
    fn waited_ms(job_ms: u64, before: u64, taken: &[u64]) -> u128 {
        let (mut looks, mut waited) = (0, Duration::ZERO);
        let mut read = || {
            let stolen = before + taken.iter().filter(|at| **at <= looks).count() as u64;
            looks += 1;
            ProcessorTime::parse(&format!("cpu  {looks} 0 0 0 0 0 0 {stolen} 0 0\n"))
        };
        let mut wait = |time| {
            waited += time;
            true
        };
        wait_until_quiet(Duration::from_millis(job_ms), &mut read, &mut wait);
        waited.as_millis()
    }

    #[test]
    fn a_job_starts_when_nothing_was_taken_for_three_seconds() {
        assert_eq!(waited_ms(60_000, 7, &[]), 3000);
        assert_eq!(waited_ms(60_000, 7, &[1, 8]), 5000);
    }

    #[test]
    fn a_wait_ends_after_fifteen_seconds_and_is_no_longer_than_the_job_before() {
        let always: Vec<u64> = (1..1000).collect();
        assert_eq!(waited_ms(60_000, 7, &always), 15_000);
        assert_eq!(waited_ms(5000, 7, &always), 5000);
        assert_eq!(waited_ms(3000, 7, &always), 3000);
        assert_eq!(waited_ms(2900, 7, &always), 0, "three seconds of quiet would not fit");
    }

    #[test]
    fn there_is_no_wait_if_nothing_was_ever_taken_or_the_user_interrupts() {
        assert_eq!(waited_ms(60_000, 0, &[]), 0);
        let mut read = || ProcessorTime::parse("cpu  1 0 0 0 0 0 0 1 0 0\n");
        let mut asked = 0;
        wait_until_quiet(Duration::from_secs(60), &mut read, &mut |_| {
            asked += 1;
            false
        });
        assert_eq!(asked, 1);
    }
}
