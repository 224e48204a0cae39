//! The workers of an elastic job, as one server knows them, and which of their pushes are whole.
//!
//! A key's first value and each of its rounds are decided for all of its segments on this server together,
//! and the same on every server. A push is *whole* when all of its segments are with all servers: a server
//! that has all segments of the key sees that itself; otherwise each server reports its part to the worker
//! (`Reply::Arrived`), and the worker tells all when it has heard of the last (`Request::Commit`). A round is
//! complete when the pushes of all workers that count are whole. The init is round 0, and the value is that
//! of the lowest rank that counts.
//!
//! When a worker is lost the scheduler asks every server which of its pushes it knows to be whole, and tells
//! all what any of them knew. These count everywhere; what else the servers have of the worker is dropped.

use std::collections::{BTreeMap, BTreeSet};

use ringpull_base::Key;

use crate::message::{Place, Reply, WholeKeys, WholePushes};
use crate::server::{Output, Server};

/// The pushes of a key that are whole and not done.
const MAX_WHOLE: usize = 1 << 20;

/// How a worker of some rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberState {
    /// Rounds wait for it.
    Member,
    /// It has come later and does not take part in rounds yet.
    Joining,
    /// It is lost, and which of its pushes count is not known yet.
    Lost,
    /// There is none.
    Absent,
}

/// Who the workers are, and what of theirs is whole.
pub(super) struct Members {
    /// By rank, with the incarnation of the last worker.
    standings: Vec<(u32, MemberState)>,
    keys: BTreeMap<Key, KeyRounds>,
    /// By rank: workers that came later take part after this round of a key, which may not be known here yet.
    after: Vec<BTreeMap<Key, u64>>,
}

/// What is known of a key's rounds.
struct KeyRounds {
    /// The number of segments here.
    here: usize,
    /// True if other servers have some too.
    spans: bool,
    /// The segments that have come of pushes that are not whole, by round and rank.
    arrived: BTreeMap<(u64, usize), usize>,
    /// By round and rank, of rounds that are not done.
    whole: BTreeSet<(u64, usize)>,
}

impl Members {
    pub(super) fn new(workers: usize) -> Self {
        let standings = vec![(0, MemberState::Member); workers];
        Members { standings, keys: BTreeMap::new(), after: vec![BTreeMap::new(); workers] }
    }

    /// Returns true if a worker takes part in rounds.
    pub(super) fn is_member(&self, rank: usize) -> bool {
        self.standings[rank].1 == MemberState::Member
    }

    /// Returns true if rounds wait for it, if only to learn which of its pushes count.
    fn counts(&self, rank: usize) -> bool {
        matches!(self.standings[rank].1, MemberState::Member | MemberState::Lost)
    }

    pub(super) fn declare(&mut self, key: &Key, here: usize, spans: bool) {
        let new = KeyRounds { here, spans, arrived: BTreeMap::new(), whole: BTreeSet::new() };
        self.keys.entry(key.clone()).or_insert(new);
    }

    pub(super) fn commit(&mut self, key: &Key, round: u64, rank: usize) -> Result<(), String> {
        let rounds = self.keys.get_mut(key).ok_or("a commit before init")?;
        if rounds.whole.len() >= MAX_WHOLE {
            return Err(format!("more than {MAX_WHOLE} pushes of one key that are not done"));
        }
        rounds.whole.insert((round, rank));
        Ok(())
    }

    /// Whose first value of the key counts, if that is known.
    fn first(&self, key: &Key) -> Option<usize> {
        let rounds = self.keys.get(key)?;
        let decisive = |rank: &usize| self.counts(*rank) || self.left_whole(rounds, 0, *rank);
        let lowest = (0..self.standings.len()).find(decisive)?;
        rounds.whole.contains(&(0, lowest)).then_some(lowest)
    }

    /// Returns true if a worker that is gone has left this push, which counts.
    fn left_whole(&self, rounds: &KeyRounds, round: u64, rank: usize) -> bool {
        self.standings[rank].1 == MemberState::Absent && rounds.whole.contains(&(round, rank))
    }

    /// Whose push of the round is not whole, of those that it waits for.
    fn open(&self, key: &Key, round: u64) -> Vec<usize> {
        let Some(rounds) = self.keys.get(key) else { return Vec::new() };
        let is_awaited = |rank: &usize| {
            self.counts(*rank)
                && self.after[*rank].get(key).is_none_or(|after| round > *after)
                && !rounds.whole.contains(&(round, *rank))
        };
        (0..self.standings.len()).filter(is_awaited).collect()
    }

    fn has_members(&self) -> bool {
        self.standings.iter().any(|(_, standing)| *standing == MemberState::Member)
    }
}

impl Server {
    /// Returns true if a message of this incarnation of the rank is one of the present worker. One that comes
    /// later is met by its first message.
    pub fn meets(&mut self, rank: usize, incarnation: u32) -> bool {
        let Some(members) = &mut self.members else { return incarnation == 0 };
        let known = &mut members.standings[rank];
        if known.1 == MemberState::Absent && incarnation > known.0 {
            *known = (incarnation, MemberState::Joining);
        }
        *known == (incarnation, MemberState::Joining) || *known == (incarnation, MemberState::Member)
    }

    /// The incarnation of the worker of this rank.
    pub(crate) fn incarnation(&self, rank: usize) -> u32 {
        self.members.as_ref().map_or(0, |members| members.standings[rank].0)
    }

    /// The worker is lost: nothing more is taken from it. Which of its pushes are known to be whole.
    pub fn lose(&mut self, rank: usize, incarnation: u32) -> WholeKeys {
        let Some(members) = &mut self.members else { return WholeKeys::new() };
        members.standings[rank] = (incarnation, MemberState::Lost);
        let spanning = members.keys.iter().filter(|(_, rounds)| rounds.spans);
        let whole = spanning.map(|(key, rounds)| {
            let own = rounds.whole.iter().filter(|(_, of)| *of == rank);
            let place = Place { key: key.clone(), segment: 0 };
            let any = self.segments.range(place..).next().filter(|(place, _)| place.key == *key);
            let completed = any.map_or(0, |(_, segment)| segment.completed);
            (key.clone(), WholePushes { completed, rounds: own.map(|(round, _)| *round).collect() })
        });
        whole.collect()
    }

    /// Counts those pushes of the lost worker that are whole here or by `whole`, and drops the others.
    pub fn settle(&mut self, rank: usize, whole: &WholeKeys) -> Vec<Output> {
        let Some(members) = &mut self.members else { return Vec::new() };
        members.standings[rank].1 = MemberState::Absent;
        let keys: Vec<Key> = members.keys.keys().cloned().collect();
        let workers = members.standings.len() as u64;
        for (place, segment) in &mut self.segments {
            let Some(rounds) = members.keys.get_mut(&place.key) else { continue };
            let told = whole.get(&place.key).filter(|_| rounds.spans);
            let is_told = |round: u64| {
                told.is_some_and(|told| told.rounds.contains(&round) || (round > 0 && round <= told.completed))
            };
            let mut counts = |round: u64| {
                if is_told(round) {
                    rounds.whole.insert((round, rank));
                }
                rounds.whole.contains(&(round, rank))
            };
            if segment.candidates.contains_key(&rank) && !counts(0) {
                segment.candidates.remove(&rank);
            }
            let sync = self.sync;
            segment.rounds.retain(|number, open| {
                open.replies.retain(|(to, _)| *to != rank);
                if !sync {
                    return *number % workers != rank as u64;
                }
                if open.merge.has(rank) && !counts(*number) {
                    open.merge.remove(rank);
                }
                !open.merge.is_empty()
            });
            segment.views.remove(&rank);
            segment.pulls.retain(|pull| pull.rank != rank);
            segment.applied[rank] = 0;
        }
        for rounds in members.keys.values_mut() {
            rounds.arrived.retain(|(_, of), _| *of != rank);
        }
        members.after[rank].clear();
        self.oldest[rank] = u64::MAX;
        self.advance_all(&keys)
    }

    /// The worker takes part in the rounds after `after`.
    pub fn join(&mut self, rank: usize, incarnation: u32, after: &BTreeMap<Key, u64>) -> Vec<Output> {
        let Some(members) = &mut self.members else { return Vec::new() };
        members.standings[rank] = (incarnation, MemberState::Member);
        members.after[rank].clone_from(after);
        let keys: Vec<Key> = members.keys.keys().cloned().collect();
        self.advance_all(&keys)
    }

    /// One more segment of the push has come. If that was the last one here, it is whole, or the worker is
    /// told so where other servers have segments of the key.
    pub(super) fn arrive(&mut self, key: &Key, round: u64, rank: usize) {
        let Some(rounds) = self.members.as_mut().and_then(|members| members.keys.get_mut(key)) else { return };
        let count = rounds.arrived.entry((round, rank)).or_insert(0);
        *count += 1;
        if *count < rounds.here {
            return;
        }
        rounds.arrived.remove(&(round, rank));
        if rounds.spans {
            let reply = Reply::Arrived { key: key.clone(), round };
            self.outputs.push(Output::Reply { rank, reply, payload: None });
            return;
        }
        rounds.whole.insert((round, rank));
        self.advance_key(key);
    }

    fn advance_all(&mut self, keys: &[Key]) -> Vec<Output> {
        if !self.ended {
            keys.iter().for_each(|key| self.advance_key(key));
            self.pass_on();
            self.ended = self.outputs.iter().any(|output| matches!(output, Output::Fault(_)));
        }
        std::mem::take(&mut self.outputs)
    }

    /// Gives the key its first value and applies every round of it that is complete and whose turn it is.
    pub(super) fn advance_key(&mut self, key: &Key) {
        let Some(members) = &mut self.members else { return };
        let all = Place { key: key.clone(), segment: 0 }..=Place { key: key.clone(), segment: u32::MAX };
        let Some((_, any)) = self.segments.range(all.clone()).next() else { return };
        let mut completed = any.completed;
        if any.value.is_none() {
            let Some(first) = members.first(key) else { return };
            for (_, segment) in self.segments.range_mut(all.clone()) {
                segment.take_first(first);
                let workers = members.standings.len();
                if !self.sync
                    && let Err(fault) = segment.advance(workers, false, &mut self.outputs, &mut self.passing)
                {
                    self.outputs.push(Output::Fault(fault));
                    return;
                }
                segment.let_pass(self.sync, &mut self.passing);
            }
        }
        while self.sync && members.has_members() && members.open(key, completed + 1).is_empty() {
            completed += 1;
            for (_, segment) in self.segments.range_mut(all.clone()) {
                if let Err(fault) = segment.complete(&mut self.outputs, &mut self.passing) {
                    self.outputs.push(Output::Fault(fault));
                    return;
                }
            }
            if let Some(rounds) = members.keys.get_mut(key) {
                rounds.whole.retain(|(round, _)| *round == 0 || *round > completed);
            }
        }
    }

    /// What keeps the segment from having had this many rounds, and whose that is.
    pub(super) fn missing(&self, place: &Place, rounds: u64) -> Result<(&'static str, Vec<usize>), String> {
        let segment = self.segments.get(place).ok_or("a question before init")?;
        let Some(members) = &self.members else { return Ok(segment.missing(self.workers, self.sync, rounds)) };
        if segment.value.is_none() {
            let lowest = (0..self.workers).find(|rank| members.counts(*rank));
            return Ok(("init", lowest.into_iter().collect()));
        }
        let is_open = self.sync && rounds > segment.completed;
        Ok(("push", if is_open { members.open(&place.key, segment.completed + 1) } else { Vec::new() }))
    }
}
