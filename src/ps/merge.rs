//! One round of pushes to one segment, added up in rank order whatever order they arrive in.
//!
//! The contributions of ranks `0..next` are in the sum; those of later ranks wait until their turn has come. So the same
//! additions happen in the same order in every run, and the sum's bits are the same.

use std::collections::BTreeMap;

use zmq::Message;

use crate::dtype::DType;
use crate::reduce;

/// One worker's push of one segment.
pub(crate) enum Gradient {
    /// Every element.
    Dense(Message),
    /// Units of the segment by ascending index, each once; the others are zero.
    Rows(Vec<i64>, Message),
}

/// What the contributions add up to.
pub(crate) enum Sum {
    Dense(Message),
    Rows { ids: Vec<i64>, rows: Vec<u8> },
}

/// What a merge has to know of its segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) dtype: DType,
    pub(crate) len_bytes: usize,
    pub(crate) unit_bytes: usize,
}

/// A round that is being merged.
#[derive(Default)]
pub(crate) struct Round {
    /// The sum over ranks `0..next`.
    sum: Option<Partial>,
    next: usize,
    /// What came early, by rank.
    held: BTreeMap<usize, Gradient>,
}

enum Partial {
    Dense(Message),
    Rows(BTreeMap<i64, Vec<u8>>),
}

impl Round {
    pub(crate) fn has(&self, rank: usize) -> bool {
        rank < self.next || self.held.contains_key(&rank)
    }

    /// Adds `rank`'s contribution, which has not come before.
    pub(crate) fn add(&mut self, rank: usize, gradient: Gradient, geometry: Geometry) {
        self.held.insert(rank, gradient);
        while let Some(gradient) = self.held.remove(&self.next) {
            self.sum = Some(match self.sum.take() {
                None => first(gradient, geometry),
                Some(sum) => plus(sum, gradient, geometry),
            });
            self.next += 1;
        }
    }

    /// Whether all `workers` have contributed.
    pub(crate) fn is_complete(&self, workers: usize) -> bool {
        self.next == workers
    }

    /// The sum; `None` if nobody has contributed.
    pub(crate) fn into_sum(self) -> Option<Sum> {
        Some(match self.sum? {
            Partial::Dense(sum) => Sum::Dense(sum),
            Partial::Rows(rows) => {
                let ids = rows.keys().copied().collect();
                Sum::Rows { ids, rows: rows.into_values().flatten().collect() }
            }
        })
    }
}

/// A contribution as it is, for a server that applies each push by itself.
pub(crate) fn alone(gradient: Gradient, geometry: Geometry) -> Sum {
    let mut round = Round::default();
    round.add(0, gradient, geometry);
    round.into_sum().expect("the contribution of rank 0 is the sum of one worker")
}

/// `message`, in memory that holds elements of `dtype`.
pub(crate) fn aligned(message: Message, dtype: DType) -> Message {
    // ZeroMQ keeps short messages inside their handle, whose address changes when it moves.
    if message.len() > 64 && message.as_ptr().align_offset(dtype.size_bytes()) == 0 {
        return message;
    }
    message_of(message.to_vec())
}

fn first(gradient: Gradient, geometry: Geometry) -> Partial {
    match gradient {
        Gradient::Dense(bytes) => Partial::Dense(aligned(bytes, geometry.dtype)),
        Gradient::Rows(ids, rows) => add_rows(BTreeMap::new(), &ids, &rows, geometry),
    }
}

fn plus(sum: Partial, gradient: Gradient, geometry: Geometry) -> Partial {
    match (sum, gradient) {
        (Partial::Dense(mut sum), Gradient::Dense(addend)) => {
            reduce::add_assign(geometry.dtype, &mut sum, &aligned(addend, geometry.dtype));
            Partial::Dense(sum)
        }
        (Partial::Rows(sum), Gradient::Rows(ids, rows)) => add_rows(sum, &ids, &rows, geometry),
        (Partial::Dense(mut sum), Gradient::Rows(ids, rows)) => {
            let rows = aligned(rows, geometry.dtype);
            for (id, row) in ids.iter().zip(rows.chunks_exact(geometry.unit_bytes)) {
                let start = *id as usize * geometry.unit_bytes;
                reduce::add_assign(geometry.dtype, &mut sum[start..start + geometry.unit_bytes], row);
            }
            Partial::Dense(sum)
        }
        (Partial::Rows(rows), Gradient::Dense(addend)) => {
            let ids: Vec<i64> = rows.keys().copied().collect();
            let dense = dense_of(&ids, &rows.into_values().flatten().collect::<Vec<_>>(), geometry);
            plus(Partial::Dense(dense), Gradient::Dense(addend), geometry)
        }
    }
}

fn add_rows(mut sum: BTreeMap<i64, Vec<u8>>, ids: &[i64], rows: &[u8], geometry: Geometry) -> Partial {
    for (id, row) in ids.iter().zip(rows.chunks_exact(geometry.unit_bytes)) {
        match sum.entry(*id) {
            std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(row.to_vec())),
            std::collections::btree_map::Entry::Occupied(mut place) => {
                reduce::add_assign(geometry.dtype, place.get_mut(), &row.to_vec());
            }
        }
    }
    Partial::Rows(sum)
}

/// The whole segment: the rows where they belong, and zeros.
pub(crate) fn dense_of(ids: &[i64], rows: &[u8], geometry: Geometry) -> Message {
    let mut dense = vec![0; geometry.len_bytes];
    for (id, row) in ids.iter().zip(rows.chunks_exact(geometry.unit_bytes)) {
        let start = *id as usize * geometry.unit_bytes;
        dense[start..start + geometry.unit_bytes].copy_from_slice(row);
    }
    message_of(dense)
}

/// A message over `bytes`, which are not copied.
pub(crate) fn message_of(bytes: Vec<u8>) -> Message {
    if bytes.is_empty() { Message::new() } else { Message::from(bytes) }
}
