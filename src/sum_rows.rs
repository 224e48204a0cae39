//! The sum of row-sparse gradients over all ranks. Every rank gets it.
//!
//! First the ranks gather all row ids, coded in few bytes ([`row_ids`]), so every rank knows the rows of
//! every other. From the ids, which all ranks have, they choose one way to sum the rows ([`RowWay`]). Rows
//! that are gathered, or summed by owners, are added in the order of the ranks. Rows that are summed as a
//! dense tensor are added in the order of its plan.

use std::sync::Arc;

use ringpull_allreduce::communicator::{Parts, RowWay, choose_rows};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::Collectives;
use ringpull_base::{Buffer, Error, Result};
use ringpull_kernels::row_ids;

use crate::{Entry, MergedRows};

/// Sums every rank's rows. Collective.
pub(super) async fn sum_rows(all: &Collectives, entry: &Entry, own: &MergedRows) -> Result<MergedRows> {
    let (rows, row_bytes) = (entry.rows()?, entry.row_bytes());
    let ids = gather_ids(all, &own.ids, rows).await?;
    let (union, way) = choose_rows(&all.model, &ids, rows, row_bytes);
    tracing::debug!(key = %entry.key, of = union.len(), ?way, "summing rows");
    match way {
        RowWay::Gather => {
            let lens = ids.iter().map(|ids| ids.len() * row_bytes);
            let gathered = all.gather(Parts::of_lens(lens), |part| part.copy_from_slice(own.rows.bytes())).await?;
            let mut rest = gathered.bytes();
            let parts: Vec<(&[i64], &[u8])> =
                ids.iter().map(|ids| (&ids[..], take(&mut rest, ids.len() * row_bytes))).collect();
            Ok(MergedRows::sum_of(entry, parts.into_iter()))
        }
        RowWay::ByOwner(owners) => {
            let rank = all.rank;
            let given: Vec<usize> = owners.places(&own.ids).iter().map(|place| place.len() * row_bytes).collect();
            let mine: Vec<&[i64]> = ids.iter().map(|ids| &ids[owners.places(ids)[rank].clone()]).collect();
            let taken: Vec<usize> = mine.iter().map(|ids| ids.len() * row_bytes).collect();
            let blocks = all.alltoall((given, taken), Memory::Shared(Arc::clone(&own.rows))).await?;
            let mut rest = blocks.bytes();
            let parts: Vec<(&[i64], &[u8])> =
                mine.iter().map(|ids| (*ids, take(&mut rest, ids.len() * row_bytes))).collect();
            let sum = MergedRows::sum_of(entry, parts.into_iter());
            let parts = Parts::of_lens(owners.places(&union).iter().map(|place| place.len() * row_bytes));
            let rows = all.gather(parts, |part| part.copy_from_slice(sum.rows.bytes())).await?;
            Ok(MergedRows { ids: union, rows: Arc::new(rows) })
        }
        RowWay::Dense => {
            let whole = all.allreduce(entry.dtype, own.dense(entry)).await;
            let mut rows = Buffer::zeroed(union.len() * row_bytes);
            for (id, row) in union.iter().zip(rows.bytes_mut().chunks_exact_mut(row_bytes.max(1))) {
                row.copy_from_slice(&whole.bytes()[*id as usize * row_bytes..][..row_bytes]);
            }
            Ok(MergedRows { ids: union, rows: Arc::new(rows) })
        }
    }
}

/// Gathers every rank's ids. Collective.
async fn gather_ids(all: &Collectives, own: &[i64], rows: usize) -> Result<Vec<Vec<i64>>> {
    let code = row_ids::encode(own, rows);
    let lens = all.gather_word(code.len() as u64).await?;
    let parts = Parts::of_lens(lens.iter().map(|len| *len as usize));
    let codes = all.gather(parts, |part| part.copy_from_slice(&code)).await?;
    let mut rest = codes.bytes();
    let ids = lens.iter().map(|len| {
        let ids = row_ids::decode(take(&mut rest, *len as usize), rows);
        ids.ok_or_else(|| Error::bug("the row ids of another rank cannot be read"))
    });
    ids.collect()
}

/// Takes the first `len` bytes.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, behind) = rest.split_at(len);
    *rest = behind;
    first
}
