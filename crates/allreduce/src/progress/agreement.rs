//! Decides the order in which operations launch. Rank 0 decides, for every rank.
//!
//! An operation is identified by its topic (such as a key of a store, or a barrier) and by the number of
//! operations that a rank has called on that topic before. Ranks may therefore call in different orders. Rank
//! 0 collects the calls. An operation launches when every rank has called it alike. If calls do not fit
//! together, or some ranks never make theirs, all ranks get one error.
//!
//! The sequence is frozen when rank 0's own calls have repeated themselves (`freezing`). From then on every
//! rank begins the same units in the same order, each as soon as the rank has made the unit's calls, and no
//! message is sent. If the calls of one rank no longer fit, all ranks are stopped. They run up to the unit
//! that the furthest rank has begun, and rank 0 launches their calls one by one again. The frozen sequence
//! depends on the sequences of calls and on where their callers wait, not on the time at which the calls
//! come. (Where callers of `Tensor::watched` wait is inferred, and this inference does depend on time.) If a
//! cycle stands still although all ranks have begun the same units, no further cycle is frozen.
//!
//! The operations of a process set launch when all of its ranks have called them, in any phase. They are in
//! no cycle, are numbered separately, and are announced only to the ranks of the set. All this holds for
//! messages between two ranks too; `envelopes` pairs their sends and receives. Calls of one operation of a
//! communicator that do not fit together fail that operation on every rank of the communicator, and nothing
//! else.
//!
//! A rank that has no data left joins. Until all ranks have joined, operations then launch without its call,
//! and a job of its engine takes part in them (`StandIn`). Nothing is frozen while some rank has joined.
//!
//! This module does no I/O: time is a parameter, and the messages to all ranks are returned as [`Order`]s.

mod disagreement;
mod envelopes;
mod late;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use ringpull_base::{Error, Key, Reduction};

use crate::progress::agreement::disagreement::disagreement;
use crate::progress::agreement::names::Names;
use crate::progress::freezing::{Logs, PendingFreeze};
use crate::progress::messages::{
    Call, Freeze, Launch, Operation, Order, Overdue, Refusal, RunTo, StoppedCycle, Stuck, Topic, Transfer,
};
use crate::transport::{OF_A_SET, later};

pub use late::{LateCall, STILL_S};

#[cfg_attr(test, derive(Clone, serde::Serialize))]
struct PendingOperation {
    /// The different calls of the operation. There is nearly always one.
    kinds: Vec<Call>,
    /// The call of each rank of the job, as an index into `kinds` that counts from 1, or 0 if the rank has
    /// made no call.
    of: Vec<u32>,
    /// The number of ranks that have made a call.
    called: usize,
    /// The ranks that must call the operation, or `None` if all must.
    set: Option<Vec<usize>>,
    since_s: f64,
    /// True if some calls of the operation do not fit together.
    is_refused: bool,
}

/// A call of a frozen cycle that `by` has begun and another rank has not made.
#[derive(Clone)]
#[cfg_attr(test, derive(serde::Serialize))]
struct OutstandingCall {
    key: Key,
    operation: Operation,
    by: usize,
    since_s: f64,
}

#[cfg_attr(test, derive(Clone, serde::Serialize))]
enum AgreementPhase {
    /// Operations launch one by one.
    Open,
    /// A cycle was found. It is frozen when every rank has made the calls that precede it.
    Freezing(PendingFreeze),
    /// No rank announces anything. The cycle has `units` units.
    Frozen { epoch: u32, units: u64 },
    /// The ranks report how many units they have begun.
    Stopping { epoch: u32, units: u64, answers: Vec<Option<StoppedCycle>>, overdue: Option<Overdue> },
}

/// A cycle is frozen when it has come this number of times. Each time that this proves too early, the number
/// doubles, up to `MOST_TIMES`.
const TIMES: usize = 2;
const MOST_TIMES: usize = 64;
/// A cycle was not frozen too early if it ran this number of times before it was stopped.
const LONG_CYCLES: u64 = 16;

/// Rank 0's table of calls that wait for the calls of other ranks.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
pub struct Agreement {
    size: usize,
    limit_s: f64,
    bucket_bytes: usize,
    pending: BTreeMap<(Topic, u64), PendingOperation>,
    /// The pending operations of process sets.
    of_sets: BTreeMap<(Topic, u64), PendingOperation>,
    /// True if there are process sets or messages. If sums block as well, no cycle that blocks may be frozen
    /// beside them.
    has_sets: bool,
    sums_block: bool,
    left: BTreeSet<usize>,
    /// The error with which each rank would end if it ended now.
    failing: Vec<Option<String>>,
    /// The ranks that have no data left, and the time of the last message about calls from any rank.
    joined: BTreeSet<usize>,
    heard_s: f64,
    /// For each rank that was behind when the last frozen cycle was stopped: the call that it has to make
    /// first. The entry is removed when the rank has made all its missing calls, and nothing is frozen
    /// before.
    outstanding: Vec<Option<OutstandingCall>>,
    /// For each rank that waits in a call for an operation that cannot begin: the wait, and the time since
    /// which it is known.
    stuck: Vec<Option<(Stuck, f64)>>,
    /// For each rank that has messages under way: the time since which no message has moved.
    still_s: Vec<Option<f64>>,
    launched: u32,
    launched_of_sets: u32,
    logs: Logs,
    names: Names,
    phase: AgreementPhase,
    cycles: CycleHistory,
}

/// The frozen cycles so far, and the conclusions for the next cycle.
#[cfg_attr(test, derive(Clone, serde::Serialize))]
struct CycleHistory {
    /// The number of cycles.
    epochs: u32,
    /// The number of times that calls have to repeat themselves before they are frozen.
    times: usize,
    /// True if a frozen cycle stood still although no rank was behind: each rank waited for an operation that
    /// the order of the units kept from beginning. Another cycle would stand still, too.
    has_stood_still: bool,
    /// The unit at which a cycle last stood still although no rank was behind.
    still_at: Option<u64>,
}

impl Agreement {
    /// Returns a table for `size` ranks. A call waits at most `limit_s` seconds for the calls of other ranks,
    /// and sums share buckets of `bucket_bytes`.
    pub fn new(size: usize, limit_s: f64, bucket_bytes: usize) -> Self {
        Agreement {
            size,
            limit_s,
            bucket_bytes,
            pending: BTreeMap::new(),
            of_sets: BTreeMap::new(),
            has_sets: false,
            sums_block: false,
            left: BTreeSet::new(),
            failing: vec![None; size],
            joined: BTreeSet::new(),
            heard_s: 0.0,
            outstanding: vec![None; size],
            stuck: vec![None; size],
            still_s: vec![None; size],
            launched: 0,
            launched_of_sets: 0,
            logs: Logs::new(size),
            names: Names::default(),
            phase: AgreementPhase::Open,
            cycles: CycleHistory { epochs: 0, times: TIMES, has_stood_still: false, still_at: None },
        }
    }

    /// Records that sums block: each is done only after the one before it, in the same order on every rank.
    pub fn sums_block(&mut self) {
        self.sums_block = true;
    }

    /// Records a call, and returns the orders that follow from it.
    pub fn call(&mut self, rank: usize, mut call: Call, now_s: f64) -> Result<Vec<Order>, Error> {
        self.names.count(rank, &mut call);
        let mut orders = self.take(rank, call, now_s)?;
        orders.extend(self.forget_names());
        Ok(orders)
    }

    fn take(&mut self, rank: usize, call: Call, now_s: f64) -> Result<Vec<Order>, Error> {
        let is_beside = call.operation == Operation::split() || matches!(call.topic, Topic::Message(_));
        let is_first = is_beside && !std::mem::replace(&mut self.has_sets, true);
        if call.topic.set().is_some() {
            // The ranks of a set make this call without the others. The cycle of the others goes on, and may
            // block.
            let mut orders = if is_first { self.give_up_cycle() } else { Vec::new() };
            orders.extend(if let Topic::Message(envelope) = &call.topic {
                let envelope = envelope.clone();
                self.message(rank, &envelope, call, now_s)?
            } else {
                self.call_of_set(rank, call, now_s)?
            });
            return Ok(orders);
        }
        if matches!(self.phase, AgreementPhase::Frozen { .. } | AgreementPhase::Stopping { .. }) {
            // The rank announced the call before it knew of the freeze. It treats the call as part of the
            // cycle, or announces it again.
            return Ok(Vec::new());
        }
        self.logs.push(rank, &call);
        self.heard_s = now_s;
        let name = (call.topic.clone(), call.ordinal);
        let size = self.size;
        let pending = self.pending.entry(name.clone()).or_insert_with(|| PendingOperation::new(size, None, now_s));
        // This is checked at each call, because the last rank's call may come much later. Earlier calls are
        // alike.
        if !pending.take(rank, call) && !name.0.is_collective() {
            return Err(disagreement(pending));
        }
        let is_complete = pending.is_complete()
            || !self.joined.is_empty() && pending.missing().iter().all(|rank| self.joined.contains(rank));
        if !is_complete {
            self.check_left()?;
        }
        match &mut self.phase {
            AgreementPhase::Freezing(freezing) => freezing.call(rank, &name.0, name.1),
            _ if rank == 0 => self.find_cycle(),
            _ => {}
        }
        let is_held = matches!(&self.phase, AgreementPhase::Freezing(freezing) if freezing.is_beyond(&name.0, name.1));
        let mut orders = Vec::new();
        if is_complete && !is_held {
            orders.push(self.launch(&name));
            if matches!(orders.last(), Some(Order::Refuse(_))) {
                // A sequence that contains such a call must not be frozen.
                self.logs.clear();
                orders.extend(self.reopen());
            }
            if let AgreementPhase::Freezing(freezing) = &mut self.phase {
                freezing.launched();
            }
        }
        if let AgreementPhase::Freezing(freezing) = &self.phase {
            if freezing.has_crossed() {
                self.try_less_often(0);
                orders.extend(self.reopen());
            } else if let (true, Some(Order::Launch(last))) = (freezing.is_ready(), orders.last()) {
                orders = vec![self.freeze(last.clone())];
            }
        }
        Ok(orders)
    }

    /// Looks for a cycle after a call of rank 0.
    fn find_cycle(&mut self) {
        let are_ready = self.left.is_empty()
            && self.joined.is_empty()
            && self.outstanding.iter().all(Option::is_none)
            && !self.pending.values().any(|pending| pending.is_refused);
        if self.size > 1
            && are_ready
            && !self.cycles.has_stood_still
            && let Some(period) = self.logs.period(self.cycles.times)
            && !(self.has_sets && (self.sums_block || self.logs.runs_alone(period)))
        {
            let open = self.pending.iter().map(|(name, pending)| (name, pending.missing()));
            self.phase = AgreementPhase::Freezing(self.logs.freezing(period, open));
        }
    }

    /// Launches an operation that every rank has called, except ranks that have joined.
    fn launch(&mut self, name: &(Topic, u64)) -> Order {
        let pending = self.pending.remove(name).expect("what launches was pending");
        self.names.launched(&name.0, name.1);
        if pending.is_refused {
            return refuse(name, disagreement(&pending));
        }
        let (_, first) = pending.first();
        let has_zeros = matches!(first.transfer, Transfer::Sum { reduction: Reduction::Sum, .. });
        let joined = pending.missing();
        if !joined.is_empty() && name.0.is_collective() && !has_zeros {
            let what = format!(
                "{} of {} needs all ranks, but rank(s) {joined:?} have called join",
                first.operation,
                name.0.key()
            );
            return refuse(
                name,
                Error::argument(what, "until every rank has called join, call only sums and averages"),
            );
        }
        self.launched = later(self.launched, 1);
        let call = (!joined.is_empty()).then(|| Box::new(first.clone()));
        Order::Launch(Launch { topic: name.0.clone(), ordinal: name.1, number: self.launched, call, from: None })
    }

    /// Records a call of an operation of a process set, and returns the orders that follow from it.
    fn call_of_set(&mut self, rank: usize, call: Call, now_s: f64) -> Result<Vec<Order>, Error> {
        self.heard_s = now_s;
        let (name, size) = ((call.topic.clone(), call.ordinal), self.size);
        let set = name.0.set().unwrap_or_default();
        if set.iter().any(|member| *member >= size) || !set.contains(&rank) {
            let what = format!("a call of ranks {set:?}");
            return Err(Error::protocol(None, format!("rank {rank}"), what));
        }
        let pending = self.of_sets.entry(name.clone());
        let pending = pending.or_insert_with(|| PendingOperation::new(size, Some(set.to_vec()), now_s));
        pending.take(rank, call);
        if !pending.is_complete() {
            self.check_left()?;
            return Ok(Vec::new());
        }
        let pending = self.of_sets.remove(&name).expect("it was just called");
        self.names.launched(&name.0, name.1);
        if pending.is_refused {
            return Ok(vec![refuse(&name, disagreement(&pending))]);
        }
        let number = self.next_of_sets();
        Ok(vec![Order::Launch(Launch { topic: name.0, ordinal: name.1, number, call: None, from: None })])
    }

    fn next_of_sets(&mut self) -> u32 {
        self.launched_of_sets = self.launched_of_sets.wrapping_add(1);
        OF_A_SET | self.launched_of_sets
    }

    fn freeze(&mut self, last: Launch) -> Order {
        let AgreementPhase::Freezing(freezing) = &self.phase else {
            unreachable!("only what is being frozen is frozen")
        };
        let (steps, units) = self.logs.cycle(freezing, self.bucket_bytes);
        self.cycles.epochs += 1;
        self.phase = AgreementPhase::Frozen { epoch: self.cycles.epochs, units: units.len() as u64 };
        // The pending calls that remain belong to the cycle: each rank finds its own calls there.
        self.pending.clear();
        self.logs.clear();
        steps.iter().for_each(|step| self.names.is_frozen(&step.topic));
        Order::Freeze(Freeze { epoch: self.cycles.epochs, last, number: later(self.launched, 1), steps, units })
    }

    /// Goes back to launching one by one. Operations that every rank has called launch now.
    fn reopen(&mut self) -> Vec<Order> {
        self.phase = AgreementPhase::Open;
        let complete = self.pending.iter().filter(|(_, pending)| self.lacking(pending).is_empty());
        let complete: Vec<_> = complete.map(|(name, _)| name.clone()).collect();
        complete.iter().map(|name| self.launch(name)).collect()
    }

    /// Requires more repetitions before the next cycle is frozen, because this one did not last.
    fn try_less_often(&mut self, cycles: u64) {
        self.cycles.times = if cycles >= LONG_CYCLES { TIMES } else { (self.cycles.times * 2).min(MOST_TIMES) };
    }

    /// Stops a cycle that is frozen or about to be frozen.
    fn give_up_cycle(&mut self) -> Vec<Order> {
        match self.phase {
            AgreementPhase::Frozen { epoch, .. } => self.invalidate(epoch, None),
            AgreementPhase::Freezing(_) => self.reopen(),
            AgreementPhase::Open | AgreementPhase::Stopping { .. } => Vec::new(),
        }
    }

    /// Stops the frozen cycle of `epoch`, because a rank has asked for it.
    pub fn invalidate(&mut self, epoch: u32, overdue: Option<Overdue>) -> Vec<Order> {
        match self.phase {
            AgreementPhase::Frozen { epoch: frozen, units } if frozen == epoch => {
                self.phase = AgreementPhase::Stopping { epoch, units, answers: vec![None; self.size], overdue };
                vec![Order::Stop(epoch)]
            }
            // Another rank has asked for it before.
            _ => Vec::new(),
        }
    }

    /// Records the number of units that a rank has begun. When all ranks have answered, orders all of them to
    /// run up to the unit of the furthest rank.
    pub fn stopped(&mut self, rank: usize, stopped: StoppedCycle, now_s: f64) -> Result<Vec<Order>, Error> {
        let AgreementPhase::Stopping { epoch, units, answers, overdue } = &mut self.phase else {
            return Ok(Vec::new());
        };
        if stopped.epoch != *epoch {
            return Ok(Vec::new());
        }
        answers[rank].get_or_insert(stopped);
        let Some(answers) = answers.iter().cloned().collect::<Option<Vec<StoppedCycle>>>() else {
            return Ok(Vec::new());
        };
        let by = (0..answers.len()).max_by_key(|rank| (answers[*rank].begun, std::cmp::Reverse(*rank)));
        let by = by.expect("there is a rank");
        let end = RunTo { epoch: *epoch, until: answers[by].begun, by };
        let (cycles, overdue) = (end.until / *units, overdue.take());
        let since_s = now_s - overdue.as_ref().map_or(0.0, |overdue| overdue.waited_s);
        for (rank, answer) in answers.iter().enumerate().filter(|(_, answer)| answer.begun < end.until) {
            let (key, operation) = answer.missing.clone().unwrap_or_else(|| {
                let operation = Operation::Collective("collective".to_owned());
                (Topic::Direct.key(), operation)
            });
            if self.left.contains(&rank) {
                return Err(self.gone(rank, &format!("{operation} of key {key}"), by));
            }
            self.outstanding[rank] = Some(OutstandingCall { key, operation, by, since_s });
        }
        let is_any_behind = answers.iter().any(|answer| answer.begun < end.until);
        let was_paused = overdue.is_some();
        // All may have paused at this unit once by chance.
        let place = end.until % *units;
        if overdue.is_some_and(|overdue| !overdue.has_begun) && !is_any_behind {
            self.cycles.has_stood_still = self.cycles.still_at.replace(place) == Some(place);
        }
        self.phase = AgreementPhase::Open;
        self.launched = later(self.launched, end.until);
        // A pause does not prove that the cycle was frozen too early.
        if !was_paused {
            self.try_less_often(cycles);
        }
        Ok(vec![Order::RunTo(end)])
    }

    /// Records that a rank has no data left. Operations of the others launch without it until all have
    /// joined.
    pub fn join(&mut self, rank: usize, now_s: f64) -> Result<Vec<Order>, Error> {
        match self.phase {
            // The rank joins again when all ranks have run up to the furthest rank's unit.
            AgreementPhase::Frozen { epoch, .. } => return Ok(self.invalidate(epoch, None)),
            AgreementPhase::Stopping { .. } => return Ok(Vec::new()),
            AgreementPhase::Open | AgreementPhase::Freezing(_) => {}
        }
        self.joined.insert(rank);
        self.heard_s = now_s;
        let mut orders = self.reopen();
        if self.joined.len() < self.size {
            self.check_left()?;
        } else {
            self.joined.clear();
            // The logs lack the calls of ranks that had joined. That they end here does not prove that a
            // cycle was frozen too early.
            self.logs.clear();
            self.cycles.times = TIMES;
            orders.push(Order::Joined(rank));
        }
        Ok(orders)
    }

    /// Records that a rank has left in order, after it had begun the units `begun` of a frozen cycle. Returns
    /// an error if other ranks wait for it.
    pub fn leave(&mut self, rank: usize, begun: Option<StoppedCycle>, now_s: f64) -> Result<Vec<Order>, Error> {
        self.left.insert(rank);
        // If the rank had made this call, it would have reported so (`caught_up`) before it left.
        if let Some(OutstandingCall { key, operation, by, .. }) = self.outstanding[rank].take() {
            return Err(self.gone(rank, &format!("{operation} of key {key}"), by));
        }
        let mut orders = self.give_up_cycle();
        if let Some(stopped) = begun {
            orders.extend(self.stopped(rank, stopped, now_s)?);
        }
        self.check_left()?;
        Ok(orders)
    }

    /// Returns true if a rank has left in order.
    pub fn has_left(&self, rank: usize) -> bool {
        self.left.contains(&rank)
    }

    /// Records that a rank has made the outstanding calls of the last frozen cycle.
    pub fn caught_up(&mut self, rank: usize) {
        self.outstanding[rank] = None;
    }

    /// Returns the ranks whose calls an operation lacks.
    fn lacking(&self, pending: &PendingOperation) -> Vec<usize> {
        // A rank that has joined adds no zeros in operations of a process set.
        let is_awaited = |rank: &usize| pending.set.is_some() || !self.joined.contains(rank);
        pending.missing().into_iter().filter(is_awaited).collect()
    }

    /// Returns a rank that an operation waits for although the rank makes no more calls. A receive from any
    /// rank waits in vain only if no possible sender makes more calls.
    fn in_vain(&self, pending: &PendingOperation, is_silent: impl Fn(usize) -> bool) -> Option<usize> {
        let lacking = self.lacking(pending);
        let silent = lacking.iter().copied().find(|rank| is_silent(*rank));
        let (_, call) = pending.first();
        silent.filter(|_| !call.topic.is_from_any() || lacking.iter().all(|rank| is_silent(*rank)))
    }

    /// Returns the error for an operation that rank `by` waits for. Rank `rank` has left and did not call it.
    fn gone(&self, rank: usize, operation: &str, by: usize) -> Error {
        let why = self.why(rank).unwrap_or_default().to_owned();
        let (peer, operation) = (format!("rank {rank}"), operation.to_owned());
        Error::Finished { peer, ranks: vec![rank], operation, rank: by, why }
    }

    /// The operations that some ranks have called and others have not.
    fn waiting(&self) -> impl Iterator<Item = &PendingOperation> {
        self.pending.values().chain(self.of_sets.values())
    }

    fn check_left(&self) -> Result<(), Error> {
        if self.left.is_empty() {
            return Ok(());
        }
        for pending in self.waiting() {
            if let Some(rank) = self.in_vain(pending, |rank| self.left.contains(&rank)) {
                let (by, call) = pending.first();
                return Err(self.gone(rank, &format!("{} of key {}", call.operation, call.topic.key()), by));
            }
        }
        match (self.joined.first(), self.left.first()) {
            (Some(by), Some(rank)) => Err(self.gone(*rank, "join", *by)),
            _ => Ok(()),
        }
    }
}

/// Returns the order by which only this operation fails.
fn refuse((topic, ordinal): &(Topic, u64), fault: Error) -> Order {
    Order::Refuse(Refusal { topic: topic.clone(), ordinal: *ordinal, fault })
}

impl PendingOperation {
    fn new(size: usize, set: Option<Vec<usize>>, since_s: f64) -> Self {
        PendingOperation { kinds: Vec::new(), of: vec![0; size], called: 0, set, since_s, is_refused: false }
    }

    /// Records a rank's call. Returns true if it fits the calls of the other ranks.
    fn take(&mut self, rank: usize, call: Call) -> bool {
        // Where ranks wait is recorded in the logs, not here.
        let call = Call { waited: false, ..call };
        let fits = self.kinds.first().is_none_or(|first| first.is_like(&call));
        let known = self.kinds.iter().position(|kind| *kind == call);
        let kind = known.unwrap_or_else(|| {
            self.kinds.push(call);
            self.kinds.len() - 1
        });
        self.called += usize::from(self.of[rank] == 0);
        self.of[rank] = kind as u32 + 1;
        self.is_refused |= !fits;
        fits
    }

    /// Returns true if every rank has called the operation.
    fn is_complete(&self) -> bool {
        self.called == self.set.as_ref().map_or(self.of.len(), Vec::len)
    }

    fn missing(&self) -> Vec<usize> {
        let is_missing = |rank: &usize| self.of[*rank] == 0;
        match &self.set {
            _ if self.is_complete() => Vec::new(),
            Some(set) => set.iter().copied().filter(is_missing).collect(),
            None => (0..self.of.len()).filter(is_missing).collect(),
        }
    }

    /// Returns a rank's call.
    fn call(&self, rank: usize) -> Option<&Call> {
        self.kinds.get((self.of[rank] as usize).checked_sub(1)?)
    }

    fn made(&self) -> impl Iterator<Item = (usize, &Call)> {
        (0..self.of.len()).filter_map(|rank| Some((rank, self.call(rank)?)))
    }

    fn first(&self) -> (usize, &Call) {
        self.made().next().expect("an operation is pending because some rank has called it")
    }
}

#[cfg(test)]
mod tests;
