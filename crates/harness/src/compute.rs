//! Replayed computing: by the clock, like a device beside the processor.

use std::time::{Duration, Instant};

/// A simulated device that works for given times, one after the other.
///
/// It is never late. Work of the caller meanwhile (fill a gradient, check a sum) is part of the device's
/// time. If the thread wakes up late, the next work is shorter by this delay.
#[derive(Debug)]
pub struct Compute {
    due: Instant,
}

impl Compute {
    /// Makes a device that begins now.
    pub fn start() -> Self {
        Compute { due: Instant::now() }
    }

    /// Works for `seconds` from the end of its previous work.
    pub fn work(&mut self, seconds: f64) {
        self.due += Duration::from_secs_f64(seconds);
        std::thread::sleep(self.due.saturating_duration_since(Instant::now()));
    }

    /// The device was idle for `waited`, since its input was missing.
    pub fn idle(&mut self, waited: Duration) {
        self.due += waited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_its_time_and_idle_time_is_added() {
        let start = Instant::now();
        let mut device = Compute::start();
        device.work(0.01);
        device.idle(Duration::from_millis(5));
        device.work(0.01);
        assert!(start.elapsed() >= Duration::from_millis(25));
    }
}
