//! The control thread. It takes the messages of the control star, launches operations that every rank has
//! called, and notices ranks that are late or gone. It has three time limits, `RINGPULL_WARN`,
//! `RINGPULL_TIMEOUT` and `RINGPULL_SILENCE`. It needs no limit to notice a deadlock, in which every rank
//! waits for another.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use ringpull_base::config::{Config, DEADLOCK, NEVER};
use ringpull_base::status::LateRanks;
use ringpull_base::timeline::clock::Offset;
use ringpull_base::topology::Peer;
use ringpull_base::{Error, after_error, notice, timeline, waits};

use crate::progress::agreement::{Agreement, LateCall};
use crate::progress::comm::AbortOnPanic;
use crate::progress::connected::LEARNING;
use crate::progress::hang::{HangDetector, LOOK};
use crate::progress::messages::{ControlMessage, Order, Overdue};
use crate::progress::shared::{Shared, is_loss};
use crate::progress::standstill::Standstill;
use crate::progress::status;
use crate::progress::stopping::StopReports;
use crate::transport::control::Event;

/// A silence that is shorter than a lost rank's by at most this number of heartbeats counts as nearly as
/// long.
const ALMOST: f64 = 1.5;

/// A clock of the seconds in which this process could hear its peers. The control thread looks at the clock
/// once per interval. A longer gap means that this process did not run (it was stopped, or its machine
/// slept). It does not count as silence of the others.
struct HearingClock {
    looked: Instant,
    now: Duration,
    longest: Duration,
}

impl HearingClock {
    fn now_s(&mut self) -> f64 {
        self.now += self.looked.elapsed().min(self.longest);
        self.looked = Instant::now();
        self.now.as_secs_f64()
    }
}

/// The control thread's state.
pub(super) struct Watcher {
    agreement: Agreement,
    peers: BTreeMap<usize, Peer>,
    heard_s: Vec<f64>,
    /// The last time at which some rank had been silent for a few heartbeats. Only used on rank 0.
    all_heard_s: f64,
    /// Peers that left in order and whose processes have ended since.
    departed: Vec<bool>,
    /// True for each rank that has finished all its calls. Only used on rank 0.
    done: Vec<bool>,
    clock: HearingClock,
    interval: Duration,
    silence_s: f64,
    /// The time without progress of a frozen cycle after which every rank reports its progress.
    patience_s: f64,
    warnings: LateWarnings,
    timeout: Duration,
    /// The time since which rank 0 has been asking for the place of this rank's program.
    asked: Option<Instant>,
    still: Standstill,
    hang: HangDetector,
    /// The offset of this process's clock from rank 0's, for the timeline.
    offset: Offset,
    /// The number of orders that were sent to each rank. Only used on rank 0.
    orders: Vec<u64>,
    stops: StopReports,
    /// The time at which the survivors began to go on without a lost rank.
    renewed: Option<Instant>,
    /// The last snapshot of a frozen cycle that makes no progress, and the time since which it has not
    /// changed.
    standstill: Option<(CycleSnapshot, f64)>,
}

/// The warnings about ranks for which others wait. Only used on rank 0. Times are in seconds.
struct LateWarnings {
    /// The time until the first warning.
    first_s: f64,
    /// The time until the next warning, which doubles each time.
    next_s: f64,
    /// The places that the late ranks have reported.
    sites: BTreeMap<usize, String>,
    /// The time at which the late ranks were asked for their places.
    asked_s: Option<f64>,
}

impl LateWarnings {
    fn new(first_s: f64) -> Self {
        LateWarnings { first_s, next_s: first_s, sites: BTreeMap::new(), asked_s: None }
    }

    /// Forgets the late ranks, because nobody waits for them any more.
    fn reset(&mut self) {
        *self = LateWarnings::new(self.first_s);
    }
}

/// A snapshot that does not change while a frozen cycle makes no progress. It has the unit for which the rank
/// waits, and the bytes moved so far.
#[derive(PartialEq, Clone)]
struct CycleSnapshot {
    epoch: u32,
    unit: u64,
    has_begun: bool,
    moved: u64,
}

impl Watcher {
    /// Returns a watcher. On rank 0 its buckets hold `bucket_bytes`.
    pub(super) fn new(config: &Config, (size, helpers): (usize, usize), bucket_bytes: usize) -> Self {
        let interval = config.heartbeat_interval.min(config.silence() / 4);
        Watcher {
            agreement: Agreement::new(size, config.timeout.as_secs_f64(), bucket_bytes),
            peers: BTreeMap::new(),
            heard_s: vec![0.0; size + helpers],
            all_heard_s: 0.0,
            departed: vec![false; size + helpers],
            done: vec![false; size],
            clock: HearingClock { looked: Instant::now(), now: Duration::ZERO, longest: interval * 2 },
            interval,
            silence_s: config.silence().as_secs_f64(),
            patience_s: (DEADLOCK / 2).min(config.timeout / 4).as_secs_f64(),
            warnings: LateWarnings::new(config.warn.as_secs_f64()),
            timeout: config.timeout,
            asked: None,
            still: Standstill::default(),
            hang: HangDetector::default(),
            offset: Offset::default(),
            orders: vec![0; size],
            stops: StopReports::default(),
            renewed: None,
            standstill: None,
        }
    }

    /// Records that sums block: each is done only after the one before it, in the same order on every rank.
    pub(super) fn sums_block(&mut self) {
        self.agreement.sums_block();
    }

    pub(super) fn run(&mut self, weak: &Weak<Shared>, notes: &Receiver<ControlMessage>) {
        let _guard = AbortOnPanic;
        let Some(events) = weak.upgrade().map(|shared| {
            let peer = shared.peer();
            shared.send_to_peers(&ControlMessage::Here(peer.clone()));
            if timeline::is_on() {
                timeline::introduce(peer.role, peer.rank, shared.size);
                if shared.rank > 0 {
                    shared.send(0, &ControlMessage::Asked(timeline::clock_ns()));
                }
            }
            shared.control.events().clone()
        }) else {
            return;
        };
        let mut next_tick = Instant::now() + self.interval;
        loop {
            let arrived = crossbeam_channel::select! {
                recv(notes) -> note => note.map(|note| (0, note)).map_err(|_| RecvTimeoutError::Disconnected),
                recv(events) -> event => match event {
                    Ok(Event::Frame { from, bytes }) => Ok((from, decode(from, &bytes))),
                    Ok(Event::Gone { rank, cause }) => {
                        let Some(shared) = weak.upgrade() else { return };
                        self.gone(&shared, rank, &cause);
                        continue;
                    }
                    Err(_) => Err(RecvTimeoutError::Timeout),
                },
                default(self.pause(next_tick)) => Err(RecvTimeoutError::Timeout),
            };
            let Some(shared) = weak.upgrade() else { return };
            match arrived {
                Ok((from, note)) => {
                    self.heard_s[from] = self.clock.now_s();
                    if from < shared.size || note.is_of_a_helper() {
                        self.take(&shared, weak, from, note);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.say_where(&shared);
                    if self.warnings.asked_s.is_some() && shared.rank == 0 && shared.condition.is_well() {
                        let now_s = self.clock.now_s();
                        self.warn(&shared, now_s);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_tick {
                self.tick(&shared);
                let interval = if shared.condition.is_well() { self.interval } else { self.interval.min(LOOK) };
                next_tick = Instant::now() + interval;
            }
        }
    }

    /// Returns the time to wait for a message: until the next look at the clock, or less if a rank was asked
    /// where its program is.
    fn pause(&self, next_tick: Instant) -> Duration {
        const SHORT: Duration = Duration::from_millis(50);
        let rest = next_tick.saturating_duration_since(Instant::now());
        if self.asked.is_some() || self.warnings.asked_s.is_some() { rest.min(SHORT) } else { rest }
    }

    fn take(&mut self, shared: &Shared, weak: &Weak<Shared>, from: usize, note: ControlMessage) {
        let outcome = match note {
            ControlMessage::Here(peer) => {
                self.peers.insert(from, peer);
                Ok(())
            }
            ControlMessage::Called(call) => {
                let now_s = self.clock.now_s();
                self.agreement.call(from, call, now_s).map(|orders| spread(shared, &mut self.orders, orders))
            }
            ControlMessage::Joined => {
                let now_s = self.clock.now_s();
                self.agreement.join(from, now_s).map(|orders| spread(shared, &mut self.orders, orders))
            }
            ControlMessage::Invalidate(epoch, overdue) => {
                let orders = self.agreement.invalidate(epoch, overdue);
                spread(shared, &mut self.orders, orders);
                Ok(())
            }
            ControlMessage::Stopped(stopped) => {
                let now_s = self.clock.now_s();
                self.agreement.stopped(from, stopped, now_s).map(|orders| spread(shared, &mut self.orders, orders))
            }
            ControlMessage::CaughtUp => {
                self.agreement.caught_up(from);
                Ok(())
            }
            ControlMessage::Forgot => {
                self.agreement.forgot(from);
                Ok(())
            }
            ControlMessage::StopFrom(call) => {
                let orders = self.stops.take(from, call, shared.size);
                spread(shared, &mut self.orders, orders);
                Ok(())
            }
            ControlMessage::DataStill(is_still) => {
                let now_s = self.clock.now_s();
                self.agreement.data_still(from, is_still, now_s);
                Ok(())
            }
            ControlMessage::Stuck(stuck) => {
                let now_s = self.clock.now_s();
                self.agreement.stuck(from, stuck, now_s);
                Ok(())
            }
            ControlMessage::Where => {
                if waits::has_looker() {
                    self.asked = Some(Instant::now());
                    waits::look();
                } else {
                    shared.send(from, &ControlMessage::At(String::new()));
                }
                Ok(())
            }
            ControlMessage::Describe(_) if shared.rank == 0 && from > 0 => {
                status::answer(shared, weak, from);
                Ok(())
            }
            ControlMessage::Describe(question) => {
                let late = self.agreement.late().map(|late| in_status(late, self.clock.now_s()));
                status::describe(shared, question, late);
                Ok(())
            }
            ControlMessage::Described(question, status) => {
                shared.answers.take(question, from, *status);
                Ok(())
            }
            ControlMessage::Everybody(lines) => {
                notice(&lines);
                Ok(())
            }
            ControlMessage::At(site) => {
                self.warnings.sites.insert(from, site);
                Ok(())
            }
            ControlMessage::Order(order) => {
                shared.apply(order);
                Ok(())
            }
            // After a loss, a rank reports why it does not go on.
            ControlMessage::Failed(fault) if shared.condition.is_renewing() && !is_loss(&fault) => {
                shared.end(&fault);
                Ok(())
            }
            ControlMessage::Failed(fault) => {
                shared.poison(&fault, shared.rank == 0);
                Ok(())
            }
            ControlMessage::Leaving(begun) => {
                let now_s = self.clock.now_s();
                self.agreement.leave(from, begun, now_s).map(|orders| spread(shared, &mut self.orders, orders))
            }
            ControlMessage::Done => {
                self.done[from] = true;
                if self.done.iter().all(|done| *done) {
                    shared.send_to_peers(&ControlMessage::Ending);
                    shared.condition.close();
                }
                Ok(())
            }
            ControlMessage::Ending => {
                shared.condition.close();
                shared.served();
                Ok(())
            }
            ControlMessage::Help(asked) => {
                shared.help(asked);
                Ok(())
            }
            ControlMessage::Asked(sent_ns) => {
                shared.send(from, &ControlMessage::Answered(sent_ns, timeline::clock_ns()));
                Ok(())
            }
            ControlMessage::Answered(sent_ns, there_ns) => {
                if self.offset.answered(sent_ns, there_ns, timeline::clock_ns()) {
                    shared.send(0, &ControlMessage::Asked(timeline::clock_ns()));
                } else if let Some((ahead_ns, round_trip_ns)) = self.offset.found() {
                    timeline::set_clock(ahead_ns, round_trip_ns);
                }
                Ok(())
            }
            ControlMessage::Failing(why) => {
                match &why {
                    Some(why) => drop(shared.losses.reasons.lock().insert(from, why.clone())),
                    None => drop(shared.losses.reasons.lock().remove(&from)),
                }
                self.agreement.failing(from, why);
                Ok(())
            }
            ControlMessage::Silent(ranks) if ranks.contains(&shared.rank) => {
                let why = format!("the others have heard nothing from it for {:.0} s", self.silence_s);
                shared.end(&shared.cut_off(&why));
                Ok(())
            }
            ControlMessage::Silent(ranks) => {
                shared.sever(&ranks);
                Ok(())
            }
            ControlMessage::Alive => Ok(()),
        };
        if let Err(fault) = outcome {
            shared.poison(&fault, true);
        }
    }

    fn tick(&mut self, shared: &Shared) {
        self.hang.check(shared);
        self.check_renewal(shared);
        if shared.ranks() > 1 && shared.condition.is_well() {
            shared.send_to_peers(&ControlMessage::Alive);
            let now_s = self.clock.now_s();
            let watched = if shared.rank == 0 { 1..shared.ranks() } else { 0..1 };
            for peer in watched {
                let has_left = self.has_left(shared, peer);
                let awaited = !has_left || shared.doing().is_some();
                if self.departed[peer] && shared.awaits_calls() {
                    // This rank has since called an operation that the peer will not call. Operations under
                    // way had all data of the peer before it left.
                    let operation = self.interrupted(shared);
                    let why = self.why(shared, peer).unwrap_or_default().to_owned();
                    let (peer, ranks) = (self.name(peer), vec![peer]);
                    let fault = Error::Finished { peer, ranks, operation, rank: shared.rank, why };
                    shared.poison(&fault, true);
                } else if now_s - self.heard_s[peer] > self.silence_s {
                    if awaited {
                        let silent = self.silent(shared, peer, now_s);
                        self.lost(
                            shared,
                            &silent,
                            &format!("nothing was received from it for {:.0} s", self.silence_s),
                        );
                    } else {
                        // The peer left in order. Its process may be gone, and the library would wait for it
                        // for ever.
                        self.departed[peer] = true;
                        shared.condition.close();
                    }
                }
                if !has_left && now_s - self.heard_s[peer] > 3.0 * self.interval.as_secs_f64() {
                    self.all_heard_s = now_s;
                }
            }
            // This comes after the check for silent ranks, because silence explains why a rank has not
            // called.
            if !shared.running.lock().is_empty() {
                self.agreement.heard(now_s);
            }
            let orders = &self.orders;
            let checked = self.agreement.check_time(now_s).and_then(|()| self.agreement.check_deadlock(orders, now_s));
            if let Err(fault) = checked {
                shared.poison(&fault, true);
            }
            if let Some(ranks) = self.agreement.lost_data(orders, now_s, self.silence_s, self.all_heard_s) {
                let fault = Error::PeerLost {
                    peer: format!("what MPI carries to rank(s) {ranks:?}"),
                    ranks: Vec::new(),
                    cause: format!(
                        "every rank is alive and has called it, but its messages have not moved for {:.0} s: a connection of MPI may have been reset",
                        self.silence_s
                    ),
                    operation: self.interrupted(shared),
                    rank: Some(shared.rank),
                };
                shared.poison(&fault, true);
            }
            if shared.rank == 0 {
                self.warn(shared, now_s);
            }
            self.say_where(shared);
            self.look(shared, now_s);
            self.still.report(shared, now_s, |stuck| shared.send_to_rank_0(ControlMessage::Stuck(stuck)));
            self.still.report_data(now_s, |is_still| shared.send_to_rank_0(ControlMessage::DataStill(is_still)));
        }
    }

    /// Ends the job if the survivors do not begin to go on, because MPI then waits for a rank that is alive
    /// and does nothing.
    fn check_renewal(&mut self, shared: &Shared) {
        let Some(elastic) = shared.elastic.as_ref().filter(|elastic| shared.condition.is_renewing() && elastic.waits())
        else {
            return;
        };
        let since = *self.renewed.get_or_insert_with(Instant::now);
        shared.send_to_peers(&ControlMessage::Alive);
        let limit_s = self.silence_s + ALMOST * self.interval.as_secs_f64() + LEARNING.as_secs_f64();
        if since.elapsed().as_secs_f64() > limit_s
            && elastic.waits()
            && let Some(fault) = shared.condition.fault()
        {
            let is_silent = shared.losses.is_silent();
            let alone = || shared.cut_off(&format!("no rank was reached for {limit_s:.0} s after {fault}"));
            shared.end(&if is_silent { alone() } else { fault.clone() });
        }
    }

    /// Reports the ranks that others wait for, and the places of their programs.
    fn warn(&mut self, shared: &Shared, now_s: f64) {
        let Some(late) = self.agreement.late() else {
            self.warnings.reset();
            return;
        };
        let waited_s = now_s - late.since_s;
        // The ranks are asked a little before the warning, because an answer takes time.
        let ahead_s = 2.0 * self.interval.as_secs_f64();
        if waited_s < self.warnings.first_s - ahead_s {
            self.warnings.reset();
        }
        if waited_s >= self.warnings.next_s - ahead_s && self.warnings.asked_s.is_none() {
            self.warnings.asked_s = Some(now_s);
            for rank in &late.missing {
                if *rank > 0 {
                    shared.send(*rank, &ControlMessage::Where);
                } else if waits::has_looker() {
                    self.asked = Some(Instant::now());
                    waits::look();
                } else {
                    self.warnings.sites.insert(0, String::new());
                }
            }
        }
        let is_answered = late.missing.iter().all(|rank| self.warnings.sites.contains_key(rank));
        let is_asked = self.warnings.asked_s.is_some_and(|asked_s| is_answered || now_s - asked_s >= ahead_s);
        if waited_s >= self.warnings.next_s && is_asked {
            self.warnings.next_s = 2.0 * self.warnings.next_s.max(waited_s);
            notice(&self.warning(&late, waited_s));
            self.warnings.sites.clear();
            self.warnings.asked_s = None;
        }
    }

    fn warning(&self, late: &LateCall, waited_s: f64) -> String {
        let LateCall { operation, key, rank, missing, .. } = late;
        let named = missing.iter().map(|rank| {
            self.warnings
                .sites
                .get(rank)
                .filter(|site| !site.is_empty())
                .map_or_else(|| self.name(*rank), |site| format!("{} at {site}", self.name(*rank)))
        });
        let named: Vec<String> = named.collect();
        let end = if self.timeout >= NEVER {
            "there is no limit while its process lives".to_owned()
        } else {
            format!("after {} s (RINGPULL_TIMEOUT) this is an error", self.timeout.as_secs())
        };
        format!(
            "warning: rank {rank} has waited {waited_s:.0} s for {operation} of key {key}, which {} has not called; {end}",
            named.join(", ")
        )
    }

    /// Answers rank 0's question for the place of this rank's program.
    fn say_where(&mut self, shared: &Shared) {
        if let Some(place) = self.asked.and_then(waits::seen) {
            self.asked = None;
            let site = place.site.unwrap_or_default();
            if shared.rank == 0 {
                self.warnings.sites.insert(0, site);
            } else {
                shared.send(0, &ControlMessage::At(site));
            }
        } else if self.asked.is_some_and(|asked| asked.elapsed() > 3 * self.interval) {
            self.asked = None;
        }
    }

    /// Stops the frozen cycle if it has made no progress for long. Rank 0 then finds out which rank is
    /// behind.
    fn look(&mut self, shared: &Shared, now_s: f64) {
        let Some(sight) = see(shared) else {
            self.standstill = None;
            return;
        };
        let since_s = match &self.standstill {
            Some((before, since_s)) if *before == sight => *since_s,
            _ => now_s,
        };
        self.standstill = Some((sight.clone(), since_s));
        let waited_s = now_s - since_s;
        if waited_s <= self.patience_s {
            return;
        }
        self.standstill = None;
        let CycleSnapshot { epoch, has_begun, .. } = sight;
        shared.send_to_rank_0(ControlMessage::Invalidate(epoch, Some(Overdue { has_begun, waited_s })));
    }

    fn gone(&mut self, shared: &Shared, rank: usize, cause: &str) {
        if self.has_left(shared, rank) {
            self.departed[rank] = true;
            shared.condition.close();
        } else {
            self.lost(shared, &[rank], cause);
        }
    }

    /// Returns the ranks that are silent or nearly so, since a link that was cut separates all of them at
    /// once. If the job goes on without them, first tells these ranks and all others.
    fn silent(&self, shared: &Shared, first: usize, now_s: f64) -> Vec<usize> {
        let almost_s = self.silence_s - ALMOST * self.interval.as_secs_f64();
        let watched = if shared.rank == 0 { 1..shared.ranks() } else { 0..1 };
        let is_silent = |peer: usize| now_s - self.heard_s[peer] > almost_s && !self.has_left(shared, peer);
        let silent: Vec<usize> = watched.filter(|peer| *peer == first || is_silent(*peer)).collect();
        if shared.elastic.is_some() {
            shared.send_to_peers(&ControlMessage::Silent(silent.clone()));
            shared.sever(&silent);
        }
        silent
    }

    fn lost(&self, shared: &Shared, ranks: &[usize], cause: &str) {
        let names: Vec<String> = ranks.iter().map(|rank| self.name(*rank)).collect();
        let (peer, operation) = (names.join(", "), self.interrupted(shared));
        let cause = after_error(cause, ranks.iter().find_map(|rank| self.why(shared, *rank)));
        let ranks = ranks.iter().copied().filter(|rank| *rank < shared.size).collect();
        let fault = Error::PeerLost { peer, ranks, cause, operation, rank: Some(shared.rank) };
        shared.poison(&fault, true);
    }

    /// Returns true if a rank has left in order, as a helper does when every other rank is done.
    fn has_left(&self, shared: &Shared, rank: usize) -> bool {
        if rank < shared.size { self.agreement.has_left(rank) } else { shared.condition.is_closing() }
    }

    /// Returns the error with which a rank would end, as it reported last.
    fn why(&self, shared: &Shared, rank: usize) -> Option<&str> {
        if rank < shared.size { self.agreement.why(rank) } else { None }
    }

    fn name(&self, rank: usize) -> String {
        self.peers.get(&rank).map_or_else(|| format!("rank {rank}"), Peer::to_string)
    }

    /// Describes the current operation of this rank, as far as it is known.
    fn interrupted(&self, shared: &Shared) -> String {
        shared.doing().or_else(|| self.agreement.oldest()).unwrap_or_else(|| shared.doing_or_done())
    }
}

/// Sends orders to every rank that they concern. Rank 0 gets them last, because they take longer to reach the
/// others.
fn spread(shared: &Shared, given: &mut [u64], orders: Vec<Order>) {
    for order in orders {
        for peer in (1..shared.size).filter(|peer| order.concerns(*peer)) {
            given[peer] += 1;
            shared.send(peer, &ControlMessage::Order(order.clone()));
        }
        if order.concerns(0) {
            given[0] += 1;
            shared.apply(order);
        }
    }
}

fn see(shared: &Shared) -> Option<CycleSnapshot> {
    let calls = shared.calls.lock();
    let (epoch, open) = calls.frozen()?;
    let running = shared.running.lock().iter().filter_map(|(number, _)| calls.unit(*number)).min();
    let unit = running.into_iter().chain(open).min()?;
    Some(CycleSnapshot { epoch, unit, has_begun: running == Some(unit), moved: shared.moved() })
}

fn in_status(late: LateCall, now_s: f64) -> LateRanks {
    let LateCall { operation, key, rank, missing, since_s } = late;
    let operation = format!("{operation} of key {key}");
    LateRanks { ranks: missing, operation, waiting: rank, waited_s: now_s - since_s }
}

pub(super) fn decode(from: usize, bytes: &[u8]) -> ControlMessage {
    postcard::from_bytes(bytes).unwrap_or_else(|cause| {
        let what = format!("a control message that cannot be read ({cause})");
        ControlMessage::Failed(Error::protocol(None, format!("rank {from}"), what))
    })
}
