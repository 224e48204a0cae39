//! The limits of a listening port for connections that have not proved the job's secret.

use std::time::{Duration, Instant};

/// The time limit for a greeting.
pub const GREETING: Duration = Duration::from_secs(5);

/// The least time that every greeting has, even if many strangers connect. A process of the job needs less,
/// even on a busy host.
pub const SPARED: Duration = Duration::from_millis(100);

/// The number of connections that the system keeps until they are accepted. It lets others wait for a second.
pub const QUEUE: i32 = 1024;

/// The least time between two lines of the log about refusals.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Connections that were refused since the last line of the log about them.
#[derive(Debug, Default)]
pub struct Refusals {
    count: usize,
    logged: Option<Instant>,
}

impl Refusals {
    /// Counts one more refusal. If a line should be logged now, returns the number of refusals for it.
    pub fn count(&mut self) -> Option<usize> {
        self.count += 1;
        let is_due = self.logged.is_none_or(|since| since.elapsed() >= LOG_EVERY);
        is_due.then(|| {
            self.logged = Some(Instant::now());
            std::mem::take(&mut self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_refusals_is_one_line_that_counts_them() {
        let mut refusals = Refusals::default();
        assert_eq!([(); 4].map(|()| refusals.count()), [Some(1), None, None, None]);
        refusals.logged = refusals.logged.and_then(|since| since.checked_sub(LOG_EVERY));
        assert_eq!([(); 2].map(|()| refusals.count()), [Some(4), None]);
    }
}
