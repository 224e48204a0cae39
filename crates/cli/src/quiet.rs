//! Waits between jobs until the machine's host leaves it alone.
//!
//! A virtual machine with free page reporting gives memory that a job has freed back to its host, in passes
//! that begin two seconds after the job has ended, and has its processors stopped for it. So a job that
//! follows another at once pays for what that one has freed: most for one of many large processes. No wait
//! avoids what the next job pays for memory that it gets back from the host, or what other guests take
//! meanwhile.

use std::time::Duration;

use crate::machine::ProcessorTime;

/// For so long nothing may have been taken.
const QUIET: Duration = Duration::from_secs(3);
/// A machine that is never left alone is measured as it is.
const LONGEST: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(250);

/// Returns once the host has taken no processor time for three seconds, after fifteen in any case, and in
/// neither case later than as long as the last job took, `job`. At once after a job of less than three
/// seconds, which frees little, and where the host has never taken any. `wait` waits for so long; its `false`
/// ends the wait.
pub(crate) fn wait_until_quiet(
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

    /// How long is waited after a job, in ms, if the host has taken so many ticks before, and then one before
    /// each of these looks.
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
    fn a_job_starts_once_the_host_has_taken_nothing_for_three_seconds() {
        assert_eq!(waited_ms(60_000, 7, &[]), 3000);
        assert_eq!(waited_ms(60_000, 7, &[1, 8]), 5000);
    }

    #[test]
    fn a_wait_ends_after_fifteen_seconds_and_is_no_longer_than_the_job_before() {
        let always: Vec<u64> = (1..1000).collect();
        assert_eq!(waited_ms(60_000, 7, &always), 15_000);
        assert_eq!(waited_ms(5000, 7, &always), 5000);
        assert_eq!(waited_ms(3000, 7, &always), 3000);
        assert_eq!(waited_ms(2900, 7, &always), 0, "in less the host cannot be found quiet");
    }

    #[test]
    fn where_nothing_was_ever_taken_or_nobody_wants_to_wait_there_is_no_wait() {
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
