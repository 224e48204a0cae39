//! Waits that leave the cores to threads that compute.

use std::time::{Duration, Instant};

use ringpull_base::are_cores_busy;

use crate::transport::Transport;

/// One wait for something to move. It yields at first. Then it sleeps, and each sleep is longer, the longer
/// it has waited.
#[derive(Default)]
pub(super) struct IdleWait {
    looked: Option<Instant>,
    waited: Duration,
}

impl IdleWait {
    /// The time for which nothing has moved.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits a little for the `bytes` that are still to come. Returns an error with the time waited if
    /// `limit` is over.
    pub(super) fn wait(
        &mut self,
        limit: Duration,
        bytes: usize,
        transport: &mut dyn Transport,
    ) -> Result<(), Duration> {
        const SHORTEST: Duration = Duration::from_micros(20);
        const LONGEST: Duration = Duration::from_millis(4);
        /// A sleep lasts this part of the time waited so far, since a quick answer matters less after a long
        /// wait. With an eighth, sums of many tensors took longer. With a fortieth, processors woke up for
        /// every few packets.
        const PART: u32 = 16;
        /// The longest time that counts as a round. A round is far shorter. A longer time means that this
        /// process did not run, not that its peers did not.
        const LONGEST_ROUND: Duration = Duration::from_millis(200);
        let now = Instant::now();
        self.waited += now.duration_since(self.looked.unwrap_or(now)).min(LONGEST_ROUND);
        self.looked = Some(now);
        if self.waited > limit {
            return Err(self.waited);
        }
        if self.waited < looks(bytes) && !are_cores_busy() {
            transport.relax();
        } else {
            transport.wait((self.waited / PART).clamp(SHORTEST, LONGEST));
        }
        Ok(())
    }
}

/// Returns the time for which a rank yields, and does not sleep, while nothing moves of the `bytes` that are
/// still to be sent and received.
///
/// The time of a short operation, and of the end of a long one, is mostly latency: waking from a sleep would
/// take a good part of it. So a rank yields for the time that the operation should take. By ring, direct or
/// circulant a sum of 256 KiB sends and receives 896 KiB on eight ranks, and with sleeps it took up to a
/// third longer.
fn looks(bytes: usize) -> Duration {
    const SHORT_BYTES: usize = 1 << 20;
    const SHORT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_micros(2500));
    /// The last bytes go one way, where a link of 1 Gbit/s carries 125 bytes per microsecond, and a segment
    /// of 256 KiB takes 2.1 ms. With 1 ms for all lengths, 256 KiB on two hosts (`ringpull bench allreduce
    /// --sizes 256KiB`), of which the second half takes 1.05 ms, took 1.33 ms instead of 1.18 ms, and 1 MiB
    /// took 8.01 ms instead of 7.80 ms. If a peer is late, a rank yields in vain once, for the longest of
    /// these times.
    const BYTES_PER_US: u64 = 80;
    const LONG: Duration = Duration::from_micros(20);
    if bytes > SHORT_BYTES {
        return LONG;
    }
    Duration::from_micros(bytes as u64 / BYTES_PER_US).clamp(SHORT.0, SHORT.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_stays_awake_for_a_last_message_of_a_segment_on_a_link_of_1_gbit() {
        for bytes in [4, 128 << 10, 256 << 10] {
            let (awake, needed) = (looks(bytes), Duration::from_micros(bytes as u64 / 125));
            assert!(awake > needed && awake >= Duration::from_millis(1), "{bytes} bytes: {awake:?}");
        }
        assert!(looks(1 << 20) <= Duration::from_micros(2500), "a peer may be late");
        assert!(looks((1 << 20) + 1) < Duration::from_micros(100));
    }
}
