//! Measures the hosts' links while a job runs, as an operation among others.
//!
//! Nothing blocks: a rank has messages for its next partner, and asks what comes next when they are done. So
//! another operation, of a process set say, goes on beside it, and no rank waits in here for one that waits
//! elsewhere. One rank of each host plays every other host, in the pairs of a tournament (`rack_probe`). A
//! game is a byte each way, so that both have come; then as much as uses up what a shaper lets through at
//! first; a byte again; and as much again, of which each takes the time until it has all. After a tournament
//! every rank gets all times, and so all ranks compute the same rates.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use ringpull_base::{Buffer, Result};
use ringpull_plan::{LinkRates, Links, Message, Parts};

use super::Communicator;
use super::rack_probe::{HOSTS, PairTimes, fit, game_bytes, partner, rates, rounds, typical};
use crate::interpreter::{Endpoint, Scratch, Ticket};
use crate::transport::Stamp;

/// As many tournaments are played, until most pairs take what the rates say: as before a job begins.
const TOURNAMENTS: std::ops::RangeInclusive<usize> = 2..=5;
/// What the games of the first take together on links as fast as the slowest was; on those that have become
/// slower, longer in proportion.
const FIRST_US: f64 = 1_200_000.0;
/// No further tournament begins when those that were played took longer: no sum of all ranks goes on meanwhile.
const MOST_US: f64 = 6_000_000.0;
/// Rates that differ by less are those that are known.
const NEWS: f64 = 1.25;

/// What a measurement during a job has found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LinksFound {
    /// Whether sums go by other rates from here on.
    pub changed: bool,
    /// Of each host's link, in bytes per microsecond; none if they cannot be told.
    pub rates: Vec<LinkRates>,
    /// The lowest rank of each host.
    pub ranks: Vec<usize>,
    /// Whether the links differ by what is known now.
    pub differ: bool,
    /// What it took.
    pub took: Duration,
}

/// One rank's part in a measurement. Dropped before its end, it leaves its memory to the transport.
#[derive(Default)]
pub struct LinkGames {
    /// The messages' bytes, of both directions.
    data: Option<Buffer>,
    /// Every rank's times of a tournament, while they are exchanged.
    rows: Option<Buffer>,
    began: Option<Instant>,
    /// The next move of this tournament.
    turn: usize,
    /// With which host this rank's last timed game is, when it began, and when this rank had all.
    game: Option<(usize, Instant, Arc<Mutex<Instant>>)>,
    /// What each host's messages took to come here in this tournament.
    own: Vec<f64>,
    /// The tournaments that were played, of all hosts.
    played: Vec<PairTimes>,
    is_done: bool,
}

/// The moves of a game.
const MOVES: usize = 4;

impl LinkGames {
    /// Begins what this rank has to send and receive next; asked again when that is done. `None` when all is
    /// done: then [`found`](Self::found) has the outcome.
    pub fn advance(&mut self, comm: &mut Communicator, stamp: Stamp) -> Result<Option<Ticket>> {
        self.began.get_or_insert_with(Instant::now);
        let hosts = comm.placement.hosts.len();
        if let Some((other, since, until)) = self.game.take() {
            self.own[other] = until.lock().duration_since(since).as_secs_f64() * 1e6;
        }
        if let Some(rows) = self.rows.take() {
            self.played.push(comm.pair_times(rows.bytes()));
            let is_enough = TOURNAMENTS.contains(&self.played.len())
                && (self.played.len() == *TOURNAMENTS.end() || comm.rates_of(&self.played).1);
            if is_enough || self.played.iter().map(|times| took_us(times)).sum::<f64>() > MOST_US {
                self.is_done = true;
                return Ok(None);
            }
            self.turn = 0;
        }
        if self.turn == 0 {
            self.own = vec![0.0; hosts];
        }
        let (rank, host, bytes) = (comm.rank(), comm.own_host(), comm.game_bytes());
        while self.turn < rounds(hosts) * MOVES {
            let (round, step) = (self.turn / MOVES, self.turn % MOVES);
            self.turn += 1;
            let Some(other) = host.and_then(|host| partner(host, round, hosts)) else { continue };
            let len = if step % 2 == 0 { 1 } else { bytes };
            let schedule = comm.executor.schedule(&ringpull_plan::exchange(rank, comm.placement.hosts[other][0], len));
            let data = self.data.get_or_insert_with(|| Buffer::zeroed(2 * bytes)).bytes_mut();
            let since = Instant::now();
            let until = Arc::new(Mutex::new(since));
            if step + 1 == MOVES {
                self.game = Some((other, since, Arc::clone(&until)));
            }
            let endpoint = Box::new(Clocked { data: data.as_mut_ptr(), until });
            // SAFETY: the buffer is this one's alone, holds what is sent and received, and is kept until the
            // ticket is reported; if it never is, for ever.
            return Ok(Some(unsafe { comm.executor.begin_between(&schedule, endpoint, stamp, i32::MAX) }));
        }
        let row_bytes = size_of_val(&self.own[..]);
        let parts = Parts::of((0..=comm.size()).map(|rank| rank * row_bytes).collect());
        let rows = self.rows.insert(Buffer::zeroed(parts.len())).bytes_mut();
        rows[parts.range(rank..rank + 1)].copy_from_slice(bytemuck::cast_slice(&self.own));
        let schedule = comm.executor.schedule(&ringpull_plan::allgather(rank, comm.size(), parts));
        // SAFETY: as above.
        Ok(Some(unsafe { comm.executor.begin(&schedule, std::ptr::from_mut::<[u8]>(rows), stamp, i32::MAX) }))
    }

    /// What was found, when all is done, by which sums of all ranks that begin later are planned. All ranks
    /// find the same.
    pub fn found(&self, comm: &mut Communicator) -> LinksFound {
        let took = self.began.map(|began| began.elapsed()).unwrap_or_default();
        LinksFound { took, ..comm.take_games(&self.played) }
    }
}

impl Drop for LinkGames {
    fn drop(&mut self) {
        if !self.is_done {
            std::mem::forget((self.data.take(), self.rows.take()));
        }
    }
}

/// An exchange between two places of a buffer, and when the last of it came.
struct Clocked {
    data: *mut u8,
    until: Arc<Mutex<Instant>>,
}

impl Endpoint for Clocked {
    fn copies_in_place(&self) -> bool {
        true
    }

    fn outgoing(&mut self, message: &Message, _scratch: &mut Scratch) -> Result<*const u8> {
        Ok(self.data.wrapping_add(message.start).cast_const())
    }

    fn sent(&mut self, _message: &Message, _scratch: &mut Scratch) {}

    fn incoming(&mut self, message: &Message, _peer: usize, _scratch: &mut Scratch) -> Result<*mut u8> {
        Ok(self.data.wrapping_add(message.start))
    }

    fn received(&mut self, _message: &Message, _peer: usize, _place: *mut u8, _scratch: &mut Scratch) -> Result<()> {
        *self.until.lock() = Instant::now();
        Ok(())
    }
}

impl Communicator {
    /// Whether the links of the hosts may be measured again while the job runs: `auto` sums between hosts by
    /// a model that was measured, and there are neither racks nor helpers. The same on every rank.
    pub fn may_measure_links(&self) -> bool {
        self.learned.is_measured
            && self.choice.is_auto()
            && self.helpers.active() == 0
            && self.placement.racks.is_none()
            && HOSTS.contains(&self.placement.hosts.len())
    }

    /// Whether the links differ by what is known.
    pub fn links_differ(&self) -> bool {
        self.learned.links.is_some()
    }

    /// The host of which this rank is the lowest.
    fn own_host(&self) -> Option<usize> {
        self.placement.hosts.iter().position(|ranks| ranks[0] == self.rank())
    }

    fn game_bytes(&self) -> usize {
        let rate = self.learned.model.long_bytes_per_us;
        let games = TOURNAMENTS.start() * rounds(self.placement.hosts.len());
        game_bytes((rate, rate), games, FIRST_US)
    }

    /// What each host's messages took to come to each other host, by rows of every rank, of what came to it.
    fn pair_times(&self, rows: &[u8]) -> PairTimes {
        let hosts = self.placement.hosts.len();
        let time = |from: usize, to: usize| {
            let at = (self.placement.hosts[to][0] * hosts + from) * size_of::<f64>();
            bytemuck::pod_read_unaligned(&rows[at..at + size_of::<f64>()])
        };
        (0..hosts).map(|from| (0..hosts).map(|to| time(from, to)).collect()).collect()
    }

    /// The rates by these games, and whether most pairs take what they say.
    fn rates_of(&self, played: &[PairTimes]) -> (Vec<LinkRates>, bool) {
        let (bytes, model) = (self.game_bytes(), &self.learned.model);
        let step_us = model.latency_us + model.message_us;
        let found = rates(played, bytes, step_us);
        let is_sure = fit(&found, &typical(played), bytes, step_us);
        (found, is_sure)
    }

    /// Goes by these games from here on, if they tell anything new.
    fn take_games(&mut self, played: &[PairTimes]) -> LinksFound {
        let (found, is_sure) = self.rates_of(played);
        let tournaments = played.len();
        tracing::debug!(?found, tournaments, is_sure, "the hosts' links, measured again, in bytes per microsecond");
        let links = Links::of(&found);
        let changed = is_sure && !are_like(self.learned.links.as_ref(), links.as_ref());
        if changed {
            let slowest = found.iter().map(|rates| rates.slower()).fold(f64::INFINITY, f64::min);
            let model = &mut self.learned.model;
            model.long_bytes_per_us = slowest;
            model.short_bytes_per_us = model.short_bytes_per_us.max(slowest);
            self.learned.links = links;
            "a measurement during the job".clone_into(&mut self.learned.source);
            self.learned.age = None;
            self.forget_schedules();
        }
        if is_sure {
            self.executor.shorten_queues(found.iter().map(|rates| rates.faster()).fold(0.0, f64::max));
        }
        LinksFound {
            changed,
            rates: if is_sure { found } else { Vec::new() },
            ranks: self.placement.hosts.iter().map(|ranks| ranks[0]).collect(),
            differ: self.links_differ(),
            took: Duration::ZERO,
        }
    }
}

/// About what a tournament took: of two exchanges of each pair the second was timed.
fn took_us(times: &[Vec<f64>]) -> f64 {
    let of = |to: usize| 2.0 * times.iter().map(|from| from[to]).sum::<f64>();
    (0..times.len()).map(of).fold(0.0, f64::max)
}

/// Whether sums by one would be about as fast as by the other.
fn are_like(one: Option<&Links>, other: Option<&Links>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    let is_like = |one: f64, other: f64| (1.0 / NEWS..NEWS).contains(&(one / other));
    let mut both = one.rates().iter().zip(other.rates());
    both.all(|(one, other)| is_like(one.sends, other.sends) && is_like(one.receives, other.receives))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tournament_takes_as_long_as_its_slowest_host() {
        let times = vec![vec![0.0, 10.0, 30.0], vec![10.0, 0.0, 30.0], vec![10.0, 10.0, 0.0]];
        assert!((took_us(&times) - 120.0).abs() < 1e-9);
    }

    #[test]
    fn links_are_alike_whose_rates_differ_by_noise() {
        let links = |rates: &[f64]| Links::of(&rates.iter().copied().map(LinkRates::both).collect::<Vec<_>>());
        let of = |one: &[f64], other: &[f64]| are_like(links(one).as_ref(), links(other).as_ref());
        assert!(of(&[25.0, 25.0, 12.5], &[24.0, 25.0, 12.0]));
        assert!(of(&[25.0, 25.0, 24.0], &[12.0, 12.5, 12.4]), "all have become slower: equal parts suit them");
        assert!(!of(&[25.0, 25.0, 25.0], &[25.0, 25.0, 12.5]));
        assert!(!of(&[25.0, 25.0, 12.5], &[25.0, 25.0, 25.0]));
        assert!(!of(&[25.0, 25.0, 12.5], &[25.0, 12.5, 25.0]));
        assert!(!of(&[25.0, 25.0, 12.5], &[25.0, 25.0, 6.0]));
    }
}
