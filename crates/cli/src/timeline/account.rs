//! Divides the time of a step into parts, for the thread of each rank that calls the store.
//!
//! A step is a span that the program marked as a step, or else the time from one push of the first key to its
//! next push. Time in which the caller was not blocked is computing, or calls of push. Blocked time is
//! divided in this order: waiting until the straggler, which is the last rank to call the awaited operation,
//! has called it; the update; packing and unpacking; the rest is exposed communication.
//!
//! A framework may call the store on threads of its own, and block the program's thread itself. Such a wait
//! is recorded as a wait for results, on any thread. It is a wait for all operations that this rank has
//! called and other ranks have not.

use std::collections::BTreeMap;

use serde::Serialize;

use ringpull_base::config::Role;
use ringpull_base::timeline::trace::TraceEvent;
use ringpull_base::timeline::{Phase, RESULTS};

use super::intervals::Intervals;
use super::merge::MergedTimeline;
use ringpull_harness::train::WARMUP;

/// The parts of one step in seconds, which add up to the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(clippy::struct_field_names, reason = "all are seconds")]
pub(crate) struct Share {
    pub step_s: f64,
    /// The caller's own work.
    pub compute_s: f64,
    /// The time in calls of push.
    pub push_s: f64,
    /// Blocked until the last rank had called.
    pub straggler_s: f64,
    /// Blocked while bytes were sent or queued.
    pub communication_s: f64,
    /// Blocked, while gradients and sums were copied.
    pub packing_s: f64,
    /// Blocked, while the optimizer was at work.
    pub update_s: f64,
}

/// One rank's mean step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RankAccount {
    pub rank: usize,
    pub host: String,
    pub steps: usize,
    pub share: Share,
    /// Seconds per step for which the other ranks waited for this rank, added over these ranks.
    pub awaited_s: f64,
}

/// The times of one key, averaged over ranks and steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct KeyAccount {
    pub key: String,
    /// The time for which callers were blocked by this key.
    pub blocked_s: f64,
    /// The time that its collectives or requests took.
    pub communication_s: f64,
    /// Payload bytes of one push.
    pub bytes: u64,
}

/// A job's account.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Account {
    /// How steps were found.
    pub steps_by: String,
    /// One for each worker whose timeline was given.
    pub ranks: Vec<RankAccount>,
    pub mean: Share,
    /// The keys, sorted by the time for which callers were blocked, longest first.
    pub keys: Vec<KeyAccount>,
}

struct TimedSpan {
    phase: Phase,
    name: String,
    start: f64,
    end: f64,
    tid: u32,
    bytes: u64,
}

struct RankSpans {
    number: usize,
    host: String,
    spans: Vec<TimedSpan>,
    caller: u32,
    steps: Vec<(f64, f64)>,
}

/// Computes the account of a merged job.
pub(crate) fn account(merged: &MergedTimeline) -> Account {
    let workers = merged.processes.iter().filter(|about| about.role == Role::Worker);
    let mut marked = true;
    let ranks: Vec<RankSpans> = workers
        .map(|about| {
            let spans: Vec<TimedSpan> =
                merged.events.iter().filter(|event| event.pid == about.number()).filter_map(timed).collect();
            let caller = caller(&spans);
            let (steps, by_mark) = steps(&spans);
            marked &= by_mark;
            RankSpans { number: about.rank.unwrap_or_default(), host: about.host.clone(), spans, caller, steps }
        })
        .collect();
    let last_calls = last_calls(&ranks);
    let mut awaited: BTreeMap<usize, f64> = BTreeMap::new();
    let mut accounts: Vec<RankAccount> = ranks.iter().map(|rank| of_rank(rank, &last_calls, &mut awaited)).collect();
    for account in &mut accounts {
        account.awaited_s = awaited.get(&account.rank).copied().unwrap_or_default() / account.steps.max(1) as f64;
    }
    let shares: Vec<Share> = accounts.iter().map(|account| account.share).collect();
    let steps_by = if marked { "the program's own marks" } else { "the first key that is pushed again" }.to_owned();
    Account { steps_by, mean: Share::mean(&shares), keys: keys(&ranks), ranks: accounts }
}

fn timed(event: &TraceEvent) -> Option<TimedSpan> {
    let phase = Phase::of_name(&event.cat)?;
    let (start, length) = (event.ts / 1e6, event.dur? / 1e6);
    let bytes = event.args.bytes.unwrap_or_default();
    Some(TimedSpan { phase, name: event.name.clone(), start, end: start + length, tid: event.tid, bytes })
}

/// The thread that pushes most.
fn caller(spans: &[TimedSpan]) -> u32 {
    let mut pushes: BTreeMap<u32, usize> = BTreeMap::new();
    spans.iter().filter(|span| span.phase == Phase::Push).for_each(|span| *pushes.entry(span.tid).or_default() += 1);
    pushes.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(tid, _)| tid)
}

/// Returns the steps, and true if the program marked them.
fn steps(spans: &[TimedSpan]) -> (Vec<(f64, f64)>, bool) {
    let marks = spans.iter().filter(|span| span.phase == Phase::Step && span.name != WARMUP);
    let marks: Vec<(f64, f64)> = marks.map(|span| (span.start, span.end)).collect();
    if !marks.is_empty() {
        return (marks, true);
    }
    let mut pushes: Vec<&TimedSpan> = spans.iter().filter(|span| span.phase == Phase::Push).collect();
    pushes.sort_by(|a, b| a.start.total_cmp(&b.start));
    // A key that is pushed once was pushed before the first step.
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    pushes.iter().for_each(|span| *times.entry(&span.name).or_default() += 1);
    let first = pushes.iter().find(|span| times[&span.name[..]] > 1).or(pushes.first());
    let Some(first) = first else { return (Vec::new(), false) };
    let starts: Vec<f64> = pushes.iter().filter(|span| span.name == first.name).map(|span| span.start).collect();
    let found: Vec<(f64, f64)> = starts.windows(2).map(|pair| (pair[0], pair[1])).collect();
    if !found.is_empty() {
        return (found, false);
    }
    let end = spans.iter().map(|span| span.end).fold(first.start, f64::max);
    (vec![(first.start, end)], false)
}

/// For each name and ordinal: the time of the last rank's call, and this rank.
type LastCalls = BTreeMap<(String, usize), (f64, usize)>;

fn last_calls(ranks: &[RankSpans]) -> LastCalls {
    let mut last = LastCalls::new();
    for rank in ranks {
        for (call, start) in calls(rank) {
            let entry = last.entry(call).or_insert((start, rank.number));
            if start > entry.0 {
                *entry = (start, rank.number);
            }
        }
    }
    last
}

/// A rank's pushes and barriers, each with its ordinal among the calls of the same name.
fn calls(rank: &RankSpans) -> Vec<((String, usize), f64)> {
    let mut ordinals: BTreeMap<&str, usize> = BTreeMap::new();
    let mut calls: Vec<&TimedSpan> =
        rank.spans.iter().filter(|span| span.phase == Phase::Push || is_barrier(span)).collect();
    calls.sort_by(|a, b| a.start.total_cmp(&b.start));
    calls
        .into_iter()
        .map(|span| {
            let ordinal = ordinals.entry(&span.name).or_default();
            *ordinal += 1;
            ((span.name.clone(), *ordinal), span.start)
        })
        .collect()
}

fn is_barrier(span: &TimedSpan) -> bool {
    span.phase == Phase::Wait && span.name == "barrier"
}

fn of_rank(rank: &RankSpans, last_calls: &LastCalls, awaited: &mut BTreeMap<usize, f64>) -> RankAccount {
    let of = |wanted: &[Phase]| {
        let chosen = rank.spans.iter().filter(|span| wanted.contains(&span.phase));
        Intervals::of(chosen.map(|span| (span.start, span.end)))
    };
    let at_caller = |wanted: Phase| {
        let chosen = rank.spans.iter().filter(|span| span.phase == wanted && blocks(span, rank));
        Intervals::of(chosen.map(|span| (span.start, span.end)))
    };
    let steps = Intervals::of(rank.steps.iter().copied());
    let blocked = at_caller(Phase::Wait).and(&steps);
    let late = waits_for_others(rank, last_calls);
    for (culprit, waits) in &late {
        *awaited.entry(*culprit).or_default() += waits.and(&blocked).total();
    }
    let straggler = Intervals::of(late.values().flat_map(Intervals::spans)).and(&blocked);
    let rest = blocked.minus(&straggler);
    let update = rest.and(&of(&[Phase::Update]));
    let rest = rest.minus(&update);
    let packing = rest.and(&of(&[Phase::Pack, Phase::Unpack]));
    let communication = rest.minus(&packing);
    let push = at_caller(Phase::Push).and(&steps).minus(&blocked);
    let count = rank.steps.len().max(1) as f64;
    let share = Share {
        step_s: steps.total() / count,
        compute_s: (steps.total() - blocked.total() - push.total()) / count,
        push_s: push.total() / count,
        straggler_s: straggler.total() / count,
        communication_s: communication.total() / count,
        packing_s: packing.total() / count,
        update_s: update.total() / count,
    };
    RankAccount { rank: rank.number, host: rank.host.clone(), steps: rank.steps.len(), share, awaited_s: 0.0 }
}

/// Returns true if a span belongs to the thread that calls the store, or is a wait of the program in its
/// framework.
fn blocks(span: &TimedSpan, rank: &RankSpans) -> bool {
    span.tid == rank.caller || is_for_results(span)
}

fn is_for_results(span: &TimedSpan) -> bool {
    span.phase == Phase::Wait && span.name == RESULTS
}

/// The parts of this rank's waits in which another rank had not yet called the awaited operation, grouped by
/// that other rank.
fn waits_for_others(rank: &RankSpans, last_calls: &LastCalls) -> BTreeMap<usize, Intervals> {
    let mut of_name: BTreeMap<&str, Vec<(f64, usize)>> = BTreeMap::new();
    let (mut late, mut pending) = (BTreeMap::<usize, Vec<_>>::new(), BTreeMap::<usize, Vec<_>>::new());
    let calls = calls(rank);
    for (call, start) in &calls {
        of_name.entry(&call.0).or_default().push((*start, call.1));
        if let Some((last, culprit)) = last_calls.get(call).filter(|(_, culprit)| *culprit != rank.number) {
            pending.entry(*culprit).or_default().push((*start, *last));
        }
    }
    for wait in rank.spans.iter().filter(|span| span.phase == Phase::Wait && span.tid == rank.caller) {
        let made = of_name.get(wait.name.as_str()).into_iter().flatten();
        let Some((_, ordinal)) = made.rev().find(|(start, _)| *start <= wait.start) else { continue };
        match last_calls.get(&(wait.name.clone(), *ordinal)) {
            Some((last, culprit)) if *culprit != rank.number && *last > wait.start => {
                late.entry(*culprit).or_default().push((wait.start, wait.end.min(*last)));
            }
            _ => {}
        }
    }
    let results = rank.spans.iter().filter(|span| is_for_results(span)).map(|span| (span.start, span.end));
    let results = Intervals::of(results);
    for (culprit, spans) in pending {
        late.entry(culprit).or_default().extend(Intervals::of(spans).and(&results).spans());
    }
    late.into_iter().map(|(culprit, spans)| (culprit, Intervals::of(spans))).collect()
}

fn keys(ranks: &[RankSpans]) -> Vec<KeyAccount> {
    let mut keys: BTreeMap<&str, KeyAccount> = BTreeMap::new();
    let steps: usize = ranks.iter().map(|rank| rank.steps.len()).sum();
    for rank in ranks {
        let within = |span: &&TimedSpan| rank.steps.iter().any(|(start, end)| span.end > *start && span.start < *end);
        for span in rank.spans.iter().filter(within) {
            let wanted = matches!(span.phase, Phase::Push | Phase::Collective | Phase::Request)
                || (span.phase == Phase::Wait && span.tid == rank.caller && !is_for_results(span));
            if !wanted {
                continue;
            }
            let account = keys.entry(&span.name).or_insert_with(|| KeyAccount {
                key: span.name.clone(),
                blocked_s: 0.0,
                communication_s: 0.0,
                bytes: 0,
            });
            let cost = (span.end - span.start) / steps.max(1) as f64;
            match span.phase {
                Phase::Wait => account.blocked_s += cost,
                Phase::Push => account.bytes = account.bytes.max(span.bytes),
                _ => account.communication_s += cost,
            }
        }
    }
    let mut list: Vec<KeyAccount> = keys.into_values().collect();
    let cost = |key: &KeyAccount| (key.blocked_s, key.communication_s);
    list.sort_by(|a, b| cost(b).partial_cmp(&cost(a)).unwrap_or(std::cmp::Ordering::Equal));
    list
}

impl Share {
    fn mean(shares: &[Share]) -> Share {
        let of = |field: fn(&Share) -> f64| shares.iter().map(field).sum::<f64>() / shares.len().max(1) as f64;
        Share {
            step_s: of(|share| share.step_s),
            compute_s: of(|share| share.compute_s),
            push_s: of(|share| share.push_s),
            straggler_s: of(|share| share.straggler_s),
            communication_s: of(|share| share.communication_s),
            packing_s: of(|share| share.packing_s),
            update_s: of(|share| share.update_s),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
