//! Watches, while a generation runs, whether a restart would give it other hosts, and lets rank 0 know. Its
//! ranks end at their next commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::decide::{Suspects, change};
use super::discovery::{Discovery, Present};
use super::snapshots::Snapshots;
use super::{Elastic, LOOK, count, event};

/// A thread that looks until the generation has ended, or it has found a change.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
}

struct Watched {
    discovery: Discovery,
    generation: u32,
    running: Vec<String>,
    /// The host of rank 0.
    first: Present,
    least: usize,
    most: usize,
    suspects: Suspects,
    begun: Instant,
    snapshots: Snapshots,
    over: Arc<AtomicBool>,
}

impl Watch {
    pub(super) fn start(
        job: &Elastic,
        generation: u32,
        running: &[String],
        ranks: &[Present],
        (suspects, begun): (Suspects, Instant),
        snapshots: &Snapshots,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Watched {
            discovery: job.discovery.clone(),
            generation,
            running: running.to_vec(),
            first: ranks[0].clone(),
            least: job.least,
            most: job.most,
            suspects,
            begun,
            snapshots: snapshots.clone(),
            over: Arc::clone(&over),
        };
        std::thread::spawn(move || watched.look());
        Watch { over }
    }

    /// A look that is under way ends without a word.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
    }
}

impl Watched {
    fn look(&self) {
        let mut failed = false;
        loop {
            std::thread::sleep(LOOK);
            if self.over.load(Ordering::Acquire) {
                return;
            }
            match self.workers() {
                Ok(_) if self.over.load(Ordering::Acquire) => return,
                Ok(Some(workers)) => {
                    let before = self.running.len();
                    event(&format!(
                        "hosts have changed: generation {} ends at its next commit, {before} to {}",
                        self.generation,
                        count(workers, "worker")
                    ));
                    self.snapshots.announce(&self.first.host, self.generation);
                    return;
                }
                Ok(None) => failed = false,
                Err(cause) => {
                    if !failed {
                        event(&format!("{cause}; the job goes on with its hosts"));
                    }
                    failed = true;
                }
            }
        }
    }

    /// How many workers the job would have on other hosts, if it should have them.
    fn workers(&self) -> ringpull_base::Result<Option<usize>> {
        let wanted = |found: Vec<Present>| {
            let offers: Vec<_> = found.into_iter().map(|found| found.offer).collect();
            change(&self.running, &offers, self.least, self.most)
        };
        let is_wanted = |name: &str| !self.suspects.is_left_out(name, self.begun.elapsed());
        // Hosts are asked whether they answer only if that matters.
        if wanted(self.discovery.listed(is_wanted)?).is_none() {
            return Ok(None);
        }
        Ok(wanted(self.discovery.present(is_wanted)?))
    }
}
