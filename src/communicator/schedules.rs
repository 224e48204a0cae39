//! What sums by messages between all ranks are to do: found once and kept for the next sum like it.
//!
//! To find a plan takes a microsecond or more, most of it to predict what each algorithm would take, and a sum of few bytes no more than
//! twenty. To cut one of 100 MB takes some tenths of a millisecond on every rank, before anything can be sent.

use std::collections::HashMap;
use std::sync::Arc;

use crate::collective::{self, Model, Schedule, Segments};
use crate::communicator::choice::Choice;
use crate::communicator::placement::Placement;
use crate::dtype::DType;

/// What decides how a sum is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sum {
    pub(super) choice: Choice,
    pub(super) dtype: DType,
    pub(super) len_bytes: usize,
    /// What its step sums in all; 0 where that is not known.
    pub(super) step_bytes: usize,
    /// Messages are to be as long as this at least, rather than as the model says; 0 for no such wish.
    pub(super) least_bytes: usize,
}

impl Sum {
    /// What `rank` of `size` is to do.
    pub(super) fn schedule(
        self,
        (rank, size): (usize, usize),
        placement: &Placement,
        model: &Model,
        cuts: Segments,
    ) -> Schedule {
        let element_bytes = self.dtype.size_bytes();
        let len = self.len_bytes / element_bytes;
        let (plan, segment_bytes) = match self.choice {
            Choice::Auto | Choice::Nccl | Choice::Native => {
                let is_apart = !placement.has_neighbours();
                let in_racks = is_apart.then(|| placement.plan_in_racks(rank, self.len_bytes, element_bytes)).flatten();
                if let Some(plan) = in_racks {
                    (plan, cuts.most_bytes)
                } else {
                    let chosen = collective::choose(&model.within(self.step_bytes), self.len_bytes, size, cuts);
                    (collective::allreduce(chosen.algorithm, rank, size, len), chosen.segment_bytes)
                }
            }
            Choice::Plan(algorithm) => (collective::allreduce(algorithm, rank, size, len), cuts.most_bytes),
            Choice::Ordered => (collective::allreduce_in_order(rank, size, len), cuts.most_bytes),
        };
        let segment_bytes = match self.least_bytes {
            0 => segment_bytes,
            _ if cuts.is_fixed => cuts.most_bytes,
            least => cuts.most_bytes.max(least),
        };
        Schedule::of(&plan, self.dtype, segment_bytes)
    }
}

/// Schedules by what they are for.
#[derive(Default)]
pub(super) struct Schedules {
    kept: HashMap<Sum, Arc<Schedule>>,
    /// Of all that are kept.
    messages: usize,
}

impl Schedules {
    /// The schedule of a sum like this; `make` makes it if it is the first.
    pub(super) fn find(&mut self, sum: Sum, make: impl FnOnce() -> Schedule) -> Arc<Schedule> {
        /// More kinds of sums than any model's step has; who makes more has no use for old ones.
        const MOST: usize = 1024;
        /// Some megabytes of them: as many as sums of 2 GB have on eight ranks.
        const MOST_MESSAGES: usize = 128 << 10;
        if let Some(schedule) = self.kept.get(&sum) {
            return Arc::clone(schedule);
        }
        let schedule = Arc::new(make());
        if self.kept.len() >= MOST || self.messages + schedule.messages() > MOST_MESSAGES {
            *self = Schedules::default();
        }
        self.messages += schedule.messages();
        self.kept.insert(sum, Arc::clone(&schedule));
        schedule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Algorithm;

    const SUM: Sum = Sum { choice: Choice::Auto, dtype: DType::F32, len_bytes: 8, step_bytes: 0, least_bytes: 0 };

    fn made(len_bytes: usize, segment_bytes: usize) -> Schedule {
        Schedule::of(&collective::allreduce(Algorithm::Ring, 0, 2, len_bytes / 4), DType::F32, segment_bytes)
    }

    #[test]
    fn a_schedule_is_made_once_for_all_sums_alike() {
        let mut schedules = Schedules::default();
        let first = schedules.find(SUM, || made(8, 1 << 16));
        assert!(Arc::ptr_eq(&first, &schedules.find(SUM, || unreachable!("it is there"))));
        for other in [
            Sum { choice: Choice::Ordered, ..SUM },
            Sum { dtype: DType::I32, ..SUM },
            Sum { len_bytes: 16, ..SUM },
            Sum { step_bytes: 1 << 20, ..SUM },
            Sum { least_bytes: 1 << 20, ..SUM },
        ] {
            assert!(!Arc::ptr_eq(&first, &schedules.find(other, || made(16, 1 << 16))));
        }
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_in_messages() {
        let mut schedules = Schedules::default();
        (0..5000).for_each(|len| drop(schedules.find(Sum { len_bytes: 4 * len, ..SUM }, || made(4 * len, 1 << 16))));
        assert!(schedules.kept.len() <= 1024);
        for len_bytes in (1..20).map(|at| at << 20) {
            let long = schedules.find(Sum { len_bytes, ..SUM }, || made(len_bytes, 1 << 10));
            assert_eq!(long.messages(), 4 * len_bytes / 2 / 1024);
            assert!(schedules.messages <= 128 << 10, "{} messages", schedules.messages);
            assert!(schedules.kept.contains_key(&Sum { len_bytes, ..SUM }));
        }
    }

    #[test]
    fn messages_are_longer_where_that_is_wished_and_nobody_has_fixed_them() {
        let messages = |least_bytes, is_fixed| {
            let cuts = Segments { most_bytes: 1 << 16, is_fixed };
            let sum = Sum { choice: Choice::Plan(Algorithm::Ring), len_bytes: 1 << 20, least_bytes, ..SUM };
            sum.schedule((0, 2), &Placement::apart(2), &Model::default(), cuts).messages()
        };
        assert_eq!([messages(0, false), messages(1 << 18, false), messages(1 << 18, true)], [32, 8, 32]);
    }
}
