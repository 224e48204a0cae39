//! Stops all ranks at the same step, by a call that each of them makes once a step.
//!
//! Nothing is sent while no rank wants to stop. A rank that wants to stop reports its call to rank 0 and
//! waits for the answer. Rank 0 then makes every rank report the first call at which it can stop, which is
//! the call after its last one. After its report a rank returns from no further call before it has the
//! answer. The answer is the largest report. Control threads send the reports, so no rank waits for the
//! program of another, and the order of operations is not affected.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::progress::messages::Order;

/// This rank's calls, and the call at which all ranks stop.
#[derive(Default)]
pub(super) struct StopCalls(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of calls made.
    made: u64,
    /// True if the call at which this rank can stop was reported.
    is_reported: bool,
    /// The call at which all ranks stop, when rank 0 has announced it.
    stop: Option<u64>,
}

impl StopCalls {
    /// Begins a call. Returns its number, and the number to report to rank 0, if there is one.
    pub(super) fn begin(&self, wants: bool) -> (u64, Option<u64>) {
        let state = &mut *self.0.lock();
        state.made += 1;
        let reports = wants && !state.is_reported;
        state.is_reported |= wants;
        (state.made, reports.then_some(state.made))
    }

    /// Returns the first call at which this rank can stop, unless it was reported before.
    pub(super) fn report(&self) -> Option<u64> {
        let state = &mut *self.0.lock();
        let was_reported = std::mem::replace(&mut state.is_reported, true);
        (!was_reported).then_some(state.made + 1)
    }

    /// Records the call at which all ranks stop.
    pub(super) fn stop_at(&self, call: u64) {
        self.0.lock().stop = Some(call);
    }

    /// Returns true if all ranks stop at this `call` or have stopped before it. Returns `None` if rank 0 has
    /// not answered yet.
    pub(super) fn answer(&self, call: u64) -> Option<bool> {
        let state = self.0.lock();
        state.stop.map(|stop| call >= stop).or_else(|| (!state.is_reported).then_some(false))
    }
}

/// The reports of all ranks, on rank 0.
#[derive(Default)]
pub(super) struct StopReports(BTreeMap<usize, u64>);

impl StopReports {
    /// Takes a rank's report. Each of the `size` ranks sends one. Returns the orders that follow.
    pub(super) fn take(&mut self, rank: usize, call: u64, size: usize) -> Vec<Order> {
        let first = self.0.is_empty().then_some(Order::ReportStop);
        self.0.insert(rank, call);
        let last = self.0.values().max().filter(|_| self.0.len() == size);
        first.into_iter().chain(last.map(|call| Order::StopAt(*call))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A rank: its calls, the call that it is in, the first call at which it stopped, and the orders on their
    /// way to it.
    #[derive(Default)]
    struct Rank {
        calls: StopCalls,
        inside: Option<u64>,
        stopped: Option<u64>,
        orders: VecDeque<Order>,
    }

    proptest! {
        /// Each pick is a rank and an event: the rank calls, or gets an order, or rank 0 gets its report.
        #[test]
        fn all_ranks_stop_at_the_same_call_in_every_order_of_events(
            picks in prop::collection::vec((0_usize..3, 0_u8..3), 0..200),
            wishes in prop::collection::vec((0_usize..3, 1_u64..9), 1..4),
        ) {
            let mut ranks: Vec<Rank> = (0..3).map(|_| Rank::default()).collect();
            let (mut reports, mut on_the_way) = (StopReports::default(), VecDeque::new());
            // At the end everything arrives, and every rank goes on.
            let rest = (0..3000).map(|at| (at % 3, (at / 3 % 3) as u8));
            for (at, what) in picks.into_iter().chain(rest) {
                let rank = &mut ranks[at];
                match what {
                    0 if rank.inside.is_none() && rank.stopped.is_none() => {
                        let next = rank.calls.0.lock().made + 1;
                        let (call, report) = rank.calls.begin(wishes.contains(&(at, next)));
                        on_the_way.extend(report.map(|call| (at, call)));
                        rank.inside = Some(call);
                    }
                    1 => match rank.orders.pop_front() {
                        Some(Order::ReportStop) => on_the_way.extend(rank.calls.report().map(|call| (at, call))),
                        Some(Order::StopAt(call)) => rank.calls.stop_at(call),
                        _ => {}
                    },
                    2 => if let Some((from, call)) = on_the_way.pop_front() {
                        for order in reports.take(from, call, 3) {
                            ranks.iter_mut().for_each(|rank| rank.orders.push_back(order.clone()));
                        }
                    },
                    _ => {}
                }
                let rank = &mut ranks[at];
                if let Some(call) = rank.inside && let Some(stops) = rank.calls.answer(call) {
                    rank.inside = None;
                    rank.stopped = stops.then_some(call);
                }
            }
            let stopped: Vec<_> = ranks.iter().map(|rank| rank.stopped).collect();
            prop_assert!(stopped[0].is_some() && stopped.iter().all(|call| *call == stopped[0]), "{:?}", stopped);
        }
    }

    #[test]
    fn a_rank_reports_once_and_waits_only_from_then_on() {
        let calls = StopCalls::default();
        assert_eq!((calls.begin(false), calls.answer(1)), ((1, None), Some(false)));
        assert_eq!((calls.report(), calls.report(), calls.answer(2)), (Some(2), None, None));
        assert_eq!(calls.begin(true), (2, None));
        calls.stop_at(3);
        assert_eq!((calls.answer(2), calls.answer(3), calls.answer(4)), (Some(false), Some(true), Some(true)));
    }
}
