//! Waiting that leaves the cores to those who compute.

use std::time::{Duration, Instant};

use crate::transport::Transport;

/// One wait for something to move: yields at first, then waits for data that grow with the time waited.
#[derive(Default)]
pub(crate) struct Idle {
    looked: Option<Instant>,
    waited: Duration,
}

impl Idle {
    /// How long nothing has moved.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits a little for what is still to come, so many bytes; an error with the time waited if `limit` is over.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        bytes: usize,
        transport: &mut dyn Transport,
    ) -> Result<(), Duration> {
        /// What is short, or the end of what is long, is all latency: to wake from a sleep would take a good part of its time. So it is worth
        /// yields for as long as it should take. By ring, direct or circulant a sum
        /// of 256 KiB sends and receives 896 KiB on eight ranks, and sleeps there cost it up to a third of its time.
        const SHORT_BYTES: usize = 1 << 20;
        const SHORT_LOOKS: Duration = Duration::from_millis(1);
        const LOOKS: Duration = Duration::from_micros(20);
        const SHORTEST: Duration = Duration::from_micros(20);
        const LONGEST: Duration = Duration::from_millis(4);
        /// A sleep is this part of the time waited so far: the longer nothing comes, the less it matters to be quick. An eighth was
        /// seen to hold up sums of many tensors; a fortieth kept processors busy with every few packets.
        const PART: u32 = 16;
        /// A round is shorter by far; what is beyond is the absence of this process, not of its peers.
        const LONGEST_ROUND: Duration = Duration::from_millis(200);
        let now = Instant::now();
        self.waited += now.duration_since(self.looked.unwrap_or(now)).min(LONGEST_ROUND);
        self.looked = Some(now);
        if self.waited > limit {
            return Err(self.waited);
        }
        if self.waited < if bytes <= SHORT_BYTES { SHORT_LOOKS } else { LOOKS } {
            transport.relax();
        } else {
            transport.wait((self.waited / PART).clamp(SHORTEST, LONGEST));
        }
        Ok(())
    }
}
