//! The sum of row-sparse gradients over all ranks, which every rank gets.
//!
//! First all ids travel, in few bytes ([`row_ids`]), so that every rank knows the rows of each. From that all
//! ranks choose the same way to sum the rows ([`RowWay`]). Gathered or summed by their owners, rows are added
//! in the order of the ranks; as a dense tensor they are in the order of its plan.

use std::sync::Arc;

use ringpull_allreduce::communicator::{Communicator, Parts, RowWay, choose_rows};
use ringpull_allreduce::interpreter::Memory;
use ringpull_allreduce::progress::Launch;
use ringpull_base::{Buffer, Error, Result};
use ringpull_kernels::row_ids;

use crate::{Entry, MergedRows};

/// Every rank's rows, summed. Collective.
pub(super) fn sum_rows(
    comm: &mut Communicator,
    launch: &Launch,
    entry: &Entry,
    own: &MergedRows,
) -> Result<MergedRows> {
    let (rows, row_bytes, stamp) = (entry.rows()?, entry.row_bytes(), launch.number);
    let ids = gather_ids(comm, &own.ids, rows, stamp)?;
    let (union, way) = choose_rows(&comm.learned().model, &ids, rows, row_bytes);
    tracing::debug!(key = %entry.key, of = union.len(), ?way, "summing rows");
    match way {
        RowWay::Gather => {
            let lens = ids.iter().map(|ids| ids.len() * row_bytes);
            let all = comm.gather(Parts::of_lens(lens), stamp, |part| part.copy_from_slice(own.rows.bytes()))?;
            let mut rest = all.bytes();
            let parts: Vec<(&[i64], &[u8])> =
                ids.iter().map(|ids| (&ids[..], take(&mut rest, ids.len() * row_bytes))).collect();
            Ok(MergedRows::sum_of(entry, parts.into_iter()))
        }
        RowWay::ByOwner(owners) => {
            let rank = comm.rank();
            let given: Vec<usize> = owners.places(&own.ids).iter().map(|place| place.len() * row_bytes).collect();
            let mine: Vec<&[i64]> = ids.iter().map(|ids| &ids[owners.places(ids)[rank].clone()]).collect();
            let taken: Vec<usize> = mine.iter().map(|ids| ids.len() * row_bytes).collect();
            let all = comm.alltoall((&given, &taken), Memory::Shared(Arc::clone(&own.rows)), stamp)?;
            let mut rest = all.bytes();
            let parts: Vec<(&[i64], &[u8])> =
                mine.iter().map(|ids| (*ids, take(&mut rest, ids.len() * row_bytes))).collect();
            let sum = MergedRows::sum_of(entry, parts.into_iter());
            let parts = Parts::of_lens(owners.places(&union).iter().map(|place| place.len() * row_bytes));
            let rows = comm.gather(parts, stamp, |part| part.copy_from_slice(sum.rows.bytes()))?;
            Ok(MergedRows { ids: union, rows: Arc::new(rows) })
        }
        RowWay::Dense => {
            let whole = comm.allreduce(entry.dtype, Memory::Own(own.dense(entry)), stamp)?;
            let mut rows = Buffer::zeroed(union.len() * row_bytes);
            for (id, row) in union.iter().zip(rows.bytes_mut().chunks_exact_mut(row_bytes.max(1))) {
                row.copy_from_slice(&whole.bytes()[*id as usize * row_bytes..][..row_bytes]);
            }
            Ok(MergedRows { ids: union, rows: Arc::new(rows) })
        }
    }
}

/// Every rank's ids.
fn gather_ids(comm: &mut Communicator, own: &[i64], rows: usize, stamp: u32) -> Result<Vec<Vec<i64>>> {
    let code = row_ids::encode(own, rows);
    let lens = comm.gather_word(code.len() as u64, stamp)?;
    let parts = Parts::of_lens(lens.iter().map(|len| *len as usize));
    let all = comm.gather(parts, stamp, |part| part.copy_from_slice(&code))?;
    let mut rest = all.bytes();
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
