//! Sums of codes, stored in the fewest possible bits.
//!
//! A block of 32 sums has one word of 32 bits for each bit of a sum: bit `i` of word `j` is bit `j` of sum
//! `i`. The stored number is 0 or more. For `2bit` it is the sum plus `n`, and for `1bit` it is the number of
//! codes, among the `n`, that are 1.
//!
//! ```text
//!   n = 8, 2bit: sums -8..=8 are stored as 0..=16, 5 bits: 20 bytes for a block where f32 takes 128
//! ```

use super::Level;
use super::lanes::{BLOCK, Width};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// The bytes of `len` sums of `bits` bits.
pub(super) fn bytes(len: usize, bits: usize) -> usize {
    len.div_ceil(BLOCK) * bits * (BLOCK / 8)
}

/// Adds up the codes of `len` elements that each of `codes` holds.
pub(super) fn sum(level: Level, width: Width, codes: &[&[u8]], len: usize, sums: &mut [u8]) {
    let bits = width.bits(codes.len());
    assert_eq!(sums.len(), bytes(len, bits), "a place for each sum");
    let done = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 if bits <= 8 => avx2::sum_planes(width, codes, len / BLOCK, sums, bits),
        _ => 0,
    };
    for block in done / BLOCK..len.div_ceil(BLOCK) {
        let mut stored = [width.bias(codes.len()) as i64; BLOCK];
        let here = BLOCK.min(len - block * BLOCK);
        for code in codes {
            let code = &code[block * width.block_bytes()..];
            stored[..here].iter_mut().enumerate().for_each(|(at, sum)| *sum += width.stored(code, at));
        }
        stored[here..].fill(0);
        for (bit, word) in sums[block * bits * 4..][..bits * 4].chunks_exact_mut(4).enumerate() {
            let plane = stored.iter().enumerate().fold(0, |plane, (at, sum)| plane | ((sum >> bit & 1) as u32) << at);
            word.copy_from_slice(&plane.to_le_bytes());
        }
    }
}

/// Writes `unit` times each sum of `count` codes.
pub(super) fn decode(level: Level, width: Width, count: usize, sums: &[u8], unit: f32, values: &mut [f32]) {
    let bits = width.bits(count);
    assert_eq!(sums.len(), bytes(values.len(), bits), "a sum for each element");
    let done = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::decode_planes(width, count, sums, bits, unit, values),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if bits <= 8 => avx2::decode_planes(width, count, sums, bits, unit, values),
        _ => 0,
    };
    for (sums, values) in sums[bytes(done, bits)..].chunks_exact(bits * 4).zip(values[done..].chunks_mut(BLOCK)) {
        for (at, value) in values.iter_mut().enumerate() {
            let planes = sums.chunks_exact(4).enumerate();
            let stored = planes.fold(0, |stored, (bit, word)| stored | i32::from(word[at / 8] >> (at % 8) & 1) << bit);
            *value = (stored * width.factor() - count as i32) as f32 * unit;
        }
    }
}
