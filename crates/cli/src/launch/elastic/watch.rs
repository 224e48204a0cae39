//! While a generation runs, watches whether a restart would give it other hosts. If so, it informs rank 0,
//! and the ranks end at their next commit.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::decide::{Suspects, change};
use super::discovery::{Discovery, PresentHost};
use super::lost::Lost;
use super::snapshots::Snapshots;
use super::{Elastic, LOOK, count, distinct, event, left, left_behind};

/// A thread that checks the hosts until the generation has ended or a change was found.
pub(super) struct Watch {
    over: Arc<Mutex<bool>>,
}

struct Watched {
    discovery: Discovery,
    generation: u32,
    ranks: Vec<PresentHost>,
    /// The lost ones of the ranks.
    lost: Arc<Mutex<Lost>>,
    /// The time for which a host gets no new rank after it has lost a rank in place.
    pause: Duration,
    least: usize,
    most: usize,
    suspects: Suspects,
    begun: Instant,
    snapshots: Snapshots,
    /// True if the generation has ended. It is locked while rank 0 is informed of a change.
    over: Arc<Mutex<bool>>,
}

fn locked(over: &Mutex<bool>) -> MutexGuard<'_, bool> {
    over.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    pub(super) fn start(
        job: &Elastic,
        generation: u32,
        ranks: &[PresentHost],
        lost: &Arc<Mutex<Lost>>,
        (suspects, begun): (Suspects, Instant),
        snapshots: &Snapshots,
    ) -> Self {
        let over = Arc::new(Mutex::new(false));
        let watched = Watched {
            discovery: job.discovery.clone(),
            generation,
            ranks: ranks.to_vec(),
            lost: Arc::clone(lost),
            pause: job.cooldown.first,
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

    /// Stops the thread. A check that is under way ends without an effect. After this call nothing is written
    /// to a host.
    pub(super) fn stop(&self) {
        *locked(&self.over) = true;
    }
}

impl Watched {
    fn look(&self) {
        let mut failed = false;
        loop {
            std::thread::sleep(LOOK);
            if *locked(&self.over) {
                return;
            }
            let left = left(&self.ranks, &self.lost);
            let losers =
                left_behind(&self.ranks, &self.lost).into_iter().filter(|(_, when)| when.elapsed() < self.pause);
            let found = self.workers(&left, &losers.map(|(found, _)| found.offer.name).collect());
            let over = locked(&self.over);
            if *over {
                return;
            }
            match found {
                Ok(Some(workers)) if self.snapshots.announce(&distinct(&left), self.generation) => {
                    let before = left.len();
                    let why =
                        if before < self.ranks.len() { "there is room for a lost rank" } else { "hosts have changed" };
                    event(&format!(
                        "{why}: generation {} ends at its next commit, {before} to {}",
                        self.generation,
                        count(workers, "worker")
                    ));
                    return;
                }
                Ok(Some(_)) => {
                    if !failed {
                        event("hosts have changed, but rank 0 cannot be told: its host is asked again");
                    }
                    failed = true;
                }
                Ok(None) => failed = false,
                Err(cause) => {
                    if !failed {
                        let (what, hint) = cause.parts();
                        let hint = hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}"));
                        event(&format!("{what}; the job goes on with its hosts{hint}"));
                    }
                    failed = true;
                }
            }
        }
    }

    /// The number of workers that the job would have after a restart, if it should be restarted. `left` are
    /// its remaining ranks. Hosts that have just lost a rank in place get no new one.
    fn workers(&self, left: &[PresentHost], losers: &BTreeSet<String>) -> ringpull_base::Result<Option<usize>> {
        let running: Vec<String> = left.iter().map(|found| found.offer.name.clone()).collect();
        let wanted = |found: Vec<PresentHost>| {
            let mut offers: Vec<_> = found.into_iter().map(|found| found.offer).collect();
            for offer in offers.iter_mut().filter(|offer| losers.contains(&offer.name)) {
                offer.slots = offer.slots.min(running.iter().filter(|name| **name == offer.name).count());
            }
            change(&running, &offers, self.least, self.most)
        };
        let is_wanted = |name: &str| !self.suspects.is_left_out(name, self.begun.elapsed());
        // Hosts are asked only if their answers matter.
        if wanted(self.discovery.listed(is_wanted)?).is_none() {
            return Ok(None);
        }
        Ok(wanted(self.discovery.present(is_wanted)?))
    }
}
