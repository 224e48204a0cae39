//! Divides the samples among the workers. N workers together train on the same batches in the same order as
//! one worker alone.

use std::ops::Range;

/// The share of `rank` of `len` items. Shares are contiguous and in rank order, and their lengths differ by
/// at most one.
pub fn share(len: usize, rank: usize, workers: usize) -> Range<usize> {
    len * rank / workers..len * (rank + 1) / workers
}

/// The batches of a training run. Every worker computes them by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// The number of samples in an epoch.
    pub samples: usize,
    /// The number of samples in a batch, over all workers.
    pub batch: usize,
    /// The seed of the order of samples.
    pub seed: u64,
}

impl Batches {
    /// The number of whole batches in an epoch. Remaining samples are used in other epochs, which have
    /// another order.
    pub fn per_epoch(&self) -> usize {
        self.samples / self.batch
    }

    /// The order of samples in `epoch`.
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        let mut random = Random::new(self.seed.wrapping_add((epoch as u64) << 32));
        for last in (1..self.samples).rev() {
            order.swap(last, random.below(last + 1));
        }
        order
    }

    /// The samples on which `rank` trains in batch `number` of an epoch with this `order`.
    pub fn of<'a>(&self, order: &'a [usize], number: usize, rank: usize, workers: usize) -> &'a [usize] {
        let batch = &order[number * self.batch..(number + 1) * self.batch];
        &batch[share(self.batch, rank, workers)]
    }
}

/// `SplitMix64`: a small generator whose sequence is the same on every machine and for ever.
/// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.)
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`. Its bias of at most `bound / 2^64` does not matter here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number of at least -1 and less than 1, evenly distributed.
    pub fn signed_unit(&mut self) -> f32 {
        // 24 bits are exact in f32.
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_tile_every_length() {
        for workers in 1..9 {
            for len in 0..40 {
                let shares: Vec<usize> = (0..workers).flat_map(|rank| share(len, rank, workers)).collect();
                assert_eq!(shares, (0..len).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn workers_together_see_the_batches_of_one_alone() {
        let batches = Batches { samples: 103, batch: 10, seed: 7 };
        let order = batches.order(2);
        for number in 0..batches.per_epoch() {
            let together: Vec<usize> = (0..3).flat_map(|rank| batches.of(&order, number, rank, 3)).copied().collect();
            assert_eq!(together, batches.of(&order, number, 0, 1));
        }
    }

    #[test]
    fn an_order_holds_every_sample_once_and_differs_by_epoch_and_seed() {
        let batches = Batches { samples: 500, batch: 10, seed: 7 };
        let (first, second) = (batches.order(0), batches.order(1));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..500).collect::<Vec<_>>());
        assert!(first != second && first != Batches { seed: 8, ..batches }.order(0));
        assert_eq!(first, batches.order(0));
    }

    #[test]
    fn random_bits_are_those_of_the_published_generator() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert!((0..1000).all(|_| (-1.0..1.0).contains(&random.signed_unit())));
    }
}
