//! Who is waited for, for how long, and whether anything can still come: what rank 0's table says when it
//! does not move.

use ringpull_base::{Error, Key};

use crate::progress::agreement::{Agreement, Outstanding, Pending, Phase};
use crate::progress::messages::{Stuck, Topic};

/// How long nothing of a rank may have changed before it says so.
pub const STILL_S: f64 = 2.0;
/// How long every rank must have waited before nothing can come any more. An order or a call that is on its
/// way ends such a wait.
const CERTAIN_S: f64 = 2.0;

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

impl Late {
    fn error(self, now_s: f64, why: String) -> Error {
        let Late { operation, key, rank, missing, since_s } = self;
        Error::Stalled { operation, key, rank, missing, waited_s: (now_s - since_s) as u64, why }
    }
}

impl Agreement {
    /// An error if some call has stayed alone for longer than the limit.
    pub fn check_time(&self, now_s: f64) -> Result<(), Error> {
        // What is outstanding comes first: others may not have called something else because they wait for
        // that.
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
                Err(Late { operation, key, rank, missing, since_s }.error(now_s, String::new()))
            }
            _ => Ok(()),
        }
    }

    /// What has been waited for longest.
    pub fn late(&self) -> Option<Late> {
        let pending = self.waiting().map(|pending| self.late_for(pending));
        let pending = pending.filter(|late| !late.missing.is_empty());
        self.late_in_cycle().chain(pending).min_by(|a, b| a.since_s.total_cmp(&b.since_s))
    }

    fn late_for(&self, pending: &Pending) -> Late {
        let ((rank, call), missing, since_s) = (pending.first(), self.lacking(pending), pending.since_s);
        Late { operation: call.operation.to_string(), key: call.topic.key(), rank, missing, since_s }
    }

    /// What ranks have begun of the last frozen cycle and others have not called.
    fn late_in_cycle(&self) -> impl Iterator<Item = Late> {
        self.outstanding.iter().enumerate().filter_map(|(rank, outstanding)| {
            let Outstanding { key, operation, by, since_s } = outstanding.clone()?;
            Some(Late { operation: operation.to_string(), key, rank: by, missing: vec![rank], since_s })
        })
    }

    /// A rank waits in a call for what cannot begin, or does so no more.
    pub fn stuck(&mut self, rank: usize, stuck: Option<Stuck>, now_s: f64) {
        self.stuck[rank] = stuck.map(|stuck| (stuck, now_s));
    }

    /// An error if every rank that has not left has waited for `CERTAIN_S` and had heard of all the `orders`
    /// that it was given, while some call is missing; or if that holds of some ranks of which each waits for
    /// calls of the others alone.
    pub fn check_deadlock(&self, orders: &[u64], now_s: f64) -> Result<(), Error> {
        let ranks = || (0..self.size).filter(|rank| !self.left.contains(rank));
        let waits = ranks().map(|rank| self.awaits(rank).filter(|_| self.is_stuck(rank, orders, now_s)));
        // When all have left, none waits.
        let waits = waits.collect::<Option<Vec<_>>>().filter(|waits| !waits.is_empty());
        let waits = waits.or_else(|| self.circle(orders, now_s));
        waits.map_or(Ok(()), |waits| Err(Error::Deadlock { waits }))
    }

    /// Ranks of process sets that wait for each other: whatever one of them has called and that has not begun
    /// lacks the call of another. The others may go on, and will never call it.
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

    /// Messages of MPI are under way on a rank, and none has moved for [`STILL_S`]; or they move again.
    pub fn data_still(&mut self, rank: usize, is_still: bool, now_s: f64) {
        self.still_s[rank] = is_still.then_some(now_s - STILL_S);
    }

    /// The ranks that wait for data of MPI's which does not come, of sums that all have called: each has seen
    /// none move for `limit_s`, and every other that has not left waits for a call. While ranks may be behind
    /// in a frozen cycle, its data may be theirs to send: then every rank has to wait. The limit counts from
    /// `heard_s`, when some rank was last silent for a while: after a link was down TCP sends again when as
    /// much time has passed at most.
    pub fn lost_data(&self, orders: &[u64], now_s: f64, limit_s: f64, heard_s: f64) -> Option<Vec<usize>> {
        let all_have_called = matches!(self.phase, Phase::Open) && self.outstanding.iter().all(Option::is_none);
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

    /// Whether a rank has waited for `CERTAIN_S` and had heard of all the `orders` that it was given.
    fn is_stuck(&self, rank: usize, orders: &[u64], now_s: f64) -> bool {
        let known = |(stuck, since_s): &(Stuck, f64)| stuck.orders == orders[rank] && now_s - since_s >= CERTAIN_S;
        self.stuck[rank].as_ref().is_some_and(known)
    }

    /// This rank and what of another it waits for, as [`Error::Deadlock`] has them; none if it waits for data
    /// of a sum that all have called, which a link may hold up.
    fn awaits(&self, rank: usize) -> Option<(usize, String)> {
        let is_alone = |pending: &&Pending| pending.call(rank).is_some() && !self.lacking(pending).is_empty();
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
        } else if let Some(Outstanding { key, operation, .. }) = own.filter(|_| !has_begun) {
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

    /// Something that every rank takes part in is under way.
    pub fn heard(&mut self, now_s: f64) {
        self.heard_s = now_s;
    }

    fn is_overdue(&self, pending: &Pending, now_s: f64) -> bool {
        now_s - pending.since_s > self.limit_s && !self.lacking(pending).is_empty()
    }

    /// What a rank that a barrier misses is itself waiting for, or else the barrier. Those who stand in the
    /// barrier are often the very ranks that have not called it, and may have come there first.
    fn behind_barrier<'a>(&'a self, barrier: &'a Pending) -> &'a Pending {
        let awaited = self.lacking(barrier);
        let is_held = |pending: &Pending| awaited.iter().any(|rank| pending.call(*rank).is_some());
        let of_keys = self.pending.iter().chain(&self.of_sets).filter(|((topic, _), _)| *topic != Topic::Barrier);
        let mut held =
            of_keys.map(|(_, pending)| pending).filter(|pending| !self.lacking(pending).is_empty() && is_held(pending));
        held.next().unwrap_or(barrier)
    }

    /// What one of these ranks has called and others have not: two ranks may wait for each other.
    fn wait_of(&self, ranks: &[usize]) -> Option<String> {
        let of = |pending: &Pending| ranks.iter().copied().find(|rank| pending.call(*rank).is_some());
        self.waiting().find_map(|pending| {
            let (rank, lacking) = (of(pending)?, self.lacking(pending));
            let call = pending.call(rank).filter(|_| !lacking.is_empty())?;
            let (operation, key) = (&call.operation, call.topic.key());
            Some(format!("rank {rank} has called {operation} of key {key}, which rank(s) {lacking:?} have not"))
        })
    }

    /// A call that this rank is part of or awaited in, to say what a lost peer interrupted.
    pub fn oldest(&self) -> Option<String> {
        let oldest = self.waiting().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
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
}
