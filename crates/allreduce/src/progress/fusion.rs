//! Cuts a frozen cycle into units. The operations of a unit are summed together. The units and their order
//! depend only on the sequence of calls and on where their callers wait.
//!
//! A unit is one operation, or a bucket: several short sums of one element type and one reduction that are
//! sent as one sum. Either all sums of a bucket are divided or none is. Long sums are not copied into buckets
//! and do not end a bucket: a bucket also collects short sums that are called after a long one.
//!
//! No unit has operations from both before and after a wait. If some rank waits for `a` before it calls `b`,
//! the phase of `a` is lower than that of `b` (`phases`). So an operation for which a rank waits never needs
//! a later call of this rank.

use std::collections::BTreeMap;

use ringpull_base::{DType, Reduction};

use crate::progress::messages::{Step, Topic, Transfer};

/// The default limit of a bucket's length. On a slow network it is lower.
pub const BUCKET_BYTES: usize = 1 << 20;
/// A sum goes into a bucket only if it is no longer than the bucket's limit divided by this number. A longer
/// sum would gain nothing from the copy.
const SHORT_PART: usize = 2;
/// A bucket ends when the long sums called since its beginning exceed this multiple of its limit, so that its
/// members do not wait too long.
const SPAN: usize = 16;

/// A bucket to which operations may still be added.
#[derive(Default)]
struct OpenBucket {
    members: Vec<u32>,
    bytes: usize,
    beside_bytes: usize,
}

/// The units of a cycle in the order in which every rank begins them, as indices of `steps`; `phases` has one
/// number per step.
pub fn units(steps: &[Step], phases: &[u64], bucket_bytes: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..steps.len() as u32).collect();
    order.sort_by_key(|index| phases[*index as usize]);
    let mut place = vec![0; steps.len()];
    order.iter().enumerate().for_each(|(at, index)| place[*index as usize] = at);
    let mut units: Vec<Vec<u32>> = Vec::new();
    let mut open: BTreeMap<(DType, Reduction, bool), OpenBucket> = BTreeMap::new();
    let mut phase = None;
    for index in order {
        let step = &steps[index as usize];
        let now = phases[index as usize];
        if phase.replace(now).is_some_and(|before| before != now) {
            units.extend(std::mem::take(&mut open).into_values().map(|bucket| bucket.members));
        }
        match step.transfer {
            Transfer::Alone | Transfer::Messages { .. } => {
                units.extend(std::mem::take(&mut open).into_values().map(|bucket| bucket.members));
                units.push(vec![index]);
            }
            Transfer::Sum { dtype, reduction, len_bytes, is_divided, .. }
                if step.topic != Topic::Barrier && len_bytes <= bucket_bytes / SHORT_PART =>
            {
                let bucket = open.entry((dtype, reduction, is_divided)).or_default();
                let again = bucket.members.iter().any(|member| steps[*member as usize].topic == step.topic);
                if again || bucket.bytes + len_bytes > bucket_bytes {
                    units.push(std::mem::take(bucket).members);
                }
                bucket.members.push(index);
                bucket.bytes += len_bytes;
            }
            Transfer::Sum { len_bytes, .. } => {
                units.push(vec![index]);
                for bucket in open.values_mut() {
                    bucket.beside_bytes += len_bytes;
                    if bucket.beside_bytes > SPAN * bucket_bytes {
                        units.push(std::mem::take(bucket).members);
                    }
                }
            }
        }
    }
    units.extend(open.into_values().map(|bucket| bucket.members));
    units.retain(|unit| !unit.is_empty());
    // A unit can begin when its last operation has been called.
    units.sort_by_key(|unit| unit.iter().map(|index| place[*index as usize]).max());
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::messages::{Operation, Terms};
    use proptest::prelude::*;

    fn step(key: i64, transfer: Transfer) -> Step {
        let topic = Topic::Key { store: 0, key: key.into() };
        Step { topic, ordinal: 0, operation: Operation::Push, terms: Terms::default(), transfer }
    }

    fn sums(lens: &[usize]) -> Vec<Step> {
        let sum = |len_bytes| Transfer::Sum {
            dtype: DType::F32,
            reduction: Reduction::Sum,
            len_bytes,
            priority: 0,
            is_divided: false,
        };
        lens.iter().enumerate().map(|(key, len)| step(key as i64, sum(*len))).collect()
    }

    #[test]
    fn short_sums_share_a_bucket_across_long_ones_until_it_is_full() {
        let steps = sums(&[10, 900, 20, 30, 900, 45, 5, 60]);
        assert_eq!(units(&steps, &[0; 8], 100), [vec![1], vec![0, 2, 3], vec![4], vec![5, 6], vec![7]]);
    }

    #[test]
    fn no_bucket_at_all_keeps_the_order_of_the_calls() {
        let steps = sums(&[10, 900, 20]);
        assert_eq!(units(&steps, &[0; 3], 0), [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn nothing_is_fused_or_moved_across_a_wait_or_across_what_travels_alone() {
        let mut steps = sums(&[10, 10, 10, 10]);
        assert_eq!(units(&steps, &[0, 1, 1, 0], 100), [vec![0, 3], vec![1, 2]]);
        steps[1].transfer = Transfer::Alone;
        assert_eq!(units(&steps, &[0; 4], 100), [vec![0], vec![1], vec![2, 3]]);
    }

    #[test]
    fn element_types_reductions_and_what_is_divided_do_not_mix() {
        let mut steps = sums(&[10, 10, 10, 10]);
        steps[2].transfer = Transfer::Sum {
            dtype: DType::F16,
            reduction: Reduction::Sum,
            len_bytes: 10,
            priority: 0,
            is_divided: false,
        };
        assert_eq!(units(&steps, &[0; 4], 100), [vec![2], vec![0, 1, 3]]);
        steps[2].transfer = Transfer::Sum {
            dtype: DType::F32,
            reduction: Reduction::Max,
            len_bytes: 10,
            priority: 0,
            is_divided: false,
        };
        assert_eq!(units(&steps, &[0; 4], 100), [vec![2], vec![0, 1, 3]]);
        let mut steps = sums(&[10, 10, 10, 10]);
        for step in &mut steps[1..3] {
            let Transfer::Sum { is_divided, .. } = &mut step.transfer else { unreachable!("all are sums") };
            *is_divided = true;
        }
        assert_eq!(units(&steps, &[0; 4], 100), [vec![1, 2], vec![0, 3]]);
    }

    proptest! {
        #[test]
        fn every_operation_is_in_one_unit_no_bucket_is_too_full_and_phases_ascend(
            lens in prop::collection::vec(0usize..300, 0..40),
            seed in prop::collection::vec(0u64..3, 40),
            bucket_bytes in 0usize..400,
        ) {
            let steps = sums(&lens);
            let units = units(&steps, &seed[..lens.len()], bucket_bytes);
            let mut all: Vec<u32> = units.iter().flatten().copied().collect();
            let order: Vec<u64> = all.iter().map(|index| seed[*index as usize]).collect();
            prop_assert!(order.is_sorted());
            all.sort_unstable();
            prop_assert_eq!(all, (0..lens.len() as u32).collect::<Vec<_>>());
            for unit in units.iter().filter(|unit| unit.len() > 1) {
                prop_assert!(unit.iter().map(|index| lens[*index as usize]).sum::<usize>() <= bucket_bytes);
            }
        }
    }
}
