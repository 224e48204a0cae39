//! Finds late ranks and deadlocks in rank 0's table of calls.

use ringpull_base::{Error, Key};

use crate::progress::agreement::{Agreement, AgreementPhase, OutstandingCall, PendingOperation};
use crate::progress::messages::{Stuck, Topic};

/// The time without any change on a rank, in seconds, after which the rank reports that it stands still.
pub const STILL_S: f64 = 2.0;
/// The time, in seconds, that every rank must have waited before a deadlock is certain. Until then, an order
/// or a call that is on its way may end the wait.
const CERTAIN_S: f64 = 2.0;

/// An operation that some ranks wait for and others have not called.
#[derive(Debug, Clone, PartialEq)]
pub struct LateCall {
    /// The operation.
    pub operation: String,
    /// The operation's key.
    pub key: Key,
    /// A rank that waits.
    pub rank: usize,
    /// The ranks that have not called it.
    pub missing: Vec<usize>,
    /// The time since which the rank waits, in seconds.
    pub since_s: f64,
}

impl LateCall {
    fn error(self, now_s: f64, why: String) -> Error {
        let LateCall { operation, key, rank, missing, since_s } = self;
        Error::Stalled { operation, key, rank, missing, waited_s: (now_s - since_s) as u64, why }
    }
}

impl Agreement {
    /// Returns an error if some call has stayed alone for longer than the limit.
    pub fn check_time(&self, now_s: f64) -> Result<(), Error> {
        // The outstanding call is reported first, because other ranks may lack other calls only because they
        // wait for it.
        if let Some(late) = self.late_in_cycle().find(|late| now_s - late.since_s > self.limit_s) {
            return Err(late.error(now_s, String::new()));
        }
        let named = || self.pending.iter().chain(&self.of_sets);
        if let Some((topic, overdue)) = named().find(|(_, pending)| self.is_overdue(pending, now_s)) {
            let late = self.late_for(if topic.0 == Topic::Barrier { self.behind_barrier(overdue) } else { overdue });
            let why = self.wait_of(&late.missing).unwrap_or_default();
            return Err(late.error(now_s, why));
        }
        match self.joined.first() {
            Some(&rank) if now_s - self.heard_s > self.limit_s => {
                let missing = (0..self.size).filter(|rank| !self.joined.contains(rank)).collect();
                let (operation, key, since_s) = ("join".to_owned(), Key::from("join"), self.heard_s);
                Err(LateCall { operation, key, rank, missing, since_s }.error(now_s, String::new()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the operation for which ranks have waited longest.
    pub fn late(&self) -> Option<LateCall> {
        let pending = self.waiting().map(|pending| self.late_for(pending));
        let pending = pending.filter(|late| !late.missing.is_empty());
        self.late_in_cycle().chain(pending).min_by(|a, b| a.since_s.total_cmp(&b.since_s))
    }

    fn late_for(&self, pending: &PendingOperation) -> LateCall {
        let ((rank, call), missing, since_s) = (pending.first(), self.lacking(pending), pending.since_s);
        LateCall { operation: call.operation.to_string(), key: call.topic.key(), rank, missing, since_s }
    }

    /// Returns the operations of the last frozen cycle that some ranks have begun and others have not called.
    fn late_in_cycle(&self) -> impl Iterator<Item = LateCall> {
        self.outstanding.iter().enumerate().filter_map(|(rank, outstanding)| {
            let OutstandingCall { key, operation, by, since_s } = outstanding.clone()?;
            Some(LateCall { operation: operation.to_string(), key, rank: by, missing: vec![rank], since_s })
        })
    }

    /// Records that a rank waits in a call for an operation that cannot begin. `None` records that it no
    /// longer waits.
    pub fn stuck(&mut self, rank: usize, stuck: Option<Stuck>, now_s: f64) {
        self.stuck[rank] = stuck.map(|stuck| (stuck, now_s));
    }

    /// Returns an error if the ranks are in a deadlock. That is so if some call is missing, and every rank
    /// that has not left has waited for `CERTAIN_S` and has received all the `orders` that were sent to it.
    /// Some of the ranks are in a deadlock if each of them waits only for calls of the others.
    pub fn check_deadlock(&self, orders: &[u64], now_s: f64) -> Result<(), Error> {
        let ranks = || (0..self.size).filter(|rank| !self.left.contains(rank));
        let waits = ranks().map(|rank| self.awaits(rank).filter(|_| self.is_stuck(rank, orders, now_s)));
        // No rank waits if all have left.
        let waits = waits.collect::<Option<Vec<_>>>().filter(|waits| !waits.is_empty());
        let waits = waits.or_else(|| self.circle(orders, now_s));
        waits.map_or(Ok(()), |waits| Err(Error::Deadlock { waits }))
    }

    /// Returns ranks of process sets that wait for each other in a circle: each operation that one of them
    /// has called and that has not begun lacks the call of another of them. Ranks outside the circle may go
    /// on without calling it.
    fn circle(&self, orders: &[u64], now_s: f64) -> Option<Vec<(usize, String)>> {
        if self.of_sets.is_empty() {
            return None;
        }
        let is_stuck = |rank: &usize| !self.left.contains(rank) && self.is_stuck(*rank, orders, now_s);
        let mut ranks: Vec<usize> = (0..self.size).filter(is_stuck).collect();
        loop {
            let before = ranks.len();
            let of = |rank: usize| self.waiting().filter(move |pending| pending.call(rank).is_some());
            let is_silent = |rank: usize| self.left.contains(&rank) || ranks.contains(&rank);
            let is_caught = |rank: &usize| {
                of(*rank).next().is_some() && of(*rank).all(|pending| self.in_vain(pending, is_silent).is_some())
            };
            ranks = ranks.iter().copied().filter(is_caught).collect();
            if ranks.len() == before {
                break;
            }
        }
        let waits: Option<Vec<_>> = ranks.into_iter().map(|rank| self.awaits(rank)).collect();
        waits.filter(|waits| !waits.is_empty())
    }

    /// Records that a rank has messages of MPI under way and that none has moved for [`STILL_S`]. If
    /// `is_still` is false, records that they move again.
    pub fn data_still(&mut self, rank: usize, is_still: bool, now_s: f64) {
        self.still_s[rank] = is_still.then_some(now_s - STILL_S);
    }

    /// Returns the ranks that wait in vain for data of MPI, in sums that all have called. Each of them has
    /// seen no message move for `limit_s`, and every other rank that has not left waits for a call. Ranks
    /// that are behind in a frozen cycle may still have to send its data, so while that is possible every
    /// rank must wait for a call. The limit counts from `heard_s`, the end of the last time in which some
    /// rank was silent: if a link was down, TCP waits at most as long as the link was down before it resends.
    pub fn lost_data(&self, orders: &[u64], now_s: f64, limit_s: f64, heard_s: f64) -> Option<Vec<usize>> {
        let all_have_called =
            matches!(self.phase, AgreementPhase::Open) && self.outstanding.iter().all(Option::is_none);
        let ranks = || (0..self.size).filter(|rank| !self.left.contains(rank));
        let is_still = |rank: usize| self.still_s[rank].is_some_and(|since_s| now_s - since_s.max(heard_s) >= limit_s);
        let waits = |rank: usize| self.is_stuck(rank, orders, now_s);
        let expects = |rank: usize| {
            let awaits_data = is_still(rank) && (all_have_called || waits(rank));
            awaits_data || (self.still_s[rank].is_none() && waits(rank) && self.awaits(rank).is_some())
        };
        let awaiting: Vec<usize> = ranks().filter(|rank| is_still(*rank)).collect();
        (!awaiting.is_empty() && ranks().all(expects)).then_some(awaiting)
    }

    /// Returns true if a rank has waited for `CERTAIN_S` and has received all the `orders` that were sent to
    /// it.
    fn is_stuck(&self, rank: usize, orders: &[u64], now_s: f64) -> bool {
        let known = |(stuck, since_s): &(Stuck, f64)| stuck.orders == orders[rank] && now_s - since_s >= CERTAIN_S;
        self.stuck[rank].as_ref().is_some_and(known)
    }

    /// Returns this rank and the operation that it waits for, in the form of [`Error::Deadlock`]. Returns
    /// `None` if the rank waits for the data of a sum that all have called, because a slow link may be the
    /// cause.
    fn awaits(&self, rank: usize) -> Option<(usize, String)> {
        let is_alone = |pending: &&PendingOperation| pending.call(rank).is_some() && !self.lacking(pending).is_empty();
        let outstanding = || {
            self.outstanding
                .iter()
                .enumerate()
                .find_map(|(late_rank, outstanding)| Some((late_rank, outstanding.as_ref()?)))
        };
        let own = self.outstanding[rank].as_ref();
        let has_begun = self.stuck[rank].as_ref().is_none_or(|(stuck, _)| stuck.has_begun);
        let awaited = if let Some(pending) = self.waiting().find(is_alone) {
            let ((_, call), missing) = (pending.first(), self.lacking(pending));
            format!("{} of key {}, which rank(s) {missing:?} have not called", call.operation, call.topic.key())
        } else if let Some((late_rank, outstanding)) = outstanding().filter(|_| own.is_none()) {
            format!("{} of key {}, which rank(s) [{late_rank}] have not called", outstanding.operation, outstanding.key)
        } else if let Some(OutstandingCall { key, operation, .. }) = own.filter(|_| !has_begun) {
            format!("what comes after {operation} of key {key}, which it has not called itself")
        } else if self.joined.contains(&rank) {
            "the others to join".to_owned()
        } else {
            return None;
        };
        let place = self.stuck[rank].as_ref().and_then(|(stuck, _)| stuck.site.as_ref());
        let at = place.map_or_else(String::new, |site| format!(" at {site}"));
        Some((rank, format!("{at} for {awaited}")))
    }

    /// Records that an operation of all ranks is under way.
    pub fn heard(&mut self, now_s: f64) {
        self.heard_s = now_s;
    }

    fn is_overdue(&self, pending: &PendingOperation, now_s: f64) -> bool {
        now_s - pending.since_s > self.limit_s && !self.lacking(pending).is_empty()
    }

    /// If a rank that is missing in the barrier waits for another operation, returns that operation.
    /// Otherwise returns the barrier. Often the ranks in the barrier are those that have not called the
    /// operation, although they may have called the barrier first.
    fn behind_barrier<'a>(&'a self, barrier: &'a PendingOperation) -> &'a PendingOperation {
        let awaited = self.lacking(barrier);
        let is_held = |pending: &PendingOperation| awaited.iter().any(|rank| pending.call(*rank).is_some());
        let of_keys = self.pending.iter().chain(&self.of_sets).filter(|((topic, _), _)| *topic != Topic::Barrier);
        let mut held =
            of_keys.map(|(_, pending)| pending).filter(|pending| !self.lacking(pending).is_empty() && is_held(pending));
        held.next().unwrap_or(barrier)
    }

    /// Describes an operation that one of these ranks has called and others have not, because two ranks may
    /// wait for each other.
    fn wait_of(&self, ranks: &[usize]) -> Option<String> {
        let of = |pending: &PendingOperation| ranks.iter().copied().find(|rank| pending.call(*rank).is_some());
        self.waiting().find_map(|pending| {
            let (rank, lacking) = (of(pending)?, self.lacking(pending));
            let call = pending.call(rank).filter(|_| !lacking.is_empty())?;
            let (operation, key) = (&call.operation, call.topic.key());
            Some(format!("rank {rank} has called {operation} of key {key}, which rank(s) {lacking:?} have not"))
        })
    }

    /// Returns the oldest pending call, for the error that names the operation that a lost peer interrupted.
    pub fn oldest(&self) -> Option<String> {
        let oldest = self.waiting().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
        let (_, call) = oldest.first();
        Some(format!("{} of key {}", call.operation, call.topic.key()))
    }

    /// Records the error with which a rank would end if it ended now.
    pub fn failing(&mut self, rank: usize, why: Option<String>) {
        self.failing[rank] = why;
    }

    /// Returns the error with which a rank would end, as it reported last.
    pub fn why(&self, rank: usize) -> Option<&str> {
        self.failing[rank].as_deref()
    }
}
