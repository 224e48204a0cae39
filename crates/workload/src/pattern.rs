//! Inputs whose sums are known: small integers that depend on rank, element and iteration, exact in every
//! dtype.
//!
//! Element `e` of rank `r` in iteration `i` is `(e + i + r) mod m`. The sum over the ranks therefore has
//! period `m` in `e`, whatever the number of ranks, and any mix-up of ranks' parts, elements or iterations
//! changes it. In a sparse pattern of stride `s` an element is 0 unless `s` divides `e + i`, and the period
//! is `s m`.

use ringpull_base::{DType, Element, Error, Result, Tensor, with_element};

/// The period of the values. It is a prime, so no power of two is a multiple of it.
const PERIOD: usize = 17;
/// The number of elements that are filled or compared at once: about this many, at least one period.
const RUN_LEN: usize = 512 * PERIOD;

/// The rule for one job: how large values may be so that every sum is exact.
#[derive(Debug, Clone)]
pub struct Pattern {
    modulus: usize,
    stride: usize,
    ranks: usize,
    dtype: DType,
}

impl Pattern {
    /// Makes the pattern for `ranks` ranks. It is an error if sums over `ranks` ranks are not exact in
    /// `dtype`.
    pub fn new(ranks: usize, dtype: DType) -> Result<Self> {
        Pattern::sparse(ranks, dtype, 1)
    }

    /// As [`new`](Self::new), with zeros except in every `stride`-th element.
    pub fn sparse(ranks: usize, dtype: DType, stride: usize) -> Result<Self> {
        let modulus = (largest_exact(dtype) as usize / ranks.max(1)).min(PERIOD - 1) + 1;
        if modulus < 2 {
            return Err(Error::argument(
                format!("sums over {ranks} ranks cannot be checked in {dtype}"),
                "measure with a wider dtype, such as f32",
            ));
        }
        Ok(Pattern { modulus, stride, ranks, dtype })
    }

    /// The number of elements after which values and sums repeat.
    pub fn period(&self) -> usize {
        self.modulus * self.stride
    }

    /// The element of `rank` at `phase` (its index modulo the period) in `iteration`.
    pub fn value(&self, phase: usize, rank: usize, iteration: usize) -> f64 {
        let is_zero = !(phase + iteration).is_multiple_of(self.stride);
        if is_zero { 0.0 } else { ((phase + iteration + rank) % self.modulus) as f64 }
    }

    /// Writes this rank's input of `iteration`.
    pub fn fill(&self, tensor: &Tensor, rank: usize, iteration: usize) {
        let run = self.run(|phase| self.value(phase, rank, iteration));
        let mut guard = tensor.write();
        for chunk in guard.bytes_mut().chunks_mut(run.len()) {
            chunk.copy_from_slice(&run[..chunk.len()]);
        }
    }

    /// The sum over all ranks of the element at `phase` (its index modulo the period) in `iteration`.
    pub fn sum(&self, phase: usize, iteration: usize) -> f64 {
        (0..self.ranks).map(|rank| self.value(phase, rank, iteration)).sum()
    }

    /// Checks that `tensor` holds the sum of the ranks' inputs, over every iteration of `iterations`.
    pub fn check(
        &self,
        tensor: &Tensor,
        key: &str,
        rank: usize,
        iterations: std::ops::RangeInclusive<usize>,
    ) -> Result<()> {
        let expected = |phase: usize| iterations.clone().map(|iteration| self.sum(phase, iteration)).sum::<f64>();
        let values: Vec<f64> = (0..self.period()).map(expected).collect();
        self.check_values(tensor, key, rank, iterations.count(), &values)
    }

    /// Checks that `tensor` holds repetitions of `values`, which is one period of the sums over `iterations`
    /// iterations.
    pub fn check_values(
        &self,
        tensor: &Tensor,
        key: &str,
        rank: usize,
        iterations: usize,
        values: &[f64],
    ) -> Result<()> {
        if values.iter().any(|sum| *sum > largest_exact(self.dtype)) {
            return Err(Error::argument(
                format!("sums over {iterations} iterations cannot be checked in {}", self.dtype),
                "measure fewer iterations, or with a wider dtype such as f32",
            ));
        }
        let run = self.run(|phase| values[phase]);
        let guard = tensor.read()?;
        for (index, chunk) in guard.bytes().chunks(run.len()).enumerate() {
            if *chunk != run[..chunk.len()] {
                let first = index * run.len() / self.dtype.size_bytes();
                return Err(self.mismatch(key, rank, first, chunk, &run));
            }
        }
        Ok(())
    }

    fn mismatch(&self, key: &str, rank: usize, first: usize, got: &[u8], expected: &[u8]) -> Error {
        let size = self.dtype.size_bytes();
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0) / size;
        let value = |bytes: &[u8]| {
            let element = &bytes[at * size..][..size];
            with_element!(self.dtype, T => Element::to_f64(bytemuck::pod_read_unaligned::<T>(element)))
        };
        let (index, got, expected) = (first + at, value(got), value(expected));
        Error::Protocol {
            rank: Some(rank),
            peer: "the store".to_owned(),
            what: format!("a wrong sum of key {key} (element {index} is {got}, expected {expected})"),
            remedy: "the sample was thrown away; run the contract tests of this kind of store".to_owned(),
        }
    }

    /// The bytes of a whole number of periods, aligned as every chunk of a tensor is.
    fn run(&self, value: impl Fn(usize) -> f64) -> Vec<u8> {
        with_element!(self.dtype, T => {
            let period: Vec<T> = (0..self.period()).map(|phase| T::from_f64(value(phase))).collect();
            let run: Vec<T> = period.iter().copied().cycle().take(self.period() * RUN_LEN.div_ceil(self.period())).collect();
            bytemuck::cast_slice(&run).to_vec()
        })
    }
}

/// The largest integer up to which every integer is exact in `dtype`, capped at a number that no sum of ours
/// reaches.
fn largest_exact(dtype: DType) -> f64 {
    match dtype {
        DType::I8 => 127.0,
        DType::U8 => 255.0,
        DType::BF16 => 256.0,
        DType::F16 => 2048.0,
        DType::F32 | DType::F64 | DType::I32 | DType::I64 => 16_777_216.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of the ranks' inputs of these iterations, which a correct store has.
    fn summed(pattern: &Pattern, ranks: usize, len: usize, iterations: std::ops::RangeInclusive<usize>) -> Tensor {
        let sum = Tensor::zeros(pattern.dtype, &[len]);
        for iteration in iterations {
            for rank in 0..ranks {
                let input = Tensor::zeros(pattern.dtype, &[len]);
                pattern.fill(&input, rank, iteration);
                ringpull_kernels::reduce::add_assign(
                    pattern.dtype,
                    sum.write().bytes_mut(),
                    input.read().unwrap().bytes(),
                );
            }
        }
        sum
    }

    #[test]
    fn correct_sums_pass_in_every_dtype_and_for_odd_lengths() {
        for dtype in DType::ALL {
            for (ranks, len) in [(1, 1), (2, 0), (3, 17), (8, 20_001), (32, 100)] {
                let pattern = Pattern::new(ranks, dtype).unwrap();
                pattern.check(&summed(&pattern, ranks, len, 4..=4), "0", 0, 4..=4).unwrap();
            }
        }
        let pattern = Pattern::new(3, DType::F32).unwrap();
        pattern.check(&summed(&pattern, 3, 50, 0..=5), "0", 0, 0..=5).unwrap();
    }

    #[test]
    fn one_wrong_element_is_found_and_named() {
        let pattern = Pattern::new(4, DType::F32).unwrap();
        let sum = summed(&pattern, 4, 30_000, 1..=1);
        sum.write().as_mut_slice::<f32>()[29_001] += 1.0;
        let error = pattern.check(&sum, "fc", 2, 1..=1).unwrap_err().to_string();
        assert!(error.contains("element 29001") && error.contains("key fc") && error.contains("rank 2"), "{error}");
    }

    #[test]
    fn a_lost_rank_an_old_iteration_and_an_untouched_input_are_all_found() {
        let pattern = Pattern::new(4, DType::F32).unwrap();
        assert!(pattern.check(&summed(&pattern, 3, 99, 1..=1), "0", 0, 1..=1).is_err());
        assert!(pattern.check(&summed(&pattern, 4, 99, 0..=0), "0", 0, 1..=1).is_err());
        let own = Tensor::zeros(DType::F32, &[99]);
        pattern.fill(&own, 1, 1);
        assert!(pattern.check(&own, "0", 0, 1..=1).is_err());
    }

    #[test]
    fn sums_that_a_dtype_cannot_hold_exactly_are_an_error_and_not_a_guess() {
        assert!(Pattern::new(200, DType::I8).is_err());
        let pattern = Pattern::new(8, DType::BF16).unwrap();
        assert!(pattern.check(&Tensor::zeros(DType::BF16, &[4]), "0", 0, 0..=99).is_err());
    }
}
