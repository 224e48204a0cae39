//! A job of MPI ranks that goes on when it loses ranks or gets hosts: it is ended and started again on the
//! hosts that are present, and its ranks load the state that earlier ranks have left in the memory of their
//! hosts.
//!
//! - [`decide`]: the choice of hosts, the time for which hosts are left out, and the end of restarts; pure;
//! - [`discovery`]: the hosts that are present; [`watch`]: changes of the hosts while the job runs;
//! - [`lost`]: the lost ranks, read from messages; pure;
//! - [`snapshots`]: the folder of snapshots on each host, which the launcher names, reads and removes;
//!   [`on_host`]: the part of this work that is done on the host.
//!
//! The time from one start of the job to its end is a generation. `python/ringpull/elastic` is the ranks'
//! part: it writes the snapshots, and raises an exception at a commit after hosts have changed.
//!
//! A job with a name may lose its launcher too. The next launcher with the same name ends the remaining
//! processes of the last generation, and goes on with the snapshots and the next generation.

mod decide;
pub(crate) mod discovery;
mod lost;
pub(crate) mod on_host;
mod snapshots;
mod watch;

#[cfg(fuzzing)]
pub(crate) use self::{lost::fuzz as fuzz_lost, snapshots::fuzz as fuzz_answer};

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringpull_base::config::{self, Config};
use ringpull_base::{Error, Result};

pub(crate) use self::decide::Cooldown;
use self::decide::{Failure, GenerationHistory, Offer, Suspects, choose};
use self::discovery::{Discovery, PresentHost};
use self::lost::Lost;
use self::snapshots::{Begin, Newest, Snapshots};
use self::watch::Watch;
use super::{Host, Sink, Spec, by_mpi};
use crate::mpirun::Mpirun;
use ringpull_harness::interrupt::Interrupt;

/// The interval at which a job that waits looks for hosts.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which a waiting job reports that it waits.
const WORD: Duration = Duration::from_secs(10);
/// The number of failed attempts to begin a generation on a required host, after which the job fails.
const REFUSALS: u32 = 3;
/// The time for which a job with enough workers waits for the number of workers that it is to have first.
const GATHER: Duration = Duration::from_secs(30);

/// A job that is started again when it has lost ranks or can have more.
#[derive(Debug)]
pub(crate) struct Elastic {
    /// The program of the ranks. The number of workers may change with each generation.
    pub(crate) spec: Spec,
    pub(crate) sink: Sink,
    pub(crate) least: usize,
    /// The number of workers to start with, if enough hosts are present soon after the least number.
    pub(crate) first: usize,
    pub(crate) most: usize,
    pub(crate) discovery: Discovery,
    /// The folder for snapshots on each host.
    pub(crate) memory: std::path::PathBuf,
    /// The name by which another launcher finds the snapshots, if this launcher is lost.
    pub(crate) job: Option<String>,
    /// The largest number of restarts after failures.
    pub(crate) restarts: Option<u32>,
    /// The largest number of restarts for any reason.
    pub(crate) resets: Option<u32>,
    pub(crate) cooldown: Cooldown,
    /// True if the surviving ranks go on after the loss of a rank's process, instead of a restart.
    pub(crate) in_place: bool,
}

/// The end of a generation.
enum GenerationEnd {
    Done,
    Resized,
    Failed(Failure),
}

/// Prints one event of an elastic job.
fn event(text: &str) {
    eprintln!("ringpull: elastic: {text}");
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl Elastic {
    /// Runs the job until it ends well or a restart does not help, and returns its exit code. When this
    /// returns, no process of the job is left. No snapshot is left either, unless the job has a name and has
    /// not ended well.
    pub(crate) fn run(self) -> Result<i32> {
        let interrupt = Interrupt::watch()?;
        interrupt.watch_for_job()?;
        let snapshots = Snapshots::new(&self.memory, self.job.as_deref())?;
        let mut used = Vec::new();
        let code = self.generations(&interrupt, &snapshots, &mut used);
        match &self.job {
            _ if used.is_empty() => {}
            Some(job) if !matches!(code, Ok(0)) => event(&format!(
                "the commits stay on {}, in {}, for the next launcher of job {job}",
                count(used.len(), "host"),
                snapshots.folder().display()
            )),
            _ => snapshots.remove(&used),
        }
        code
    }

    fn generations(&self, interrupt: &Interrupt, snapshots: &Snapshots, used: &mut Vec<Host>) -> Result<i32> {
        let begun = Instant::now();
        let (mut past, mut failures, mut resets) = (GenerationHistory::new(self.cooldown), 0, 0);
        let mut newest = Newest::default();
        let mut before = None;
        let mut next = None;
        let mut refusals = 0;
        loop {
            let Some(ranks) = self.await_hosts(next, &past.suspects, begun, snapshots, interrupt)? else {
                return Ok(128 + interrupt.signal().unwrap_or(2));
            };
            let hosts = distinct(&ranks);
            let generation = match (next, &self.job) {
                (Some(generation), _) => generation,
                (None, Some(job)) => {
                    newest = snapshots.newest(&hosts);
                    let (next, words) = take_over(job, &newest)?;
                    event(&words);
                    next
                }
                (None, None) => 0,
            };
            next = Some(generation);
            let without = match snapshots.begin(&hosts, generation) {
                Begin::Ready(found) => {
                    if before.is_some() && found.snapshot.is_none() {
                        event(
                            "no host that is left has a commit: the program begins again, from its own checkpoint if \
                             it reads one",
                        );
                    }
                    Vec::new()
                }
                Begin::Taken(host, by) => {
                    event(&format!(
                        "this launcher ends: on {host} another one of this job has begun generation {by}, and this one \
                         was to begin {generation}"
                    ));
                    return Ok(1);
                }
                Begin::NoFolder(host, why) => {
                    let why = format!("cannot have the folder {} for commits: {why}", snapshots.folder().display());
                    if used.is_empty() || host == Host::Local {
                        return Err(Error::argument(
                            format!("{host} {why}"),
                            "name another with --snapshots, one in memory that you may write to; with --job, another \
                             name will do, too",
                        ));
                    }
                    vec![(host, why)]
                }
                Begin::Without(without) => without,
            };
            if !without.is_empty() {
                refusals += 1;
                go_without(&without, generation, (&mut past, begun));
                // The launcher's own host is never left out; other hosts are left out for a while.
                let must_be_there = used.is_empty() || without.iter().any(|(host, _)| *host == Host::Local);
                if must_be_there && refusals >= REFUSALS {
                    return Err(Error::Incomplete {
                        what: format!("generation {generation} could not begin: it was tried {refusals} times"),
                        remedy: "see above why; a host that has no place in the job is to be taken off its list"
                            .to_owned(),
                    });
                }
                continue;
            }
            refusals = 0;
            announce(generation, before, &ranks);
            before = Some(ranks.len());
            used.extend(hosts.iter().filter(|host| !used.contains(host)).cloned().collect::<Vec<_>>());
            next = Some(generation + 1);
            let lost = Arc::new(Mutex::new(Lost::default()));
            let ended = self.generation(generation, &ranks, &lost, (&past.suspects, begun), snapshots, interrupt)?;
            let failure = match ended {
                _ if interrupt.count() > 0 => return Ok(128 + interrupt.signal().unwrap_or(2)),
                GenerationEnd::Done => return Ok(0),
                GenerationEnd::Resized => None,
                GenerationEnd::Failed(failure) => Some(failure),
            };
            // Hosts of earlier generations may have disappeared, and would not answer.
            let found = snapshots.newest(&hosts);
            // Without `run` the ranks end by an error, which does not count as a failure.
            let failure = failure.filter(|_| found.again != Some(generation));
            let reached = found.snapshot;
            let has_progressed = reached > newest.snapshot;
            newest.snapshot = newest.snapshot.max(reached);
            let code = failure.as_ref().map(|failure| failure.code);
            // The launcher's own host is never left out.
            let hosts = ranks.iter().filter(|found| found.host != Host::Local).map(|found| found.offer.name.clone());
            let lost_in_place = left_behind(&ranks, &lost).into_iter().filter(|(found, _)| found.host != Host::Local);
            let left_out = past.lose_in_place(
                lost_in_place.map(|(found, when)| (found.offer.name, when.saturating_duration_since(begun))),
            );
            let verdict = past.add(&hosts.collect(), failure, has_progressed, begun.elapsed());
            for (host, time) in left_out.into_iter().chain(verdict.left_out) {
                event(&format!("{host} is left out for {} s", time.as_secs()));
            }
            if let (Some(code), Some(times)) = (code, verdict.hopeless) {
                event(&format!(
                    "the job ends: it has failed {times} times without a new snapshot, the last time with exit code \
                     {code}, and another restart would not mend that"
                ));
                return Ok(code);
            }
            let has_failed_enough = code.is_some() && self.restarts.is_some_and(|most| failures >= most);
            if has_failed_enough || self.resets.is_some_and(|most| resets >= most) {
                event(&format!("the job ends: it was started again {resets} times, as often as it may be"));
                return Ok(code.unwrap_or(1));
            }
            failures += u32::from(code.is_some());
            resets += 1;
        }
    }

    /// Waits until enough hosts are present, and returns the host of each rank of generation `next`. Returns
    /// `None` after an interrupt. Before the first generation of a new job it also waits a while for the
    /// number of workers to start with.
    fn await_hosts(
        &self,
        next: Option<u32>,
        suspects: &Suspects,
        begun: Instant,
        snapshots: &Snapshots,
        interrupt: &Interrupt,
    ) -> Result<Option<Vec<PresentHost>>> {
        let (since, mut said, mut failed) = (Instant::now(), Duration::ZERO, String::new());
        let mut enough_since: Option<Instant> = None;
        loop {
            if interrupt.count() > 0 {
                return Ok(None);
            }
            let found = match self.discovery.present(|name| !suspects.is_left_out(name, begun.elapsed())) {
                // The discovery has worked before, and may work again.
                Err(cause) if next.is_some() => {
                    let text = cause.to_string();
                    if text != failed {
                        event(&text);
                    }
                    failed = text;
                    Vec::new()
                }
                found => found?,
            };
            let offers: Vec<Offer> = found.iter().map(|found| found.offer.clone()).collect();
            let chosen = choose(&offers, self.most);
            let ranks: Vec<PresentHost> = chosen.into_iter().map(|at| found[at].clone()).collect();
            let gathers = if ranks.len() < self.least {
                enough_since = None;
                false
            } else {
                let enough_since = *enough_since.get_or_insert_with(Instant::now);
                let is_first = next.is_none() && ranks.len() < self.first && enough_since.elapsed() < GATHER;
                let goes_on = || self.job.is_some() && snapshots.newest(&distinct(&ranks)).begun.is_some();
                if !is_first || goes_on() {
                    return Ok(Some(ranks));
                }
                true
            };
            let waited = since.elapsed();
            if said == Duration::ZERO || waited >= said {
                let out = suspects.left_out(begun.elapsed());
                let out = if out.is_empty() { String::new() } else { format!("; left out: {}", out.join(", ")) };
                let needed = if gathers {
                    format!("{} wanted within {} s", self.first, GATHER.as_secs())
                } else {
                    format!("at least {} needed", self.least)
                };
                event(&format!(
                    "waits for hosts: {} present, {needed}, for {:.0} s{out}",
                    count(ranks.len(), "slot"),
                    waited.as_secs_f64()
                ));
                said = waited + WORD;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn generation(
        &self,
        number: u32,
        ranks: &[PresentHost],
        lost: &Arc<Mutex<Lost>>,
        (suspects, begun): (&Suspects, Instant),
        snapshots: &Snapshots,
        interrupt: &Interrupt,
    ) -> Result<GenerationEnd> {
        let mut spec = self.spec.clone();
        spec.workers = ranks.len();
        spec.variables.env.push((config::SNAPSHOTS.to_owned(), snapshots.folder().display().to_string()));
        spec.variables.env.push((config::GENERATION.to_owned(), number.to_string()));
        let (mut mpirun, mut survives) = (Mpirun::find()?, false);
        if self.in_place {
            spec.variables.env.push(("RINGPULL_ELASTIC".to_owned(), "1".to_owned()));
            spec.variables.env.push((config::MIN_WORKERS.to_owned(), self.least.to_string()));
            let surviving = mpirun.clone().surviving_losses();
            survives = surviving.is_some();
            mpirun = surviving.unwrap_or(mpirun);
        }
        let hosts: Vec<Host> = ranks.iter().map(|found| found.host.clone()).collect();
        let said = Arc::clone(lost);
        let on_line = move |line: &str| said.lock().unwrap_or_else(PoisonError::into_inner).read(line);
        let job = by_mpi::MpiJob::new(&spec, &hosts, self.sink, Box::new(on_line))?;
        let ready = mpirun.command_of_parts(&hosts, &job.parts)?;
        let running: Vec<String> = ranks.iter().map(|found| found.offer.name.clone()).collect();
        let watch = Watch::start(self, number, ranks, lost, (suspects.clone(), begun), snapshots);
        // If a rank ends before all ranks have started MPI, the other ranks wait for it, and `mpirun` does
        // not end them.
        let (grace, mut have_started) = (Config::from_env()?.silence() * 3 / 2, !survives);
        let must_end = |name: &str, code: Option<i32>| {
            have_started = have_started || snapshots.newest(&distinct(ranks)).has_started(number);
            if have_started {
                return None;
            }
            let is_well = code == Some(0);
            let within = if is_well { grace } else { Duration::ZERO };
            event(&format!("{name} has ended before all ranks had started MPI, which the others wait for"));
            if !is_well {
                lost.lock().unwrap_or_else(PoisonError::into_inner).end(name, code);
            }
            Some(within)
        };
        let end = job.run(ready, interrupt, &hosts, must_end);
        watch.stop();
        let code = match end {
            Ok(code) => code,
            Err(error) if interrupt.count() == 0 => {
                event(&error.to_string());
                1
            }
            Err(error) => return Err(error),
        };
        if code == 0 {
            // Rank 0 is on the first remaining host.
            let first = left(ranks, lost).into_iter().next().unwrap_or_else(|| ranks[0].clone());
            let found = if self.in_place { snapshots.newest(&distinct(ranks)) } else { Newest::default() };
            return Ok(match snapshots.is_to_go_on(&first.host, number) {
                Some(true) => GenerationEnd::Resized,
                Some(false) if found.again == Some(number) => GenerationEnd::Resized,
                Some(false) if self.in_place && !found.has_ended(number) => {
                    event(&format!("generation {number} has ended, and none of its ranks has come to its end"));
                    GenerationEnd::Failed(Failure { code: 1, hosts: Vec::new(), is_exit: false })
                }
                Some(false) => GenerationEnd::Done,
                None => {
                    let host = &first.offer.name;
                    event(&format!(
                        "generation {number} has ended, and {host} does not answer whether the job is done: it goes \
                         on from its last commit"
                    ));
                    GenerationEnd::Failed(Failure { code: 1, hosts: vec![host.clone()], is_exit: false })
                }
            });
        }
        let lost = lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let blamed = lost.hosts(&running).into_iter().filter(|name| *name != Host::Local.to_string()).collect();
        event(&format!("generation {number} has ended: {}", lost.in_words(&running, code)));
        Ok(GenerationEnd::Failed(Failure { code, hosts: blamed, is_exit: lost.is_exit() }))
    }
}

/// Reports hosts on which a generation cannot begin, and leaves them out for a while.
fn go_without(without: &[(Host, String)], generation: u32, (past, begun): (&mut GenerationHistory, Instant)) {
    for (host, why) in without {
        event(&format!("generation {generation} cannot begin on {host}: {why}"));
    }
    let far = without.iter().filter(|(host, _)| *host != Host::Local).map(|(host, _)| host.to_string());
    for (host, time) in past.leave_out(far, begun.elapsed()) {
        event(&format!("{host} is left out for {} s", time.as_secs()));
    }
    std::thread::sleep(LOOK);
}

/// The hosts of the ranks that the job has not lost in place.
fn left(ranks: &[PresentHost], lost: &Mutex<Lost>) -> Vec<PresentHost> {
    let lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
    let is_left = |rank: &usize| !lost.in_place().contains_key(rank);
    ranks.iter().enumerate().filter(|(rank, _)| is_left(rank)).map(|(_, found)| found.clone()).collect()
}

/// The hosts of the ranks that the job has lost in place, with the time of each loss.
fn left_behind(ranks: &[PresentHost], lost: &Mutex<Lost>) -> Vec<(PresentHost, Instant)> {
    let lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
    lost.in_place().iter().filter_map(|(rank, when)| Some((ranks.get(*rank)?.clone(), *when))).collect()
}

/// Each host once.
fn distinct(ranks: &[PresentHost]) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for found in ranks {
        if !hosts.contains(&found.host) {
            hosts.push(found.host.clone());
        }
    }
    hosts
}

/// The generation with which this launcher goes on, given what the hosts have of the job, and a sentence
/// about it.
fn take_over(job: &str, found: &Newest) -> Result<(u32, String)> {
    let Some(last) = found.begun else {
        return Ok((0, format!("job {job}: no host has a commit of it, so it begins as the program does")));
    };
    let from = match found.snapshot {
        Some((made, number)) => format!("from commit {number} of generation {made}"),
        None => "as the program does: no host has a commit of it".to_owned(),
    };
    let words = format!("job {job} goes on after generation {last}, whose launcher is gone, {from}");
    last.checked_add(1).map(|next| (next, words)).ok_or_else(|| {
        Error::argument(
            format!("job {job} has the last number that a generation can have, {last}"),
            "remove its folder of snapshots from the hosts, or give the job another name",
        )
    })
}

/// Prints the line that announces a start.
fn announce(generation: u32, before: Option<usize>, ranks: &[PresentHost]) {
    let hosts: BTreeSet<&str> = ranks.iter().map(|found| &found.offer.name[..]).collect();
    let on = match hosts.len() {
        1 => hosts.into_iter().next().unwrap_or_default().to_owned(),
        several => format!("{several} hosts"),
    };
    let workers = match before {
        Some(before) if before != ranks.len() => format!("{before} to {}", count(ranks.len(), "worker")),
        _ => count(ranks.len(), "worker"),
    };
    event(&format!("generation {generation}: {workers} on {on}"));
}
