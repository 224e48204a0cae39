//! Waiting that leaves the cores to those who compute.

use std::time::{Duration, Instant};

use crate::transport::Transport;

/// So many bytes on their way to this rank are enough to sleep over: they arrive without its help.
const PLENTY_BYTES: usize = 512 << 10;
/// The longest sleep over them.
const LONGEST_PACE: Duration = Duration::from_millis(1);
/// A sleep over them grows by this when it found little done, and is halved when it found much.
const STEP: Duration = Duration::from_micros(20);
const LITTLE: usize = 1;
const MUCH: usize = 3;

/// Waiting for something to move.
///
/// For a message that a result depends on: a few yields, then waits for data that grow with the time waited. While there is plenty on
/// its way, being quick gains nothing and every look costs: it sleeps for as long as keeps few messages finished at each look, as the
/// drivers of network cards moderate their interrupts.
#[derive(Default)]
pub(crate) struct Idle {
    rounds: u32,
    looked: Option<Instant>,
    waited: Duration,
    pace: Duration,
    paced: bool,
}

impl Idle {
    /// How long nothing has moved.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// To be called when there is something new to wait for.
    pub(crate) fn start(&mut self) {
        (self.rounds, self.looked, self.waited, self.paced) = (0, None, Duration::ZERO, false);
    }

    /// To be called when messages have finished.
    pub(crate) fn moved(&mut self, messages: usize) {
        if self.paced {
            match messages {
                ..=LITTLE => self.pace = (self.pace + STEP).min(LONGEST_PACE),
                MUCH.. => self.pace /= 2,
                _ => {}
            }
        }
        self.start();
    }

    /// Waits a little, with `awaited` bytes on their way to this rank; an error with the time waited if `limit` is over.
    pub(crate) fn wait(
        &mut self,
        awaited: usize,
        limit: Duration,
        transport: &mut dyn Transport,
    ) -> Result<(), Duration> {
        const YIELDS: u32 = 30;
        const SHORTEST: Duration = Duration::from_micros(20);
        const LONGEST: Duration = Duration::from_millis(4);
        /// A sleep is this part of the time waited so far: the longer nothing comes, the less it matters to be quick.
        const PART: u32 = 40;
        /// A round is shorter by far; what is beyond is the absence of this process, not of its peers.
        const LONGEST_ROUND: Duration = Duration::from_millis(200);
        let now = Instant::now();
        self.waited += now.duration_since(self.looked.unwrap_or(now)).min(LONGEST_ROUND);
        self.looked = Some(now);
        if self.waited > limit {
            return Err(self.waited);
        }
        self.rounds += 1;
        let growing = (self.waited / PART).clamp(SHORTEST, LONGEST);
        if awaited >= PLENTY_BYTES {
            self.pace = if self.paced { (self.pace + STEP).min(LONGEST_PACE) } else { self.pace.max(STEP) };
            self.paced = true;
            std::thread::sleep(self.pace.max(growing));
        } else if self.rounds <= YIELDS {
            std::thread::yield_now();
        } else {
            transport.wait(growing);
        }
        Ok(())
    }
}
