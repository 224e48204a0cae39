//! The sum of one round of pushes to one segment. It is added in the order of the ranks, in whatever order
//! pushes arrive.
//!
//! The contributions of ranks `0..next` are in the sum, and those of later ranks wait for their turn. So
//! every run does the same additions in the same order, and the sum has the same bits.

use std::collections::BTreeMap;

use ringpull_base::DType;
use ringpull_kernels::compress::{Codec, Compression};
use ringpull_kernels::reduce;

/// One worker's push of one segment.
pub(crate) enum Gradient {
    /// Every element.
    Dense(Vec<u8>),
    /// Some units (rows) of the segment, in ascending order, each at most once. All other units are zero.
    Rows(Vec<i64>, Vec<u8>),
    /// Every element, compressed. The code has been checked before.
    Coded(Compression, Vec<u8>),
}

/// The sum of the contributions.
pub(crate) enum Sum {
    Dense(Vec<u8>),
    Rows { ids: Vec<i64>, rows: Vec<u8> },
}

/// The element type and the lengths of a segment. A unit is a row of the key, or an equal piece of a long
/// row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub dtype: DType,
    pub len_bytes: usize,
    pub(crate) unit_bytes: usize,
}

impl Geometry {
    /// The number of units of the segment.
    pub(crate) fn units(self) -> usize {
        self.len_bytes / self.unit_bytes
    }
}

/// A round that is being merged.
#[derive(Default)]
pub(crate) struct Round {
    /// The sum over ranks `0..next`.
    sum: Option<Partial>,
    next: usize,
    /// The contributions that came before their turn, by rank.
    held: BTreeMap<usize, Gradient>,
}

enum Partial {
    Dense(Vec<u8>),
    /// Ids in ascending order, each at most once, and their rows.
    Rows(Vec<i64>, Vec<u8>),
    /// Codes whose decoded values cannot be added one by one without rounding. They are kept, and summed as
    /// integers at the end of the round.
    Codes(Codec, Vec<Vec<u8>>, Geometry),
}

impl Round {
    pub(crate) fn has(&self, rank: usize) -> bool {
        rank < self.next || self.held.contains_key(&rank)
    }

    /// Keeps `rank`'s contribution separately, so that [`remove`](Self::remove) can take it out again.
    pub(crate) fn hold(&mut self, rank: usize, gradient: Gradient) {
        self.held.insert(rank, gradient);
    }

    /// Takes out a held contribution.
    pub(crate) fn remove(&mut self, rank: usize) {
        self.held.remove(&rank);
    }

    /// Returns true if nobody has contributed.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == 0 && self.held.is_empty()
    }

    /// Returns the sum of the held contributions, in the order of their ranks.
    pub(crate) fn held_sum(self, geometry: Geometry) -> Option<Sum> {
        let mut round = Round::default();
        for (index, gradient) in self.held.into_values().enumerate() {
            round.add(index, gradient, geometry);
        }
        round.into_sum()
    }

    /// Adds `rank`'s contribution, which must be the rank's first in this round.
    pub(crate) fn add(&mut self, rank: usize, gradient: Gradient, geometry: Geometry) {
        if rank != self.next {
            self.held.insert(rank, gradient);
            return;
        }
        let mut turn = Some(gradient);
        while let Some(gradient) = turn {
            self.sum = Some(match self.sum.take() {
                None => first(gradient, geometry),
                Some(sum) => plus(sum, gradient, geometry),
            });
            self.next += 1;
            turn = self.held.remove(&self.next);
        }
    }

    /// Returns true if all `workers` have contributed.
    pub(crate) fn is_complete(&self, workers: usize) -> bool {
        self.next == workers
    }

    /// Returns the sum, or `None` if nobody has contributed.
    pub(crate) fn into_sum(self) -> Option<Sum> {
        Some(match self.sum? {
            Partial::Dense(sum) => Sum::Dense(sum),
            Partial::Codes(codec, codes, geometry) => Sum::Dense(sum_of_codes(codec, &codes, geometry)),
            Partial::Rows(ids, rows) => Sum::Rows { ids, rows },
        })
    }
}

/// Returns `bytes` in memory that is aligned for elements of `dtype`.
pub(crate) fn aligned(bytes: Vec<u8>, dtype: DType) -> Vec<u8> {
    if bytes.as_ptr().align_offset(dtype.size_bytes()) == 0 {
        return bytes;
    }
    // An empty vector has no memory, and its address may be unaligned for an element.
    let mut copy = Vec::with_capacity(bytes.len().max(64));
    copy.extend_from_slice(&bytes);
    copy
}

fn first(gradient: Gradient, geometry: Geometry) -> Partial {
    match gradient {
        Gradient::Dense(bytes) => Partial::Dense(aligned(bytes, geometry.dtype)),
        // A message with few rows names many segments, and has no rows of most of them.
        Gradient::Rows(ids, rows) if ids.is_empty() => Partial::Rows(ids, rows),
        Gradient::Rows(ids, rows) => Partial::Rows(ids, aligned(rows, geometry.dtype)),
        Gradient::Coded(Compression::Codec(codec), code) if !codec.adds_exactly() => {
            Partial::Codes(codec, vec![code], geometry)
        }
        Gradient::Coded(compression, code) => decode_onto(dense_of(&[], &[], geometry), compression, &code),
    }
}

fn plus(sum: Partial, gradient: Gradient, geometry: Geometry) -> Partial {
    match (sum, gradient) {
        (Partial::Dense(mut sum), Gradient::Dense(addend)) => {
            reduce::add_assign(geometry.dtype, &mut sum, &aligned(addend, geometry.dtype));
            Partial::Dense(sum)
        }
        (Partial::Rows(sum_ids, sum), Gradient::Rows(ids, _)) if ids.is_empty() => Partial::Rows(sum_ids, sum),
        (Partial::Rows(sum_ids, _), gradient @ Gradient::Rows(..)) if sum_ids.is_empty() => first(gradient, geometry),
        (Partial::Rows(sum_ids, sum), Gradient::Rows(ids, rows)) => {
            add_rows((&sum_ids, &sum), (&ids, &aligned(rows, geometry.dtype)), geometry)
        }
        (Partial::Dense(mut sum), Gradient::Rows(ids, rows)) => {
            let rows = aligned(rows, geometry.dtype);
            for (id, row) in ids.iter().zip(rows.chunks_exact(geometry.unit_bytes)) {
                let start = *id as usize * geometry.unit_bytes;
                reduce::add_assign(geometry.dtype, &mut sum[start..start + geometry.unit_bytes], row);
            }
            Partial::Dense(sum)
        }
        (Partial::Dense(sum), Gradient::Coded(compression, code)) => decode_onto(sum, compression, &code),
        (Partial::Codes(codec, mut codes, geometry), Gradient::Coded(Compression::Codec(other), code))
            if other == codec =>
        {
            codes.push(code);
            Partial::Codes(codec, codes, geometry)
        }
        (Partial::Codes(codec, codes, _), gradient) => {
            plus(Partial::Dense(sum_of_codes(codec, &codes, geometry)), gradient, geometry)
        }
        (Partial::Rows(ids, rows), gradient) => {
            plus(Partial::Dense(dense_of(&ids, &rows, geometry)), gradient, geometry)
        }
    }
}

fn decode_onto(mut sum: Vec<u8>, compression: Compression, code: &[u8]) -> Partial {
    compression.decode_add(code, bytemuck::cast_slice_mut(&mut sum));
    Partial::Dense(sum)
}

/// Decodes the sum of the codes. There is one code of each worker.
fn sum_of_codes(codec: Codec, codes: &[Vec<u8>], geometry: Geometry) -> Vec<u8> {
    let len = geometry.len_bytes / size_of::<f32>();
    let mut sums = vec![0; codec.sum_bytes(len, codes.len())];
    let slices: Vec<&[u8]> = codes.iter().map(|code| &code[..]).collect();
    codec.sum(&slices, len, &mut sums);
    let mut dense = vec![0f32; len];
    codec.decode_sum(&sums, codes.len(), &mut dense);
    aligned(bytemuck::cast_slice(&dense).to_vec(), DType::F32)
}

/// Adds two lists of rows. The ids of each list ascend, and no list has an id twice.
fn add_rows(sum: (&[i64], &[u8]), addend: (&[i64], &[u8]), geometry: Geometry) -> Partial {
    let size = geometry.unit_bytes;
    let mut ids = Vec::with_capacity(sum.0.len() + addend.0.len());
    let mut rows = aligned(Vec::with_capacity((sum.1.len() + addend.1.len()).max(64)), geometry.dtype);
    let (mut at, mut other) = (0, 0);
    while at < sum.0.len() || other < addend.0.len() {
        let (own, theirs) = (sum.0.get(at), addend.0.get(other));
        // Rows of the sum come first.
        let has_own = own.is_some_and(|own| theirs.is_none_or(|theirs| own <= theirs));
        let has_theirs = theirs.is_some_and(|theirs| own.is_none_or(|own| theirs <= own));
        let start = rows.len();
        if has_own {
            ids.push(sum.0[at]);
            rows.extend_from_slice(&sum.1[at * size..][..size]);
            at += 1;
        }
        if has_theirs {
            let row = &addend.1[other * size..][..size];
            if has_own {
                reduce::add_assign(geometry.dtype, &mut rows[start..], row);
            } else {
                ids.push(addend.0[other]);
                rows.extend_from_slice(row);
            }
            other += 1;
        }
    }
    Partial::Rows(ids, rows)
}

/// Returns the whole segment, with the given rows and zeros elsewhere.
pub(crate) fn dense_of(ids: &[i64], rows: &[u8], geometry: Geometry) -> Vec<u8> {
    let mut dense = vec![0; geometry.len_bytes];
    for (id, row) in ids.iter().zip(rows.chunks_exact(geometry.unit_bytes)) {
        let start = *id as usize * geometry.unit_bytes;
        dense[start..start + geometry.unit_bytes].copy_from_slice(row);
    }
    aligned(dense, geometry.dtype)
}
