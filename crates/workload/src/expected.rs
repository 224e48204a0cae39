//! The content of a store after each iteration of the pattern's inputs, to the last bit, with and without
//! compression.
//!
//! The inputs are periodic, and a codec that treats each element by itself codes every period alike. So the
//! reference codes only one period of every rank, with the scalar loops. The inputs for `topk` have exactly
//! as many elements beside zeros as `topk` sends.

use std::ops::RangeInclusive;

use ringpull_base::{DType, Error, Kind, Result, Tensor};
use ringpull_kernels::compress::{Codec, Compression, Level};
use ringpull_kernels::optim::{Optimizer, State};

use crate::pattern::Pattern;

/// The reference for one list of keys, which all hold the same pattern.
pub struct ExpectedSums {
    pattern: Pattern,
    codec: Option<Codec>,
    kind: Kind,
    ranks: usize,
    /// Each rank's residual of one period.
    residuals: Vec<Vec<f32>>,
    /// One period of the store's value.
    values: Vec<f64>,
    /// The optimizer of the store, and one period of its state.
    optimizer: Option<(Optimizer, State)>,
}

impl ExpectedSums {
    /// Makes the reference for `ranks` ranks of a store of `kind`. It is an error if the results cannot be
    /// checked exactly.
    pub fn new(ranks: usize, dtype: DType, kind: Kind, compression: Option<Compression>) -> Result<Self> {
        if let Some(compression) = compression.filter(|_| dtype != DType::F32) {
            return Err(Error::argument(
                format!("gradient compression ({compression}) is only supported for float32, not {dtype}"),
                "measure f32, or without compression",
            ));
        }
        let (codec, stride) = match compression {
            None => (None, 1),
            Some(Compression::Codec(codec)) => (Some(codec), 1),
            Some(Compression::TopK(topk)) => (None, (1.0 / topk.ratio).ceil() as usize),
        };
        if kind == Kind::DistAsync && codec.is_some_and(|codec| !codec.adds_exactly()) {
            return Err(Error::argument(
                "sums that are rounded and arrive in any order cannot be checked".to_owned(),
                "measure dist_async with a threshold such as 0.5",
            ));
        }
        let pattern = Pattern::sparse(ranks, dtype, stride)?;
        let values = vec![0.0; pattern.period()];
        let residuals = vec![vec![0.0; values.len()]; if codec.is_some() { ranks } else { 0 }];
        Ok(ExpectedSums { pattern, codec, kind, ranks, residuals, values, optimizer: None })
    }

    /// Makes the reference for a store in which `optimizer` updates the values by the sums. The values are
    /// f32, and 0 at first.
    #[must_use]
    pub fn updated_by(self, optimizer: &Optimizer) -> Self {
        ExpectedSums { optimizer: Some((optimizer.clone(), State::default())), ..self }
    }

    /// Writes this rank's input of `iteration`.
    pub fn fill(&self, tensor: &Tensor, rank: usize, iteration: usize) {
        self.pattern.fill(tensor, rank, iteration);
    }

    /// Advances the reference to the store's content after `iteration`. It must be called for each iteration
    /// in turn, from 0.
    pub fn advance(&mut self, iteration: usize) -> Result<()> {
        let accumulates = self.kind == Kind::DistAsync;
        let sums: Vec<f64> = match self.codec {
            None => (0..self.values.len()).map(|phase| self.pattern.sum(phase, iteration)).collect(),
            Some(codec) => self.coded_sum(codec, iteration).into_iter().map(f64::from).collect(),
        };
        if let Some((optimizer, state)) = &mut self.optimizer {
            let single = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
            let (mut weights, sums) = (single(&self.values), single(&sums));
            optimizer.apply(state, DType::F32, bytemuck::cast_slice_mut(&mut weights), bytemuck::cast_slice(&sums))?;
            self.values = weights.into_iter().map(f64::from).collect();
            return Ok(());
        }
        for (value, sum) in self.values.iter_mut().zip(sums) {
            *value = if accumulates { *value + sum } else { sum };
        }
        Ok(())
    }

    /// Checks that `tensor` has the right content after the iterations `begun`.
    pub fn check(&self, tensor: &Tensor, key: &str, rank: usize, begun: RangeInclusive<usize>) -> Result<()> {
        self.pattern.check_values(tensor, key, rank, begun.count(), &self.values)
    }

    fn coded_sum(&mut self, codec: Codec, iteration: usize) -> Vec<f32> {
        let len = self.values.len();
        let codes: Vec<Vec<u8>> = (0..self.ranks)
            .map(|rank| {
                let gradient: Vec<f32> =
                    (0..len).map(|phase| self.pattern.value(phase, rank, iteration) as f32).collect();
                let mut code = vec![0; codec.code_bytes(len)];
                codec.encode_at(Level::Scalar, &gradient, &mut self.residuals[rank], &mut code);
                code
            })
            .collect();
        let mut sum = vec![0f32; len];
        // Servers send the sum of exact codes uncompressed; an allreduce rounds it to the codec's type again.
        if self.kind.has_servers() && !self.kind.has_ranks() && codec.adds_exactly() {
            codes.iter().for_each(|code| codec.decode_add_at(Level::Scalar, code, &mut sum));
        } else {
            let codes: Vec<&[u8]> = codes.iter().map(Vec::as_slice).collect();
            let mut sums = vec![0; codec.sum_bytes(len, codes.len())];
            codec.sum_at(Level::Scalar, &codes, len, &mut sums);
            codec.decode_sum_at(Level::Scalar, &sums, codes.len(), &mut sum);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bit_sums_of_the_pattern_are_multiples_of_the_threshold() {
        let mut expected =
            ExpectedSums::new(3, DType::F32, Kind::DistSyncMpi, Some("2bit:0.5".parse().unwrap())).unwrap();
        expected.advance(0).unwrap();
        // Elements 0, 1 and 2 of ranks 0, 1, 2 are e + r: only rank 0's first is below the threshold.
        assert_eq!(expected.values[..3], [1.0, 1.5, 1.5]);
    }

    #[test]
    fn what_cannot_be_checked_is_an_error() {
        let two_bit: Compression = "2bit:0.1".parse().unwrap();
        assert!(ExpectedSums::new(2, DType::F64, Kind::DistSync, Some(two_bit)).is_err());
        assert!(ExpectedSums::new(2, DType::F32, Kind::DistAsync, Some(two_bit)).is_err());
        assert!(ExpectedSums::new(2, DType::F32, Kind::DistSync, Some(two_bit)).is_ok());
    }

    #[test]
    fn topk_is_given_no_more_than_it_sends() {
        let topk: Compression = "topk:0.03".parse().unwrap();
        let Compression::TopK(entries) = topk else { panic!("{topk}") };
        let expected = ExpectedSums::new(2, DType::F32, Kind::DistSyncMpi, Some(topk)).unwrap();
        for (len, iteration) in [(1000, 0), (1000, 7), (35, 3), (1, 0)] {
            let tensor = Tensor::zeros(DType::F32, &[len]);
            expected.fill(&tensor, 1, iteration);
            let count = tensor.to_vec::<f32>().unwrap().iter().filter(|value| **value != 0.0).count();
            assert!(count <= entries.kept(len), "{count} of {len}");
        }
    }
}
