//! Leads from one generation of ranks to the next. Survivors with different progress are brought to the same
//! operations, and operations that no survivor has done are retried.
//!
//! 1. The transport and the control star are connected again over the survivors (`Succession`), and the
//!    placement, the schedules, the agreement and the threads are made anew. The measured model is kept.
//! 2. Every rank sends to all others the number of operations of each topic that it has done.
//! 3. An operation that some rank has done counts as done, including the lost rank's contribution. Ranks that
//!    lack it get the sum from the lowest rank that has it, and update their value with this sum as usual.
//! 4. An operation that no rank has done is called again by the survivors, in the order of each rank's calls.
//!
//! If another rank is lost meanwhile, all steps begin again over the survivors of that loss. Ranks that got
//! further in these steps have only done more operations.
//!
//! A rank may be lost while some ranks still start and others have started. So ranks that start and ranks
//! that go on after a loss begin in the same way. Each reports whether it starts or goes on. A rank that
//! starts has done no operations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, unbounded};

use ringpull_base::config::Config;
use ringpull_base::{Error, Result, last_words};
use ringpull_plan::{Model, Parts};

use crate::communicator::{Communicator, LearnedModel};
use crate::progress::comm::{AbortOnPanic, communicate};
use crate::progress::connected::{LEARNING, ReadyTransport, Succession, check_start, is_enough};
use crate::progress::fusion::BUCKET_BYTES;
use crate::progress::generation::{Change, CurrentGeneration};
use crate::progress::job::Submission;
use crate::progress::kept::RetryStore;
use crate::progress::messages::{ControlMessage, Topic};
use crate::progress::shared::{Command, InheritedState, Shared, is_loss};
use crate::progress::watcher::{Watcher, decode};
use crate::transport::control::{Control, Event};

/// The names of the threads that may call the program.
pub(super) const COMM: &str = "ringpull-comm";
pub(super) const FINISH: &str = "ringpull-finish";

/// A generation of ranks, as the comm thread sees it.
pub(super) struct Generation {
    pub(super) shared: Arc<Shared>,
    communicator: Communicator,
    inbox: mpsc::Receiver<Command>,
    finishing: mpsc::Sender<Submission>,
    finisher: JoinHandle<()>,
    succession: Option<Succession>,
    finalise: Box<dyn FnOnce()>,
}

/// Ranks that are connected and can exchange messages.
pub(super) struct ReadyRanks {
    pub(super) communicator: Communicator,
    pub(super) control: Control,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) succession: Option<Succession>,
    pub(super) finalise: Box<dyn FnOnce()>,
}

/// A generation that was ended by a loss, as the next generation needs it.
pub(super) struct EndedGeneration<'a> {
    shared: &'a Shared,
    generation: u64,
    learned: &'a LearnedModel,
}

/// The state in which a generation begins.
#[derive(Default)]
pub(super) struct GenerationStart {
    /// The numbers that the ranks had when they began to connect.
    ranks: Vec<usize>,
    number: u64,
    /// The number of operations of each topic that are done.
    done: BTreeMap<Topic, u64>,
}

/// Makes a communicator of connected ranks, and brings survivors of a loss to the same operations. `before`
/// is `None` on a rank that starts. If a rank is lost meanwhile, begins again without it.
pub(super) fn ready(
    mut connected: ReadyTransport,
    config: &Config,
    before: Option<&EndedGeneration<'_>>,
) -> Result<(ReadyRanks, GenerationStart)> {
    let mut ranks: Vec<usize> = match &connected.succession {
        Some(succession) => succession.ranks.clone(),
        None => (0..connected.control.size()).collect(),
    };
    let among = connected.succession.as_ref().map_or(ranks.len(), |succession| succession.among);
    loop {
        let ReadyTransport { transport, control, helpers, finalise, succession } = connected;
        let stop = Arc::new(AtomicBool::new(false));
        if succession.is_some() {
            // MPI may report a loss to the others but not to this rank, which would then wait for them.
            control.stop_on_loss(Some(&stop));
        }
        let made = Communicator::new(transport, helpers, config, Arc::clone(&stop)).and_then(|mut communicator| {
            let begun = if succession.is_some() {
                begin_alike(&mut communicator, config, before, (&ranks, among))
            } else {
                communicator.learn(config).map(|()| GenerationStart::default())
            };
            match begun {
                Ok(beginning) => Ok((communicator, beginning)),
                Err(cause) => {
                    communicator.abandon();
                    Err(cause)
                }
            }
        });
        control.stop_on_loss(None);
        let made = match made {
            Ok((communicator, _)) if stop.load(Ordering::Acquire) => {
                communicator.abandon();
                Err(Error::Stopped {})
            }
            made => made,
        };
        match (made, succession) {
            (Ok((communicator, beginning)), succession) => {
                let ready = ReadyRanks { communicator, control, stop, succession, finalise };
                return Ok((ready, GenerationStart { ranks, ..beginning }));
            }
            (Err(cause), Some(succession)) if is_loss(&cause) => {
                let (rank, events) = (control.rank(), control.events().clone());
                // This comes first, so that the others know of it.
                end_later(control);
                connected = (succession.next)(&cause)?;
                if let Some(succession) = &connected.succession {
                    if !is_enough(&succession.ranks, ranks.len())
                        && let Some(EndedGeneration { shared, .. }) = before
                        && is_given_up(rank, ranks.len(), &events)
                    {
                        return Err(shared.cut_off("the others have heard nothing from it while it connected"));
                    }
                    ranks = succession.ranks.iter().map(|rank| ranks[*rank]).collect();
                }
            }
            (Err(cause), _) => return Err(cause),
        }
    }
}

/// Does the first steps of all ranks of a job that goes on after losses, on ranks that start and on ranks
/// that go on. Collective.
fn begin_alike(
    communicator: &mut Communicator,
    config: &Config,
    before: Option<&EndedGeneration<'_>>,
    (ranks, among): (&[usize], usize),
) -> Result<GenerationStart> {
    let known = before.map(|EndedGeneration { learned, .. }| learned.model);
    let all: Vec<Option<Model>> = gather(communicator, &known)?;
    let Some(model) = all.into_iter().flatten().next() else {
        check_start(ranks, among)?;
        communicator.learn(config)?;
        return Ok(GenerationStart::default());
    };
    if let Some(EndedGeneration { shared, learned, .. }) = before {
        communicator.go_on_from(learned);
        communicator.count_on(
            [&shared.counters.sent_bytes, &shared.counters.received_bytes].map(|bytes| bytes.load(Ordering::Relaxed)),
        );
    } else {
        let source = "ranks that had begun".to_owned();
        communicator.go_on_from(&LearnedModel { model, source, ..LearnedModel::default() });
    }
    bring_level(before, ranks[communicator.rank()], communicator)
}

/// Returns true if ranks that have begun have gone on without this rank (`rank` of `size` in their star),
/// because they heard nothing from it. They have reported that on the star before they ended their
/// connections to this rank.
fn is_given_up(rank: usize, size: usize, events: &Receiver<Event>) -> bool {
    let until = Instant::now() + LEARNING;
    while let Ok(event) = events.recv_deadline(until) {
        let Event::Frame { from, bytes } = event else { continue };
        if let ControlMessage::Silent(ranks) = decode(from, &bytes)
            && ranks.contains(&rank)
            && !is_enough(&ranks, size)
        {
            return true;
        }
    }
    false
}

/// Drops a value on a separate thread, because that may take long.
fn end_later(what: impl Send + 'static) {
    drop(std::thread::Builder::new().name("ringpull-end".to_owned()).spawn(move || drop(what)));
}

impl Generation {
    /// Starts the threads of a generation.
    pub(super) fn begin(ready: ReadyRanks, config: &Config, mut inherited: InheritedState) -> Result<Self> {
        let ReadyRanks { mut communicator, control, stop, succession, finalise } = ready;
        let (commands, inbox) = mpsc::channel();
        let (own_notes, notes) = unbounded();
        let (finishing, finished) = mpsc::channel::<Submission>();
        inherited.sever = succession.as_ref().map(|succession| Arc::clone(&succession.sever));
        let shared = Arc::new(Shared::new(&communicator, control, config, (stop, commands, own_notes), inherited));
        if shared.rank == 0 && shared.info.helpers > 0 {
            let weak = Arc::downgrade(&shared);
            communicator.ask_helpers_by(Box::new(move |asked| {
                weak.upgrade().into_iter().for_each(|shared| shared.ask_helpers(&asked));
            }));
        }
        let sharing = Arc::clone(&shared);
        let finisher = spawn(FINISH, move || finish(&sharing, &finished))?;
        watch(&shared, config, &communicator, notes)?;
        Ok(Generation { shared, communicator, inbox, finishing, finisher, succession, finalise })
    }

    /// Runs launched operations, over any number of generations, until this rank leaves or a fault ends the
    /// job.
    pub(super) fn run(mut self, config: &Config, current: &CurrentGeneration) {
        let _guard = AbortOnPanic;
        loop {
            let learned = self.communicator.learned().clone();
            let Generation { shared, communicator, inbox, finishing, finisher, succession, finalise } = self;
            communicate(&shared, communicator, &inbox, &finishing);
            drop(finishing);
            let Some(succession) = succession else {
                if shared.condition.is_well() {
                    finalise();
                }
                return drop(finisher.join());
            };
            // Finished jobs stay finished: from here on only this thread changes a job.
            drop(finisher.join());
            wait_for_all(&shared);
            let Some(loss) = shared.condition.loss() else { return };
            match renew((&shared, &loss), succession, config, &learned, current) {
                Ok(next) => self = next,
                Err(fault) => return shared.end(&fault),
            }
            end_later(shared);
        }
    }
}

/// Does the long work, as the finishing thread. Ends when the comm thread has run every job and all jobs are
/// finished, and reports its end.
fn finish(shared: &Shared, finished: &mpsc::Receiver<Submission>) {
    let _guard = AbortOnPanic;
    finished.iter().for_each(|job| shared.finish(job));
    if shared.condition.is_well() && !shared.is_helper() {
        shared.send_to_rank_0(ControlMessage::Done);
    }
}

/// Starts the control thread. It ends by itself when the last owner of `shared` is gone, and is not joined.
fn watch(shared: &Arc<Shared>, config: &Config, comm: &Communicator, notes: Receiver<ControlMessage>) -> Result<()> {
    let bucket_bytes = config.fusion_bytes.unwrap_or(comm.bucket_bytes().min(BUCKET_BYTES));
    let (watching, mut watcher) =
        (Arc::downgrade(shared), Watcher::new(config, (shared.size, shared.info.helpers), bucket_bytes));
    if comm.sums_block() || config.check_replicas > 0 {
        watcher.sums_block();
    }
    spawn("ringpull-agree", move || watcher.run(&watching, &notes)).map(drop)
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(|cause| Error::io("start", format!("thread {name}"), &cause))
}

/// If this rank has left, waits until all ranks are done or there was a fault, because the survivors of a
/// loss may need this rank until then. A rank whose program fails does not wait, and the others do not wait
/// for it.
fn wait_for_all(shared: &Shared) {
    let condition = &shared.condition;
    condition.changes.until(|_| !condition.is_well() || condition.is_closing() || condition.is_failing());
}

fn renew(
    (old, loss): (&Arc<Shared>, &Error),
    succession: Succession,
    config: &Config,
    learned: &LearnedModel,
    current: &CurrentGeneration,
) -> Result<Generation> {
    let connected = (succession.next)(loss)?;
    let before = EndedGeneration { shared: old, generation: current.generation(), learned };
    let (ready, GenerationStart { ranks, number: generation, done }) = ready(connected, config, Some(&before))?;
    let (rank, size) = (ready.control.rank(), ready.control.size());
    let lost: Vec<usize> = (0..old.size).filter(|rank| !ranks.contains(rank)).collect();
    tracing::info!(rank, size, ?lost, "the job goes on without lost ranks");
    last_words::introduce(rank, size);
    let next = Generation::begin(ready, config, InheritedState::of(old, generation, done))?;
    current.replace(old, &next.shared, Change { generation, rank, num_workers: size, lost });
    Ok(next)
}

/// The progress of a rank, which it sends to all others.
#[derive(serde::Serialize, serde::Deserialize)]
struct ProgressReport {
    generation: u64,
    done: Vec<(Topic, u64)>,
    /// The rank's number in the generation before, and the errors with which other ranks would end, as far as
    /// it knows them.
    rank: usize,
    reasons: Vec<(usize, String)>,
    /// The error that keeps it from going on without the lost rank.
    cannot: Option<Error>,
}

impl ProgressReport {
    fn of(before: &EndedGeneration<'_>) -> Result<Self> {
        let shared = before.shared;
        let elastic = shared.elastic.as_ref().ok_or_else(|| Error::bug("a job that is not elastic is renewed"))?;
        Ok(ProgressReport {
            generation: before.generation,
            done: done_here(shared, elastic).into_iter().collect(),
            rank: shared.rank,
            reasons: shared.losses.reasons.lock().clone().into_iter().collect(),
            cannot: shared.losses.obstacle.get().cloned().or_else(|| check_complete(shared).err()),
        })
    }

    fn of_a_start(rank: usize) -> Self {
        ProgressReport { generation: 0, done: Vec::new(), rank, reasons: Vec::new(), cannot: None }
    }
}

/// The sums of some topics.
type SumsByTopic = Vec<(Topic, Vec<u8>)>;

/// Gives every rank the sums of the operations that some rank has done. A rank that starts has done nothing;
/// `rank` is its number. The next generation's number is above those of all ranks, because some ranks may
/// have gone on after a loss that others have not seen.
fn bring_level(
    before: Option<&EndedGeneration<'_>>,
    rank: usize,
    communicator: &mut Communicator,
) -> Result<GenerationStart> {
    let own = before.map_or_else(|| Ok(ProgressReport::of_a_start(rank)), ProgressReport::of)?;
    let all: Vec<ProgressReport> = gather(communicator, &own)?;
    if let Some(EndedGeneration { shared, .. }) = before {
        check_quorum(shared, &all)?;
    }
    // A rank whose program has ended with an error does not count as lost.
    let is_here = |rank: usize| all.iter().any(|account| account.rank == rank);
    if let Some((lost, why)) = all.iter().flat_map(|account| &account.reasons).find(|(rank, _)| !is_here(*rank)) {
        let (peer, ranks, why) = (format!("rank {lost}"), vec![*lost], why.clone());
        let operation = before.map_or_else(|| Some("create".to_owned()), |before| before.shared.doing());
        let operation = operation.unwrap_or_else(|| "the next operation".to_owned());
        return fail_together(communicator, Error::Finished { peer, ranks, operation, rank: own.rank, why });
    }
    if let Some(cause) = all.iter().find_map(|account| account.cannot.clone()) {
        return fail_together(communicator, cause);
    }
    let mut most: BTreeMap<Topic, (u64, usize)> = BTreeMap::new();
    for (rank, account) in all.iter().enumerate() {
        for (topic, count) in &account.done {
            let entry = most.entry(topic.clone()).or_insert((*count, rank));
            if *count > entry.0 {
                *entry = (*count, rank);
            }
        }
    }
    let count_of = |account: &ProgressReport, topic: &Topic| {
        let at = account.done.binary_search_by(|(other, _)| other.cmp(topic));
        at.map_or(0, |at| account.done[at].1)
    };
    let is_lacking =
        |(topic, (count, _)): &(&Topic, &(u64, usize))| all.iter().any(|account| count_of(account, topic) < *count);
    let lacking: Vec<(&Topic, usize, u64)> =
        most.iter().filter(is_lacking).map(|(topic, (count, rank))| (topic, *rank, *count)).collect();
    if !lacking.is_empty() {
        let own_rank = communicator.rank();
        let last_sum = |topic: &Topic| match before {
            Some(before) => before.shared.last_sum(topic),
            None => Err(Error::bug(format!("a rank that has done nothing was asked for the sum of {}", topic.key()))),
        };
        // Every rank gets the error of any rank, so no rank waits for a rank that has failed.
        let given: Result<SumsByTopic> = lacking
            .iter()
            .filter(|(_, rank, _)| *rank == own_rank)
            .map(|(topic, ..)| Ok(((*topic).clone(), last_sum(topic)?)))
            .collect();
        let sums: Vec<Result<SumsByTopic>> = gather(communicator, &given)?;
        let sums: Vec<_> = sums.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        let taken: Result<()> = sums.into_iter().try_for_each(|(topic, sum)| {
            let (_, _, count) = lacking.iter().find(|(other, ..)| **other == topic).expect("only these are given");
            match (count - count_of(&own, &topic), before.and_then(|before| before.shared.elastic.as_ref())) {
                (0, _) => Ok(()),
                (1, Some(elastic)) => take(elastic, &topic, &sum),
                (lacks, _) => Err(Error::bug(format!("{lacks} operations on {} are done elsewhere", topic.key()))),
            }
        });
        // An update may fail on only one rank.
        let all: Vec<Result<()>> = gather(communicator, &taken)?;
        if let Err(cause) = all.into_iter().collect::<Result<()>>() {
            return fail_together(communicator, cause);
        }
    }
    let number = 1 + all.iter().map(|account| account.generation).max().unwrap_or(0);
    let done = most.into_iter().map(|(topic, (count, _))| (topic, count)).collect();
    Ok(GenerationStart { number, done, ranks: Vec::new() })
}

/// Fails with an error that every rank finds in the gathered values, after all ranks have gathered them. A
/// rank that still gathers would take the end of another rank for a loss, and go on without it. Collective.
fn fail_together<T>(communicator: &mut Communicator, cause: Error) -> Result<T> {
    drop(gather(communicator, &()));
    Err(cause)
}

/// Returns, for each topic, the number of operations that this rank has done and that can be retried.
fn done_here(shared: &Shared, elastic: &RetryStore) -> BTreeMap<Topic, u64> {
    let calls = shared.calls.lock();
    shared.fail_waiting();
    let mut done = elastic.before.clone();
    for (topic, called) in calls.ordinals().filter(|(topic, _)| matches!(topic, Topic::Key { .. } | Topic::Barrier)) {
        *done.entry(topic.clone()).or_default() += called;
    }
    elastic.with(|orphans| {
        for (call, _) in orphans.iter() {
            if let Some(count) = done.get_mut(&call.topic) {
                *count -= 1;
            }
        }
    });
    done
}

/// Finishes the first operation of a topic that this rank has not done, with the sum that other ranks have.
fn take(elastic: &RetryStore, topic: &Topic, sum: &[u8]) -> Result<()> {
    let orphan = elastic.with(|orphans| {
        let of_topic = (0..orphans.len()).filter(|at| orphans[*at].0.topic == *topic);
        let first = of_topic.min_by_key(|at| orphans[*at].0.place)?;
        Some(orphans.swap_remove(first))
    });
    match orphan.flatten() {
        Some((_, orphan)) => orphan.job.given(sum),
        None => Err(Error::bug(format!("an operation on {} is done elsewhere and was not called here", topic.key()))),
    }
}

/// Checks that the ranks that this rank can reach may go on. If groups of ranks are alive and do not hear
/// each other, only one may go on: the larger group, or rank 0's if they are equal. A rank whose process has
/// ended is in no group. Other live ranks may have ended their connections to this rank. They have reported
/// that on the control star, and there is time to read it.
fn check_quorum(shared: &Shared, left: &[ProgressReport]) -> Result<()> {
    let ranks: Vec<usize> = left.iter().map(|account| account.rank).collect();
    if is_enough(&ranks, shared.size) {
        return Ok(());
    }
    if !shared.losses.is_silent() {
        std::thread::sleep(LEARNING);
    }
    match shared.condition.fatal() {
        Some(fault) => Err(fault),
        None if shared.losses.is_silent() => {
            Err(shared.cut_off(&format!("it can reach {} of {} ranks", left.len(), shared.size)))
        }
        None => Ok(()),
    }
}

fn check_complete(shared: &Shared) -> Result<()> {
    let stores: Vec<_> = shared.stand_ins.lock().values().filter_map(std::sync::Weak::upgrade).collect();
    stores.iter().try_for_each(|store| store.check_complete())
}

/// Returns the `own` values of all ranks. Collective.
fn gather<T: serde::Serialize + serde::de::DeserializeOwned>(comm: &mut Communicator, own: &T) -> Result<Vec<T>> {
    let bytes = postcard::to_stdvec(own).expect("plain data");
    let lens = comm.gather_word(bytes.len() as u64, 0)?;
    let parts = Parts::of_lens(lens.iter().map(|len| *len as usize));
    let all = comm.gather(parts.clone(), 0, |part| part.copy_from_slice(&bytes))?;
    let read = |rank: usize| {
        let bytes = &all.bytes()[parts.range(rank..rank + 1)];
        postcard::from_bytes(bytes).map_err(|cause| Error::protocol(None, format!("rank {rank}"), cause.to_string()))
    };
    (0..comm.size()).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_reads_that_the_others_have_given_it_up() {
        let word = |ranks: &[usize]| {
            let bytes = postcard::to_stdvec(&ControlMessage::Silent(ranks.to_vec())).unwrap();
            Event::Frame { from: 0, bytes }
        };
        let gone = || Event::Gone { rank: 0, cause: "its process ended".to_owned() };
        let is_given_up_by = |told: Vec<Event>| {
            let (star, events) = unbounded();
            told.into_iter().for_each(|event| star.send(event).unwrap());
            is_given_up(2, 4, &events)
        };
        assert!(is_given_up_by(vec![word(&[2])]));
        assert!(is_given_up_by(vec![word(&[3]), word(&[2, 3]), gone()]));
        assert!(!is_given_up_by(vec![word(&[3]), gone()]));
        // The larger group goes on, whatever the others have reported.
        assert!(!is_given_up_by(vec![word(&[1, 2, 3])]));
    }
}
