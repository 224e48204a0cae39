//! The schedules of sums by messages. A schedule is found once and kept for the next equal sum.
//!
//! Finding a plan takes a microsecond or more, most of it for predicting the time of each algorithm. A whole
//! sum of few bytes takes no more than twenty microseconds. Cutting the plan of 100 MB takes some tenths of a
//! millisecond (`cargo bench --bench plans`) before anything can be sent, and ranks that share cores do so
//! one after another.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use ringpull_base::{AlgorithmChoice, DType, Reduction};
use ringpull_kernels::compress::Codec;
use ringpull_plan::{Links, Model, Plan, Schedule, Segments};

use crate::communicator::placement::Placement;

/// The properties of a sum that decide how it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) choice: AlgorithmChoice,
    pub(super) dtype: DType,
    pub(super) reduction: Reduction,
    pub(super) len_bytes: usize,
    /// The bytes that its step sums in all; 0 if that is not known.
    pub(super) step_bytes: usize,
    /// True if the sum is between one rank of each host (those with this rank's number on their host), and
    /// not between all ranks.
    pub(super) between_hosts: bool,
    /// True if the sum is of codes, and not of elements.
    pub(super) is_coded: bool,
    /// True if helpers may take part in it.
    pub(super) may_be_helped: bool,
}

/// A plan, and the most bytes that one message carries.
pub(super) type PlannedSum = (Plan, usize);

impl Sum {
    /// A sum between all ranks, without further properties.
    pub(super) fn of(choice: AlgorithmChoice, dtype: DType, len_bytes: usize) -> Self {
        Sum {
            choice,
            dtype,
            reduction: Reduction::Sum,
            len_bytes,
            step_bytes: 0,
            between_hosts: false,
            is_coded: false,
            may_be_helped: false,
        }
    }

    /// Returns the plan of `rank` for a sum of all `size` ranks. A `rank` that is not below `size` is a
    /// helper, and gets a helper's plan.
    pub(super) fn plan(
        self,
        (rank, size): (usize, usize),
        placement: &Placement,
        (model, links): (&Model, Option<&Links>),
        cuts: Segments,
    ) -> PlannedSum {
        let element_bytes = self.dtype.size_bytes();
        let len = self.len_bytes / element_bytes;
        if self.is_coded {
            // A message has no limit: it carries a whole segment, whose codes are shorter than its elements.
            return (plan_of_codes(rank, size, len), usize::MAX);
        }
        match self.choice {
            AlgorithmChoice::Auto | AlgorithmChoice::Nccl | AlgorithmChoice::Native => {
                let is_apart = !placement.has_neighbours();
                let in_racks = is_apart.then(|| placement.plan_in_racks(rank, self.len_bytes, element_bytes)).flatten();
                if let Some(plan) = in_racks {
                    (plan, cuts.most_bytes)
                } else {
                    // Ranks that share a host share its link, so the link's rate says nothing about one of
                    // them.
                    let alone = if self.may_be_helped { None } else { links.map(Links::without_helpers) };
                    let links = alone.as_ref().map_or(links, Option::as_ref);
                    let cluster = (&model.within(self.step_bytes), links.filter(|_| is_apart));
                    ringpull_plan::auto(cluster, (rank, size), (len, element_bytes), cuts)
                }
            }
            AlgorithmChoice::Plan(algorithm) => (ringpull_plan::allreduce(algorithm, rank, size, len), cuts.most_bytes),
            AlgorithmChoice::Ordered => (ringpull_plan::allreduce_in_order(rank, size, len), cuts.most_bytes),
        }
    }
}

/// The shortest and the longest segment of codes, in elements. The longest is 32 KiB of 2-bit codes.
const SEGMENT_LEN: (usize, usize) = (16 << 10, 128 << 10);
/// The approximate number of segments of a part: with it, filling and draining the pipeline costs little.
const SEGMENTS_PER_PART: usize = 16;

/// The plan of `rank` for the codes of a gradient of `len` elements.
pub fn plan_of_codes(rank: usize, size: usize, len: usize) -> Plan {
    let longest = len.div_ceil(size);
    let segment = (longest / SEGMENTS_PER_PART).clamp(SEGMENT_LEN.0, SEGMENT_LEN.1).next_multiple_of(Codec::BLOCK);
    ringpull_plan::allreduce_in_turns(rank, size, len, (Codec::BLOCK, segment))
}

/// The schedules, by the sums that they are for.
#[derive(Default)]
pub(super) struct Schedules {
    kept: HashMap<Sum, KeptSchedule>,
    /// The number of messages of all schedules that are kept.
    messages: usize,
}

struct KeptSchedule {
    planned: PlannedSum,
    /// `None` if it is too long to be kept.
    schedule: Option<Arc<Schedule>>,
}

impl Schedules {
    /// Returns the schedule of `sum`. Calls `plan` for the first sum of its kind.
    pub(super) fn find(&mut self, sum: Sum, plan: impl FnOnce() -> PlannedSum) -> Arc<Schedule> {
        /// The most kinds of sums: more than any model's step has. A program that makes more has no use for
        /// old ones.
        const MOST: usize = 1024;
        /// The most messages of all schedules that are kept, some megabytes of memory. Sums of 2 GB on eight
        /// ranks have about this number of messages. A schedule beyond this limit is cut again for each sum.
        const MOST_MESSAGES: usize = 128 << 10;
        if self.kept.len() >= MOST && !self.kept.contains_key(&sum) {
            *self = Schedules::default();
        }
        let kept = self.kept.entry(sum).or_insert_with(|| KeptSchedule { planned: plan(), schedule: None });
        if let Some(schedule) = &kept.schedule {
            return Arc::clone(schedule);
        }
        let (plan, segment_bytes) = &kept.planned;
        let schedule = Arc::new(Schedule::of(plan, sum.dtype, *segment_bytes).by(sum.reduction));
        if self.messages + schedule.messages() <= MOST_MESSAGES {
            self.messages += schedule.messages();
            kept.schedule = Some(Arc::clone(&schedule));
        }
        schedule
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use ringpull_plan::Algorithm;

    fn sum(len_bytes: usize) -> Sum {
        Sum::of(AlgorithmChoice::Auto, DType::F32, len_bytes)
    }

    fn planned(len_bytes: usize, segment_bytes: usize) -> PlannedSum {
        (ringpull_plan::allreduce(Algorithm::Ring, 0, 2, len_bytes / 4), segment_bytes)
    }

    #[test]
    fn a_schedule_is_made_once_for_all_sums_alike() {
        let mut schedules = Schedules::default();
        let first = schedules.find(sum(8), || planned(8, 1 << 16));
        assert!(Arc::ptr_eq(&first, &schedules.find(sum(8), || unreachable!("it is there"))));
        for other in [
            Sum { choice: AlgorithmChoice::Ordered, ..sum(8) },
            Sum { dtype: DType::I32, ..sum(8) },
            Sum { reduction: Reduction::Max, ..sum(8) },
            Sum { step_bytes: 1 << 20, ..sum(8) },
            Sum { between_hosts: true, ..sum(8) },
            Sum { is_coded: true, ..sum(8) },
            sum(16),
        ] {
            assert!(!Arc::ptr_eq(&first, &schedules.find(other, || planned(16, 1 << 16))));
        }
    }

    #[test]
    fn kinds_of_sums_that_are_kept_are_bounded() {
        let mut schedules = Schedules::default();
        (0..5000).for_each(|len| drop(schedules.find(sum(4 * len), || planned(4 * len, 1 << 16))));
        assert!(schedules.kept.len() <= 1024);
    }

    #[test]
    fn messages_that_are_kept_are_bounded_and_what_is_too_long_drives_out_nothing() {
        let mut schedules = Schedules::default();
        let first = schedules.find(sum(8), || planned(8, 1 << 16));
        for _ in 0..2 {
            for len_bytes in [1 << 20, 256 << 20, 2 << 20] {
                let schedule = schedules.find(sum(len_bytes), || planned(len_bytes, 1 << 10));
                assert_eq!(schedule.messages(), 4 * len_bytes / 2 / 1024);
            }
        }
        let is_kept = |len_bytes: usize| schedules.kept[&sum(len_bytes)].schedule.is_some();
        assert_eq!([1 << 20, 256 << 20, 2 << 20].map(is_kept), [true, false, true]);
        assert!(schedules.messages <= 128 << 10, "{} messages", schedules.messages);
        assert!(Arc::ptr_eq(&first, &schedules.find(sum(8), || unreachable!("it is there"))));
    }

    #[test]
    fn segments_of_codes_begin_at_whole_words_and_are_as_long_as_a_part_is_short() {
        for (len, size, expected) in [(1_000, 8, 16 << 10), (25_000_000, 8, 128 << 10), (16_000_000, 16, 62_528)] {
            let parts = plan_of_codes(0, size, len).parts;
            let ranges: Vec<Range<usize>> = (0..parts.count()).map(|part| parts.range(part..part + 1)).collect();
            let longest = ranges.iter().map(Range::len).max().unwrap_or_default();
            assert!(longest <= expected && (longest == expected || len < expected), "{len} on {size}: {longest}");
            assert!(ranges.iter().all(|range| range.is_empty() || range.start.is_multiple_of(Codec::BLOCK)));
        }
    }
}
