//! The plans of sums by messages between all ranks: what each is to be, found once and kept for the next sum like it.
//!
//! To find a plan takes a microsecond or more, most of it to predict what each algorithm would take, and a sum of few bytes no more than twenty.

use std::collections::HashMap;
use std::sync::Arc;

use crate::collective::{self, Model, Plan, Segments};
use crate::communicator::choice::Choice;
use crate::communicator::placement::Placement;

/// A plan, and the most bytes that one message carries.
pub(super) type Planned = (Arc<Plan>, usize);

/// What decides how a sum is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sum {
    pub(super) choice: Choice,
    pub(super) element_bytes: usize,
    pub(super) len_bytes: usize,
    /// What its step sums in all; 0 where that is not known.
    pub(super) step_bytes: usize,
}

impl Sum {
    /// The plan of `rank` of `size`.
    pub(super) fn plan(
        self,
        (rank, size): (usize, usize),
        placement: &Placement,
        model: &Model,
        cuts: Segments,
    ) -> Planned {
        let len = self.len_bytes / self.element_bytes;
        let (plan, segment_bytes) = match self.choice {
            Choice::Auto | Choice::Nccl | Choice::Native => {
                let is_apart = !placement.has_neighbours();
                let in_racks =
                    is_apart.then(|| placement.plan_in_racks(rank, self.len_bytes, self.element_bytes)).flatten();
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
        (Arc::new(plan), segment_bytes)
    }
}

/// Plans by what they are for.
#[derive(Default)]
pub(super) struct Plans(HashMap<Sum, Planned>);

impl Plans {
    /// The plan of a sum like this; `make` makes it if it is the first.
    pub(super) fn find(&mut self, sum: Sum, make: impl FnOnce() -> Planned) -> Planned {
        /// More kinds of sums than any model's step has; who makes more has no use for old ones.
        const MOST: usize = 1024;
        if self.0.len() >= MOST && !self.0.contains_key(&sum) {
            self.0.clear();
        }
        let (plan, segment_bytes) = self.0.entry(sum).or_insert_with(make);
        (Arc::clone(plan), *segment_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Algorithm;

    #[test]
    fn a_plan_is_made_once_for_all_sums_alike_and_the_plans_kept_are_bounded() {
        let mut plans = Plans::default();
        let sum = |len_bytes| Sum { choice: Choice::Auto, element_bytes: 4, len_bytes, step_bytes: 0 };
        let made = |len_bytes| (Arc::new(collective::allreduce(Algorithm::Ring, 0, 2, len_bytes / 4)), 1 << 16);
        let first = plans.find(sum(8), || made(8));
        assert!(Arc::ptr_eq(&first.0, &plans.find(sum(8), || unreachable!("it is there")).0));
        let others = [
            Sum { choice: Choice::Ordered, ..sum(8) },
            Sum { element_bytes: 8, ..sum(8) },
            Sum { step_bytes: 1 << 20, ..sum(8) },
        ];
        others.into_iter().for_each(|other| assert_eq!(plans.find(other, || made(16)).0.parts.len(), 4));
        (0..5000).for_each(|len| assert_eq!(plans.find(sum(4 * len), || made(4 * len)).0.parts.len(), len));
        assert!(plans.0.len() <= 1024);
    }
}
