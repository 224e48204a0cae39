//! The workers of an elastic job, as one server knows them, and their whole pushes.
//!
//! A key's first value and each of its rounds are decided for all of its segments on this server together,
//! and in the same way on every server. A push is *whole* when the servers have received all of its segments.
//! A server that has all segments of the key sees that itself. Otherwise each server reports its part to the
//! worker (`Reply::Arrived`), and after the last report the worker tells all servers (`Request::Commit`). A
//! round is complete when the pushes of all workers that count are whole. The init is round 0, and the first
//! value is that of the lowest rank that counts.
//!
//! When a worker is lost, the scheduler asks every server which of the worker's pushes it knows to be whole.
//! It then sends the union to all servers. These pushes count everywhere, and the servers drop all other
//! pushes of the worker.

use std::collections::{BTreeMap, BTreeSet};

use ringpull_base::Key;

use crate::message::{Place, Reply, WholeKeys, WholePushes};
use crate::server::{Output, Server};

/// The most pushes of a key that are whole and not done.
const MAX_WHOLE: usize = 1 << 20;

/// The state of the worker of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberState {
    /// Rounds wait for the worker.
    Member,
    /// The worker has come later and does not take part in rounds yet.
    Joining,
    /// The worker is lost, and it is not decided yet which of its pushes count.
    Lost,
    /// The rank has no worker.
    Absent,
}

/// The workers and their whole pushes.
pub(super) struct Members {
    /// For each rank, the incarnation and the state of its last worker.
    standings: Vec<(u32, MemberState)>,
    keys: BTreeMap<Key, KeyRounds>,
    /// For each rank: the round of each key after which a worker that came later takes part. This server may
    /// not know the key yet.
    after: Vec<BTreeMap<Key, u64>>,
}

/// The state of a key's rounds.
struct KeyRounds {
    /// The number of segments on this server.
    here: usize,
    /// True if other servers have segments of the key too.
    spans: bool,
    /// The number of segments that have arrived, for each push that is not whole. Keys are round and rank.
    arrived: BTreeMap<(u64, usize), usize>,
    /// The whole pushes of rounds that are not done, by round and rank.
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

    /// Returns true if rounds wait for this worker, even if only until it is decided which of its pushes
    /// count.
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

    /// Returns the rank with the first value of the key that counts, if that is known.
    fn first(&self, key: &Key) -> Option<usize> {
        let rounds = self.keys.get(key)?;
        let decisive = |rank: &usize| self.counts(*rank) || self.left_whole(rounds, 0, *rank);
        let lowest = (0..self.standings.len()).find(decisive)?;
        rounds.whole.contains(&(0, lowest)).then_some(lowest)
    }

    /// Returns true if a lost worker has left this push and it counts.
    fn left_whole(&self, rounds: &KeyRounds, round: u64, rank: usize) -> bool {
        self.standings[rank].1 == MemberState::Absent && rounds.whole.contains(&(round, rank))
    }

    /// Returns the ranks for which the round waits because their pushes are not whole.
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
    /// Returns true if a message of this incarnation is from the rank's current worker. A server gets to know
    /// a new worker by its first message.
    pub fn meets(&mut self, rank: usize, incarnation: u32) -> bool {
        let Some(members) = &mut self.members else { return incarnation == 0 };
        let known = &mut members.standings[rank];
        if known.1 == MemberState::Absent && incarnation > known.0 {
            *known = (incarnation, MemberState::Joining);
        }
        *known == (incarnation, MemberState::Joining) || *known == (incarnation, MemberState::Member)
    }

    /// Returns the incarnation of the worker of this rank.
    pub(crate) fn incarnation(&self, rank: usize) -> u32 {
        self.members.as_ref().map_or(0, |members| members.standings[rank].0)
    }

    /// Records that the worker is lost, so that nothing more is accepted from it. Returns its pushes that are
    /// known to be whole.
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

    /// Counts the lost worker's pushes that are whole on this server or according to `whole`, and drops the
    /// others.
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

    /// Lets the worker take part in the rounds after `after`.
    pub fn join(&mut self, rank: usize, incarnation: u32, after: &BTreeMap<Key, u64>) -> Vec<Output> {
        let Some(members) = &mut self.members else { return Vec::new() };
        members.standings[rank] = (incarnation, MemberState::Member);
        members.after[rank].clone_from(after);
        let keys: Vec<Key> = members.keys.keys().cloned().collect();
        self.advance_all(&keys)
    }

    /// Records that one more segment of the push has arrived. If it is the last one for this server, the push
    /// is whole, or, if other servers have segments of the key, this is reported to the worker.
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

    /// Gives the key its first value, and applies its complete rounds in order.
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

    /// Returns the call for which the segment waits before it has had `rounds` rounds, and the ranks that
    /// have not made it.
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
