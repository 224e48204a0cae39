//! Which operations launch, and in which order: decided by rank 0, the same for every rank.
//!
//! An operation is named by content: its topic (a key of a store, a barrier) and how many operations this rank has called
//! on that topic before. Ranks may therefore call in different orders. Rank 0 collects the calls; an operation launches
//! when every rank has called it alike. Calls that do not fit together, and calls that stay alone, become one error for
//! all ranks.
//!
//! When rank 0's own calls have repeated themselves, the sequence is frozen (`freezing`): from then on every rank begins the same
//! units in the same order, as soon as it has called what is in them, and no message is sent. When some rank's calls do not fit
//! any more, all ranks are stopped, run to the furthest of them, and are agreed with one by one again. What is frozen, and when, follows from
//! the sequences of calls and from where their callers wait, not from the time at which they come. (Where callers of `Tensor::watched` wait is
//! inferred, and that does follow from time.) A cycle that stood still although every rank had come as far is the last.
//!
//! A rank that has no data left joins: operations launch without its call, and it stands in for them, until all ranks have joined. While
//! some rank has joined nothing is frozen.
//!
//! Pure: time comes in as a number, and what is to be told to all ranks goes out as [`Order`]s.

use std::collections::BTreeMap;

use ringpull_base::{Error, INIT_ALIKE, Key};

use crate::progress::calls::{RunTo, Stopped};
use crate::progress::freezing::{Freezing, Logs};
use crate::progress::frozen::Freeze;
use crate::progress::order::{Call, Launch, Order, Overdue, Stuck, Topic};

struct Pending {
    calls: Vec<Option<Call>>,
    since_s: f64,
}

/// A call of a frozen cycle that `by` has begun and another rank has not made.
#[derive(Clone)]
struct Owed {
    key: Key,
    operation: String,
    by: usize,
    since_s: f64,
}

/// An operation that some ranks wait for and others have not called.
#[derive(Debug, Clone, PartialEq)]
pub struct Late {
    /// The operation.
    pub operation: String,
    /// Its key.
    pub key: Key,
    /// A rank that waits.
    pub rank: usize,
    /// The ranks that have not called it.
    pub missing: Vec<usize>,
    /// Since when.
    pub since_s: f64,
}

enum Phase {
    /// Operations launch one by one.
    Open,
    /// A cycle was found; it is frozen when every rank has called what comes before it.
    Freezing(Freezing),
    /// No rank announces anything. The cycle has this many units.
    Frozen { epoch: u32, units: u64 },
    /// The ranks say how far they have come.
    Stopping { epoch: u32, units: u64, answers: Vec<Option<Stopped>>, overdue: Option<Overdue> },
}

/// How long every rank must have waited before nothing can come any more. An order or a call that is on its way ends such a wait.
const CERTAIN_S: f64 = 2.0;
/// A cycle is frozen when it has come this often; twice as often, up to the most, each time that this was too early.
const TIMES: usize = 2;
const MOST_TIMES: usize = 64;
/// A cycle that ran so often before it was stopped was not frozen too early.
const LONG_CYCLES: u64 = 16;

/// Rank 0's table of calls that wait for the other ranks'.
pub struct Agreement {
    size: usize,
    limit_s: f64,
    bucket_bytes: usize,
    pending: BTreeMap<(Topic, u64), Pending>,
    left: Vec<bool>,
    /// The error that each rank would end with, if it ended now.
    failing: Vec<Option<String>>,
    /// Ranks that have no data left, and when any rank has last said something of what it does.
    joined: Vec<bool>,
    heard_s: f64,
    /// Ranks that had to catch up when the last frozen cycle was stopped: what they have not called is said before what others have not.
    behind: Vec<bool>,
    /// Ranks that may still owe calls of it: nothing is frozen meanwhile.
    owing: Vec<bool>,
    /// What each of them has to call next, as far as it has not said that it has.
    owed: Vec<Option<Owed>>,
    /// Ranks that wait in a call for what cannot begin, and since when that is known.
    stuck: Vec<Option<(Stuck, f64)>>,
    launched: u32,
    logs: Logs,
    phase: Phase,
    epochs: u32,
    times: usize,
    /// Whether a frozen cycle stood still although no rank was behind: each waited for what its units did not let begin. Another would, too.
    has_stood_still: bool,
    /// The unit at which a cycle last stood so.
    still_at: Option<u64>,
}

impl Agreement {
    /// A table for `size` ranks in which a call stays alone for at most `limit_s` seconds, and sums share buckets of `bucket_bytes`.
    pub fn new(size: usize, limit_s: f64, bucket_bytes: usize) -> Self {
        Agreement {
            size,
            limit_s,
            bucket_bytes,
            pending: BTreeMap::new(),
            left: vec![false; size],
            failing: vec![None; size],
            joined: vec![false; size],
            heard_s: 0.0,
            behind: vec![false; size],
            owing: vec![false; size],
            owed: vec![None; size],
            stuck: vec![None; size],
            launched: 0,
            logs: Logs::new(size),
            phase: Phase::Open,
            epochs: 0,
            times: TIMES,
            has_stood_still: false,
            still_at: None,
        }
    }

    /// Takes note of a call; returns what follows from it.
    pub fn call(&mut self, rank: usize, call: Call, now_s: f64) -> Result<Vec<Order>, Error> {
        if matches!(self.phase, Phase::Frozen { .. } | Phase::Stopping { .. }) {
            // It was announced before the rank knew of the freeze; it takes it for part of the cycle, or announces it anew.
            return Ok(Vec::new());
        }
        self.logs.push(rank, &call);
        self.heard_s = now_s;
        self.owing[rank] = call.owes;
        if !call.owes {
            self.owed[rank] = None;
        }
        let name = (call.topic.clone(), call.ordinal);
        let size = self.size;
        let pending =
            self.pending.entry(name.clone()).or_insert_with(|| Pending { calls: vec![None; size], since_s: now_s });
        // Not only when the last rank has called it, which may be long after. Earlier calls are alike.
        let fits = pending.calls.iter().flatten().next().is_none_or(|first| first.is_like(&call));
        pending.calls[rank] = Some(call);
        if !fits {
            return Err(disagreement(pending));
        }
        let is_complete = pending.missing().iter().all(|rank| self.joined[*rank]);
        if !is_complete {
            self.check_left()?;
        }
        match &mut self.phase {
            Phase::Freezing(freezing) => freezing.call(rank, &name.0, name.1),
            _ if rank == 0 => self.find_cycle(),
            _ => {}
        }
        let is_held = matches!(&self.phase, Phase::Freezing(freezing) if freezing.is_beyond(&name.0, name.1));
        let mut orders = Vec::new();
        if is_complete && !is_held {
            orders.push(Order::Launch(self.launch(&name)));
            if let Phase::Freezing(freezing) = &mut self.phase {
                freezing.launched();
            }
        }
        if let Phase::Freezing(freezing) = &self.phase {
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
        let are_ready = [&self.left, &self.joined, &self.owing].iter().all(|ranks| !ranks.contains(&true));
        if self.size > 1
            && are_ready
            && !self.has_stood_still
            && let Some(period) = self.logs.period(self.times)
        {
            let open = self.pending.iter().map(|(name, pending)| (name, pending.missing()));
            self.phase = Phase::Freezing(self.logs.freezing(period, open));
        }
    }

    fn launch(&mut self, name: &(Topic, u64)) -> Launch {
        let calls = self.pending.remove(name).map(|done| done.calls).unwrap_or_default();
        self.launched = self.launched.wrapping_add(1);
        let call = if calls.contains(&None) { calls.into_iter().flatten().next().map(Box::new) } else { None };
        Launch { topic: name.0.clone(), ordinal: name.1, number: self.launched, call }
    }

    fn freeze(&mut self, last: Launch) -> Order {
        let Phase::Freezing(freezing) = &self.phase else { unreachable!("only what is being frozen is frozen") };
        let (steps, units) = self.logs.cycle(freezing, self.bucket_bytes);
        self.epochs += 1;
        self.phase = Phase::Frozen { epoch: self.epochs, units: units.len() as u64 };
        // What is left was called after the cycle began: each rank finds its own calls in it.
        self.pending.clear();
        self.logs.clear();
        Order::Freeze(Freeze { epoch: self.epochs, last, number: self.launched.wrapping_add(1), steps, units })
    }

    /// Goes back to launching one by one; what every rank has called launches now.
    fn reopen(&mut self) -> Vec<Order> {
        self.phase = Phase::Open;
        let complete = self.pending.iter().filter(|(_, pending)| self.lacking(pending).is_empty());
        let complete: Vec<_> = complete.map(|(name, _)| name.clone()).collect();
        complete.iter().map(|name| Order::Launch(self.launch(name))).collect()
    }

    /// A cycle that did not last has to come more often before the next is frozen.
    fn try_less_often(&mut self, cycles: u64) {
        self.times = if cycles >= LONG_CYCLES { TIMES } else { (self.times * 2).min(MOST_TIMES) };
    }

    /// A rank asks for the frozen cycle of `epoch` to be stopped.
    pub fn thaw(&mut self, epoch: u32, overdue: Option<Overdue>) -> Vec<Order> {
        match self.phase {
            Phase::Frozen { epoch: frozen, units } if frozen == epoch => {
                self.phase = Phase::Stopping { epoch, units, answers: vec![None; self.size], overdue };
                vec![Order::Stop(epoch)]
            }
            // Another rank has asked before.
            _ => Vec::new(),
        }
    }

    /// A rank says how far it has come.
    pub fn stopped(&mut self, rank: usize, stopped: Stopped, now_s: f64) -> Result<Vec<Order>, Error> {
        let Phase::Stopping { epoch, units, answers, overdue } = &mut self.phase else { return Ok(Vec::new()) };
        if stopped.epoch != *epoch {
            return Ok(Vec::new());
        }
        answers[rank].get_or_insert(stopped);
        let Some(answers) = answers.iter().cloned().collect::<Option<Vec<Stopped>>>() else { return Ok(Vec::new()) };
        let by = (0..answers.len()).max_by_key(|rank| (answers[*rank].begun, std::cmp::Reverse(*rank)));
        let by = by.expect("there is a rank");
        let end = RunTo { epoch: *epoch, until: answers[by].begun, by };
        let (cycles, overdue) = (end.until / *units, overdue.take());
        let since_s = now_s - overdue.as_ref().map_or(0.0, |overdue| overdue.waited_s);
        for (rank, answer) in answers.iter().enumerate().filter(|(_, answer)| answer.begun < end.until) {
            let (key, operation) = answer.missing.clone().unwrap_or((Topic::Direct.key(), "collective".to_owned()));
            if self.left[rank] {
                return Err(self.gone(rank, &format!("{operation} of key {key}"), by));
            }
            self.owed[rank] = Some(Owed { key, operation, by, since_s });
        }
        self.behind = answers.iter().map(|answer| answer.begun < end.until).collect();
        let was_paused = overdue.is_some();
        // All may have paused there once.
        let place = end.until % *units;
        if overdue.is_some_and(|overdue| !overdue.has_begun) && !self.behind.contains(&true) {
            self.has_stood_still = self.still_at.replace(place) == Some(place);
        }
        self.owing.clone_from(&self.behind);
        self.phase = Phase::Open;
        self.launched = self.launched.wrapping_add(end.until as u32);
        // A pause says nothing of how long a cycle lasts.
        if !was_paused {
            self.try_less_often(cycles);
        }
        Ok(vec![Order::RunTo(end)])
    }

    /// A rank has no data left: what the others call launches without it until all have joined.
    pub fn join(&mut self, rank: usize, now_s: f64) -> Result<Vec<Order>, Error> {
        match self.phase {
            // It says so again when all have run to the furthest of them.
            Phase::Frozen { epoch, .. } => return Ok(self.thaw(epoch, None)),
            Phase::Stopping { .. } => return Ok(Vec::new()),
            Phase::Open | Phase::Freezing(_) => {}
        }
        self.joined[rank] = true;
        self.heard_s = now_s;
        let mut orders = self.reopen();
        if self.joined.contains(&false) {
            self.check_left()?;
        } else {
            self.joined.fill(false);
            // Calls that ranks stood in for are missing in the logs; and that they ended is no sign that a cycle did not last.
            self.logs.clear();
            self.times = TIMES;
            orders.push(Order::Joined(rank));
        }
        Ok(orders)
    }

    /// A rank has left in order, after it had come so far in a frozen cycle. An error if others wait for it.
    pub fn leave(&mut self, rank: usize, begun: Option<Stopped>, now_s: f64) -> Result<Vec<Order>, Error> {
        self.left[rank] = true;
        self.owed[rank] = None;
        let mut orders = match self.phase {
            Phase::Frozen { epoch, .. } => self.thaw(epoch, None),
            Phase::Freezing(_) => self.reopen(),
            _ => Vec::new(),
        };
        if let Some(stopped) = begun {
            orders.extend(self.stopped(rank, stopped, now_s)?);
        }
        self.check_left()?;
        Ok(orders)
    }

    /// Whether a rank has left in order.
    pub fn has_left(&self, rank: usize) -> bool {
        self.left[rank]
    }

    /// An error if some call has stayed alone for longer than the limit.
    pub fn check_time(&self, now_s: f64) -> Result<(), Error> {
        if let Some((topic, overdue)) = self.pending.iter().find(|(_, pending)| self.is_overdue(pending, now_s)) {
            let stalled = if topic.0 == Topic::Barrier { self.behind_barrier(overdue) } else { overdue };
            let ((rank, call), missing) = (stalled.first(), self.lacking(stalled));
            let waited_s = (now_s - stalled.since_s) as u64;
            let (operation, key) = (call.operation.clone(), call.topic.key());
            let why = self.wait_of(&missing).unwrap_or_default();
            return Err(Error::Stalled { operation, key, rank, missing, waited_s, why });
        }
        let overdue = self.owed.iter().enumerate().find_map(|(rank, owed)| {
            owed.as_ref().filter(|owed| now_s - owed.since_s > self.limit_s).map(|owed| (rank, owed.clone()))
        });
        if let Some((missing, Owed { key, operation, by, since_s })) = overdue {
            let (missing, waited_s, why) = (vec![missing], (now_s - since_s) as u64, String::new());
            return Err(Error::Stalled { operation, key, rank: by, missing, waited_s, why });
        }
        let waited_s = now_s - self.heard_s;
        match self.joined.iter().position(|joined| *joined) {
            Some(rank) if waited_s > self.limit_s => {
                let missing = (0..self.size).filter(|rank| !self.joined[*rank]).collect();
                let (operation, key) = ("join".to_owned(), Key::from("join"));
                let (waited_s, why) = (waited_s as u64, String::new());
                Err(Error::Stalled { operation, key, rank, missing, waited_s, why })
            }
            _ => Ok(()),
        }
    }

    /// A rank has called what it owed of the last frozen cycle.
    pub fn even(&mut self, rank: usize) {
        self.owed[rank] = None;
    }

    /// What has been waited for longest.
    pub fn late(&self) -> Option<Late> {
        let pending = self.pending.values().filter_map(|pending| {
            let ((rank, call), missing) = (pending.first(), self.lacking(pending));
            let (operation, key, since_s) = (call.operation.clone(), call.topic.key(), pending.since_s);
            (!missing.is_empty()).then_some(Late { operation, key, rank, missing, since_s })
        });
        let owed = self.owed.iter().enumerate().filter_map(|(rank, owed)| {
            let Owed { key, operation, by, since_s } = owed.clone()?;
            Some(Late { operation, key, rank: by, missing: vec![rank], since_s })
        });
        pending.chain(owed).min_by(|a, b| a.since_s.total_cmp(&b.since_s))
    }

    /// A rank waits in a call for what cannot begin, or does so no more.
    pub fn stuck(&mut self, rank: usize, stuck: Option<Stuck>, now_s: f64) {
        self.stuck[rank] = stuck.map(|stuck| (stuck, now_s));
    }

    /// An error if every rank that has not left has waited for [`CERTAIN_S`] and had heard of all the `orders` that were
    /// given, while some call is missing.
    pub fn check_deadlock(&self, orders: u64, now_s: f64) -> Result<(), Error> {
        let ranks = || (0..self.size).filter(|rank| !self.left[*rank]);
        let is_stuck = |rank: usize| {
            let known = |(stuck, since_s): &(Stuck, f64)| stuck.orders == orders && now_s - since_s >= CERTAIN_S;
            self.stuck[rank].as_ref().is_some_and(known)
        };
        let waits = ranks().map(|rank| self.awaits(rank).filter(|_| is_stuck(rank)));
        // When all have left, none waits.
        let waits = waits.collect::<Option<Vec<String>>>().filter(|waits| !waits.is_empty());
        waits.map_or(Ok(()), |waits| Err(Error::Deadlock { waits }))
    }

    /// The call of another rank that this one waits for, in words; none where it waits for data of a sum that all have called, which a
    /// link may hold up.
    fn awaits(&self, rank: usize) -> Option<String> {
        let is_alone = |pending: &&Pending| pending.calls[rank].is_some() && !self.lacking(pending).is_empty();
        let owed = || self.owed.iter().enumerate().find_map(|(owing, owed)| Some((owing, owed.as_ref()?)));
        let awaited = if let Some(pending) = self.pending.values().find(is_alone) {
            let ((_, call), missing) = (pending.first(), self.lacking(pending));
            format!("{} of key {}, which rank(s) {missing:?} have not called", call.operation, call.topic.key())
        } else if let Some((owing, owed)) = owed().filter(|_| self.owed[rank].is_none()) {
            format!("{} of key {}, which rank(s) [{owing}] have not called", owed.operation, owed.key)
        } else if self.joined[rank] {
            "the others to join".to_owned()
        } else {
            return None;
        };
        let place = self.stuck[rank].as_ref().and_then(|(stuck, _)| stuck.site.as_ref());
        let at = place.map_or_else(String::new, |site| format!(" at {site}"));
        Some(format!("rank {rank} waits{at} for {awaited}"))
    }

    /// Something that every rank takes part in is under way.
    pub fn heard(&mut self, now_s: f64) {
        self.heard_s = now_s;
    }

    fn is_overdue(&self, pending: &Pending, now_s: f64) -> bool {
        let of_behind = (0..self.size).any(|rank| self.behind[rank] && pending.calls[rank].is_some());
        let limit_s = if of_behind { self.limit_s * 1.5 } else { self.limit_s };
        now_s - pending.since_s > limit_s && !self.lacking(pending).is_empty()
    }

    /// The ranks that an operation waits for.
    fn lacking(&self, pending: &Pending) -> Vec<usize> {
        pending.missing().into_iter().filter(|rank| !self.joined[*rank]).collect()
    }

    /// What a rank that a barrier misses is itself waiting for, or else the barrier. Those who stand in the barrier are often the
    /// very ranks that have not called it, and may have come there first.
    fn behind_barrier<'a>(&'a self, barrier: &'a Pending) -> &'a Pending {
        let awaited = self.lacking(barrier);
        let is_held = |pending: &Pending| awaited.iter().any(|rank| pending.calls[*rank].is_some());
        let of_keys = self.pending.iter().filter(|((topic, _), _)| *topic != Topic::Barrier);
        let mut held =
            of_keys.map(|(_, pending)| pending).filter(|pending| !self.lacking(pending).is_empty() && is_held(pending));
        held.next().unwrap_or(barrier)
    }

    /// What one of these ranks has called and others have not: two ranks may wait for each other.
    fn wait_of(&self, ranks: &[usize]) -> Option<String> {
        let of = |pending: &Pending| ranks.iter().copied().find(|rank| pending.calls[*rank].is_some());
        self.pending.values().find_map(|pending| {
            let (rank, lacking) = (of(pending)?, self.lacking(pending));
            let call = pending.calls[rank].as_ref().filter(|_| !lacking.is_empty())?;
            let (operation, key) = (&call.operation, call.topic.key());
            Some(format!("rank {rank} has called {operation} of key {key}, which rank(s) {lacking:?} have not"))
        })
    }

    /// A call that this rank is part of or awaited in, to say what a lost peer interrupted.
    pub fn oldest(&self) -> Option<String> {
        let oldest = self.pending.values().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
        let (_, call) = oldest.first();
        Some(format!("{} of key {}", call.operation, call.topic.key()))
    }

    /// A rank says why it would end, if it ended now.
    pub fn failing(&mut self, rank: usize, why: Option<String>) {
        self.failing[rank] = why;
    }

    /// The error that a rank has last said it would end with.
    pub fn why(&self, rank: usize) -> Option<&str> {
        self.failing[rank].as_deref()
    }

    /// The rank that left, what another waits for, and that other.
    fn gone(&self, rank: usize, operation: &str, by: usize) -> Error {
        let why = self.why(rank).unwrap_or_default().to_owned();
        Error::Finished { peer: format!("rank {rank}"), operation: operation.to_owned(), rank: by, why }
    }

    fn check_left(&self) -> Result<(), Error> {
        for pending in self.pending.values() {
            if let Some(rank) = self.lacking(pending).into_iter().find(|rank| self.left[*rank]) {
                let (by, call) = pending.first();
                return Err(self.gone(rank, &format!("{} of key {}", call.operation, call.topic.key()), by));
            }
        }
        let joined = self.joined.iter().position(|joined| *joined);
        match (joined, self.left.iter().position(|left| *left)) {
            (Some(by), Some(rank)) => Err(self.gone(rank, "join", by)),
            _ => Ok(()),
        }
    }
}

impl Pending {
    fn missing(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|rank| self.calls[*rank].is_none()).collect()
    }

    fn made(&self) -> impl Iterator<Item = (usize, &Call)> {
        self.calls.iter().enumerate().filter_map(|(rank, call)| Some((rank, call.as_ref()?)))
    }

    fn first(&self) -> (usize, &Call) {
        self.made().next().expect("an operation is pending because some rank has called it")
    }
}

/// What to say of calls that are not alike.
fn disagreement(pending: &Pending) -> Error {
    let (made, (_, first)) = (|| pending.made(), pending.first());
    let alike = |of: fn(&Call) -> &String| made().all(|(_, call)| of(call) == of(first));
    let (view, remedy): (fn(&Call) -> String, _) = if !alike(|call| &call.operation) {
        (|call| format!("{} of {}", call.operation, call.terms), "every rank must call the same operations on a key")
    } else if !alike(|call| &call.terms.words) && first.operation == "init" {
        (|call| call.terms.to_string(), INIT_ALIKE)
    } else if !alike(|call| &call.terms.words) || alike(|call| &call.terms.how) {
        (
            |call| format!("{} of {}", call.operation, call.terms),
            "every rank must use the same shapes, dtypes, optimizer and gradient compression for a key",
        )
    } else {
        (
            |call| format!("sums {}", call.terms.how),
            "give every rank the same RINGPULL_ALGORITHM and RINGPULL_SEGMENT, or the same Config, and RINGPULL_DEVICES to all or to none",
        )
    };
    Error::Disagreement {
        key: first.topic.key(),
        operation: first.operation.clone(),
        views: made().map(|(rank, call)| (rank, view(call))).collect(),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests;
