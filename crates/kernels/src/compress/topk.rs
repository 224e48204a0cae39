//! `topk`: the largest elements and their indices, as in Deep Gradient Compression (Lin et al., 2018).
//!
//! An element that is not sent stays in the residual, where it grows until it is sent. With momentum `m` each
//! gradient first goes through `v = m v + g`, and `v` accumulates. Elements that were sent are cleared in
//! both, so that stale momentum does not repeat them.
//!
//! A push of `len` elements always sends `max(1, ceil(ratio len))` of them, so that every rank knows the
//! length of every other rank's code. The code is their indices (u32, ascending) and then their values (f32).
//! Among elements of one size the first are sent. NaN counts as larger than all.

use serde::{Deserialize, Serialize};

/// The largest elements only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// The part of the elements that one push sends, above 0 and at most 1.
    pub ratio: f64,
    /// The momentum of the correction, from 0 (none) to below 1.
    pub momentum: f32,
}

/// The bytes of an index and a value.
const ENTRY_BYTES: usize = 8;
/// The shift that leaves the bits of a size for the coarse search: the exponent and four more bits.
const COARSE_SHIFT: u32 = 19;

impl TopK {
    /// Returns the number of elements that a push of `len` sends.
    pub fn kept(&self, len: usize) -> usize {
        ((self.ratio * len as f64).ceil() as usize).clamp(1, len.max(1)).min(len)
    }

    pub(super) fn code_bytes(&self, len: usize) -> usize {
        self.kept(len) * ENTRY_BYTES
    }

    /// Adds `gradient` to `residual` and encodes the largest elements. `velocity` is empty without momentum.
    pub(super) fn encode(&self, gradient: &[f32], residual: &mut [f32], velocity: &mut [f32], code: &mut [u8]) {
        assert_eq!(gradient.len(), residual.len(), "a residual for each element");
        assert_eq!(code.len(), self.code_bytes(gradient.len()), "a place for each entry");
        assert!(u32::try_from(gradient.len()).is_ok(), "a key has fewer than 2^32 elements");
        if velocity.is_empty() {
            residual.iter_mut().zip(gradient).for_each(|(residual, gradient)| *residual += gradient);
        } else {
            for ((residual, velocity), gradient) in residual.iter_mut().zip(&mut *velocity).zip(gradient) {
                *velocity = self.momentum * *velocity + gradient;
                *residual += *velocity;
            }
        }
        let chosen = largest(residual, self.kept(gradient.len()));
        let (indices, values) = code.split_at_mut(code.len() / 2);
        let places = indices.chunks_exact_mut(4).zip(values.chunks_exact_mut(4));
        for (index, (index_bytes, value_bytes)) in chosen.into_iter().zip(places) {
            index_bytes.copy_from_slice(&index.to_le_bytes());
            value_bytes.copy_from_slice(&residual[index as usize].to_le_bytes());
            residual[index as usize] = 0.0;
            velocity.get_mut(index as usize).into_iter().for_each(|velocity| *velocity = 0.0);
        }
    }
}

fn size(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Returns the indices of the `count` largest of `values`, in ascending order.
fn largest(values: &[f32], count: usize) -> Vec<u32> {
    if count == values.len() {
        return (0..count as u32).collect();
    }
    let mut counts = vec![0usize; 1 << (31 - COARSE_SHIFT)];
    values.iter().for_each(|value| counts[(size(*value) >> COARSE_SHIFT) as usize] += 1);
    // All values above the edge are among the largest, some of those on the edge are, and none below it.
    let (mut above, mut edge) = (0, counts.len() - 1);
    while above + counts[edge] < count {
        above += counts[edge];
        edge -= 1;
    }
    let edge = edge as u32;
    let coarse = |index: &u32| size(values[*index as usize]) >> COARSE_SHIFT;
    let candidates = (0..values.len() as u32).filter(|index| coarse(index) >= edge);
    let (mut chosen, mut on_edge): (Vec<u32>, Vec<u32>) = candidates.partition(|index| coarse(index) > edge);
    let needed = count - above;
    if needed < on_edge.len() {
        on_edge.select_nth_unstable_by_key(needed, |index| (std::cmp::Reverse(size(values[*index as usize])), *index));
        on_edge.truncate(needed);
    }
    chosen.append(&mut on_edge);
    chosen.sort_unstable();
    chosen
}

/// Returns the entries of the code.
pub(super) fn entries(code: &[u8]) -> impl Iterator<Item = (u32, f32)> {
    let (indices, values) = code.split_at(code.len() / 2);
    let pairs = indices.as_chunks().0.iter().zip(values.as_chunks().0);
    pairs.map(|(index, value)| (u32::from_le_bytes(*index), f32::from_le_bytes(*value)))
}

/// The entries of `code` whose indices lie in `range`, counted from its start.
pub(super) fn part(code: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let indices = code[..code.len() / 2].as_chunks::<4>().0;
    let at = |index: usize| indices.partition_point(|bytes| (u32::from_le_bytes(*bytes) as usize) < index);
    let (start, end) = (at(range.start), at(range.end));
    let local =
        indices[start..end].iter().flat_map(|bytes| (u32::from_le_bytes(*bytes) - range.start as u32).to_le_bytes());
    let mut part: Vec<u8> = local.collect();
    part.extend_from_slice(&code[code.len() / 2..][4 * start..4 * end]);
    part
}

/// Returns an error, with the reason, unless `code` is entries of a gradient of `len` elements.
pub(super) fn check_code(code: &[u8], len: usize) -> Result<(), String> {
    if !code.len().is_multiple_of(ENTRY_BYTES) {
        return Err(format!("{} bytes, which is not a whole number of entries", code.len()));
    }
    let ascending = entries(code).is_sorted_by(|a, b| a.0 < b.0);
    let inside = entries(code).last().is_none_or(|(index, _)| (index as usize) < len);
    if ascending && inside { Ok(()) } else { Err(format!("indices that do not ascend below {len}")) }
}

pub(super) fn decode_add(code: &[u8], sum: &mut [f32]) {
    entries(code).for_each(|(index, value)| sum[index as usize] += value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(topk: &TopK, gradient: &[f32], residual: &mut [f32], velocity: &mut [f32]) -> Vec<(u32, f32)> {
        let mut code = vec![0xff; topk.code_bytes(gradient.len())];
        topk.encode(gradient, residual, velocity, &mut code);
        check_code(&code, gradient.len()).unwrap();
        entries(&code).collect()
    }

    #[test]
    fn the_largest_are_sent_and_the_others_wait() {
        let topk = TopK { ratio: 0.4, momentum: 0.0 };
        let mut residual = [0f32; 5];
        assert_eq!(encode(&topk, &[1.0, -3.0, 2.0, 0.5, -1.0], &mut residual, &mut []), [(1, -3.0), (2, 2.0)]);
        assert_eq!(residual, [1.0, 0.0, 0.0, 0.5, -1.0]);
        assert_eq!(encode(&topk, &[1.0, 0.0, 0.0, 0.5, -1.0], &mut residual, &mut []), [(0, 2.0), (4, -2.0)]);
        assert_eq!(residual, [0.0, 0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn momentum_accumulates_until_it_is_sent() {
        let topk = TopK { ratio: 0.5, momentum: 0.5 };
        let (mut residual, mut velocity) = ([0f32; 2], [0f32; 2]);
        assert_eq!(encode(&topk, &[4.0, 1.0], &mut residual, &mut velocity), [(0, 4.0)]);
        assert_eq!((residual, velocity), ([0.0, 1.0], [0.0, 1.0]));
        // v = 0.5 * 1 + 1, r = 1 + v
        assert_eq!(encode(&topk, &[1.0, 1.0], &mut residual, &mut velocity), [(1, 2.5)]);
        assert_eq!((residual, velocity), ([1.0, 0.0], [1.0, 0.0]));
    }

    #[test]
    fn a_push_has_one_entry_at_least_and_its_length_is_known() {
        let topk = TopK { ratio: 0.01, momentum: 0.0 };
        assert_eq!([0, 1, 99, 100, 101, 1000].map(|len| topk.kept(len)), [0, 1, 1, 1, 2, 10]);
        assert_eq!(TopK { ratio: 1.0, momentum: 0.0 }.kept(7), 7);
    }

    #[test]
    fn entries_that_no_worker_sends_are_found() {
        let code = |indices: [u32; 2]| [bytemuck::cast_slice(&indices), bytemuck::cast_slice(&[1f32, 2.0])].concat();
        assert!(check_code(&code([3, 4]), 5).is_ok() && check_code(&[], 5).is_ok());
        for (code, len) in [(code([3, 4]), 4), (code([4, 3]), 5), (code([3, 3]), 5), (vec![0; 12], 5)] {
            assert!(check_code(&code, len).is_err());
        }
    }

    #[test]
    fn a_part_of_a_code_counts_from_its_own_start() {
        let code = [bytemuck::cast_slice(&[1u32, 5, 6, 9]), bytemuck::cast_slice(&[1f32, 5.0, 6.0, 9.0])].concat();
        assert_eq!(entries(&part(&code, 5..9)).collect::<Vec<_>>(), [(0, 5.0), (1, 6.0)]);
        assert!(part(&code, 2..5).is_empty());
        assert_eq!(part(&code, 0..10), code);
    }

    proptest! {
        #[test]
        fn what_is_sent_is_never_smaller_than_what_is_kept_and_together_they_are_all(
            values in prop::collection::vec(prop_oneof![-9i32..9, -100_000i32..100_000], 1..400), ratio in 0.001f64..1.0,
        ) {
            let gradient: Vec<f32> = values.iter().map(|value| *value as f32 / 64.0).collect();
            let topk = TopK { ratio, momentum: 0.0 };
            let mut residual = vec![0.0; gradient.len()];
            let sent = encode(&topk, &gradient, &mut residual, &mut []);
            prop_assert_eq!(sent.len(), topk.kept(gradient.len()));
            let least = sent.iter().map(|(_, value)| value.abs()).fold(f32::INFINITY, f32::min);
            let last_of_least = sent.iter().filter(|(_, value)| value.abs() == least).map(|(index, _)| *index).max();
            for (index, kept) in residual.iter().enumerate().filter(|(_, kept)| **kept != 0.0) {
                prop_assert!(kept.abs() < least || kept.abs() == least && Some(index as u32) > last_of_least);
            }
            sent.iter().for_each(|(index, value)| residual[*index as usize] += value);
            prop_assert_eq!(residual, gradient);
        }
    }
}
