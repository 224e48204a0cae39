//! The contribution of one process to a key in one push: the sum of the values of the push.

use std::sync::Arc;

#[cfg(feature = "devices")]
use ringpull_base::Remote;
use ringpull_base::{Buffer, Error, Result, RowSparse, Tensor, TensorMut, TensorRef};
use ringpull_kernels::reduce;

use crate::Entry;

/// One value of a push, or the sum of all its values.
pub enum Contribution {
    /// A value, locked against writers until this is dropped.
    Held(TensorRef),
    /// The sum of several values.
    Summed(Buffer),
    /// The value is in the output with this index, which will hold the result.
    InPlace(usize),
}

/// Returns the single contribution.
pub(super) fn only(mut gradient: Vec<Contribution>) -> Contribution {
    gradient.pop().expect("a store without devices is given the sum of the values, of which there is one at least")
}

/// Returns the memory of the values that are not in host memory. `outs` are the outputs of the push.
#[cfg(feature = "devices")]
pub(super) fn remotes<'a>(values: &'a [Contribution], outs: &'a [TensorMut]) -> impl Iterator<Item = &'a Remote> {
    values.iter().filter_map(|value| value.remote(outs))
}

impl Contribution {
    /// Returns the contribution's memory, if it is not host memory. `outs` are the outputs of the push.
    #[cfg(feature = "devices")]
    pub(super) fn remote<'a>(&'a self, outs: &'a [TensorMut]) -> Option<&'a Remote> {
        match self {
            Contribution::Held(held) => held.remote(),
            Contribution::Summed(_) => None,
            Contribution::InPlace(index) => outs[*index].remote(),
        }
    }

    /// Returns the sum of `values`, which are not empty. A single value is not copied.
    pub(super) fn sum(entry: &Entry, values: &[Tensor]) -> Result<Self> {
        let [first, others @ ..] = values else {
            unreachable!("an empty list was turned away before");
        };
        if others.is_empty() {
            return Ok(Contribution::Held(first.read()?));
        }
        let mut sum = Buffer::try_copy_of(first.read()?.bytes(), "the sum of a push")?;
        for value in others {
            reduce::add_assign(entry.dtype, sum.bytes_mut(), value.read()?.bytes());
        }
        Ok(Contribution::Summed(sum))
    }

    /// Copies the caller's tensor. The caller may change it from then on.
    pub(super) fn take_over(&mut self) {
        if let Contribution::Held(held) = self {
            *self = Contribution::Summed(Buffer::copy_of(held.bytes()));
        }
    }

    /// Scales the contribution by `factor`. An output or a sum is scaled in place, and a value is copied.
    pub(super) fn scaled(self, entry: &Entry, factor: f64, outs: &mut [TensorMut]) -> Self {
        // Memory of other libraries may be unaligned.
        let lies_well = |bytes: &[u8]| bytes.as_ptr().addr().is_multiple_of(entry.dtype.size_bytes());
        let mut sum = match self {
            Contribution::InPlace(index) if !lies_well(outs[index].bytes()) => Buffer::copy_of(outs[index].bytes()),
            Contribution::InPlace(index) => {
                reduce::scale(entry.dtype, outs[index].bytes_mut(), factor);
                return Contribution::InPlace(index);
            }
            Contribution::Held(value) => Buffer::copy_of(value.bytes()),
            Contribution::Summed(sum) => sum,
        };
        reduce::scale(entry.dtype, sum.bytes_mut(), factor);
        Contribution::Summed(sum)
    }

    /// Returns the bytes of the gradient. `outs` are the outputs of the push.
    pub fn bytes<'a>(&'a self, outs: &'a [TensorMut]) -> &'a [u8] {
        match self {
            Contribution::Held(value) => value.bytes(),
            Contribution::Summed(sum) => sum.bytes(),
            Contribution::InPlace(index) => outs[*index].bytes(),
        }
    }
}

/// A row-sparse gradient of one process. It has ascending ids, each once, and their rows.
#[derive(Clone)]
pub struct MergedRows {
    /// The row ids, ascending, each once.
    pub ids: Vec<i64>,
    /// One row for each id.
    pub rows: Arc<Buffer>,
}

impl MergedRows {
    /// Returns the sum of `values`. Rows with one id are added in the order in which they are given.
    pub(super) fn sum(entry: &Entry, values: &[RowSparse]) -> Result<Self> {
        let guards = values.iter().map(|value| value.rows().read()).collect::<Result<Vec<_>>>()?;
        if let ([value], [rows]) = (values, &guards[..])
            && value.row_ids().is_sorted_by(|before, after| before < after)
        {
            return Ok(MergedRows { ids: value.row_ids().to_vec(), rows: Arc::new(Buffer::copy_of(rows.bytes())) });
        }
        let parts = values.iter().zip(&guards).map(|(value, guard)| (value.row_ids(), guard.bytes()));
        Ok(Self::sum_of(entry, parts))
    }

    /// Returns the sum of `(ids, rows)` pairs, added in the order given. The ids need not be sorted or
    /// unique.
    pub fn sum_of<'a>(entry: &Entry, parts: impl Iterator<Item = (&'a [i64], &'a [u8])> + Clone) -> Self {
        let mut all: Vec<i64> = parts.clone().flat_map(|(ids, _)| ids.iter().copied()).collect();
        #[allow(clippy::stable_sort_primitive, reason = "most parts ascend, and it finds such runs")]
        all.sort();
        all.dedup();
        let row_bytes = entry.row_bytes();
        let mut rows = Buffer::zeroed(all.len() * row_bytes);
        for (ids, bytes) in parts {
            let mut place = 0;
            for (at, id) in ids.iter().enumerate() {
                place = find(&all, place, *id);
                let to = place * row_bytes;
                let row = &bytes[at * row_bytes..(at + 1) * row_bytes];
                reduce::add_assign(entry.dtype, &mut rows.bytes_mut()[to..to + row_bytes], row);
            }
        }
        MergedRows { ids: all, rows: Arc::new(rows) }
    }

    /// Returns a tensor with these rows, and zeros elsewhere.
    pub(super) fn dense(&self, entry: &Entry) -> Buffer {
        let mut dense = Buffer::zeroed(entry.len_bytes());
        let row_bytes = entry.row_bytes();
        if row_bytes > 0 {
            let bytes = dense.bytes_mut();
            for (id, row) in self.ids.iter().zip(self.rows.bytes().chunks_exact(row_bytes)) {
                bytes[*id as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        dense
    }
}

/// Returns the position of `id` in `all`, which ascend and contain `id`. The position is usually soon after
/// `near`.
fn find(all: &[i64], near: usize, id: i64) -> usize {
    if all[near] > id {
        return all[..near].partition_point(|other| *other < id);
    }
    let mut step = 1;
    while all.get(near + step).is_some_and(|other| *other <= id) {
        step *= 2;
    }
    let (start, end) = (near + step / 2, all.len().min(near + step));
    start + all[start..end].partition_point(|other| *other < id)
}

pub(super) fn check_finite(entry: &Entry, rank: usize, bytes: &[u8]) -> Result<()> {
    match reduce::first_not_finite(entry.dtype, bytes) {
        None => Ok(()),
        Some((index, value)) => {
            let what = if value.is_nan() { "NaN" } else { "Inf" }.to_owned();
            Err(Error::NotFinite { key: entry.key.clone(), rank, index, what })
        }
    }
}
