//! Replayed computing: by the clock, like a device beside the processor, or on the processor itself.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A simulated device that works for given times, one after the other.
///
/// By the clock it is never late: what the caller does meanwhile (fill a gradient, check a sum) is part of
/// the device's time, and the next work is shorter by the delay of a late wake-up. On the processor it needs
/// its share of processor time, however long that takes on busy cores.
#[derive(Debug)]
pub(crate) struct Compute {
    /// Whether it computes on the processor, and not by the clock.
    burns: bool,
    due: Instant,
    due_cpu: Duration,
}

impl Compute {
    /// A device that begins now.
    pub(crate) fn start(burns: bool) -> Self {
        Compute { burns, due: Instant::now(), due_cpu: thread_cpu() }
    }

    /// Works for `seconds` from the end of its previous work.
    pub(crate) fn work(&mut self, seconds: f64) {
        if self.burns {
            self.due_cpu += Duration::from_secs_f64(seconds);
            while thread_cpu() < self.due_cpu {
                spin();
            }
        } else {
            self.due += Duration::from_secs_f64(seconds);
            std::thread::sleep(self.due.saturating_duration_since(Instant::now()));
        }
    }

    /// The device was idle for `waited`, since its input was missing.
    pub(crate) fn idle(&mut self, waited: Duration) {
        self.due += waited;
    }
}

/// Processor time of this thread so far.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Some microseconds of arithmetic in registers.
fn spin() {
    let mut value = black_box(1.0f64);
    for _ in 0..4000 {
        value = value.mul_add(0.999, 0.001);
    }
    black_box(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_the_clock_work_takes_its_time_and_idle_time_is_added() {
        let start = Instant::now();
        let mut device = Compute::start(false);
        device.work(0.01);
        device.idle(Duration::from_millis(5));
        device.work(0.01);
        assert!(start.elapsed() >= Duration::from_millis(25));
    }

    #[test]
    fn on_the_processor_the_work_takes_processor_time() {
        let due = thread_cpu() + Duration::from_millis(10);
        Compute::start(true).work(0.01);
        assert!(thread_cpu() >= due);
    }
}
