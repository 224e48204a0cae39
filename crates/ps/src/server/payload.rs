//! What a request's payload holds, checked against the segment it is for: nothing of it is trusted before.

use ringpull_base::{DType, Error};
use ringpull_kernels::compress::Compression;

use crate::merge::{Geometry, Gradient};
use crate::message::Place;
use crate::shard::MAX_SEGMENT_BYTES;

/// The most dimensions of a key.
const MAX_DIMENSIONS: usize = 64;

/// What is wrong with an init: a segment is a part of its key, made of whole units of whole elements, and no
/// longer than any.
pub(super) fn check_init(geometry: Geometry, shape: &[u64]) -> Result<(), String> {
    let Geometry { dtype, len_bytes, unit_bytes } = geometry;
    let size = dtype.size_bytes();
    if shape.len() > MAX_DIMENSIONS {
        return Err(format!("an init of {} dimensions", shape.len()));
    }
    let whole = shape.iter().try_fold(size as u64, |bytes, len| bytes.checked_mul(*len));
    let whole = whole.ok_or_else(|| "an init of more elements than can be counted".to_owned())?;
    if len_bytes > MAX_SEGMENT_BYTES || len_bytes as u64 > whole {
        return Err(format!("an init of {len_bytes} bytes of a key of {whole}"));
    }
    if !unit_bytes.is_multiple_of(size) || !len_bytes.is_multiple_of(unit_bytes) {
        return Err("an init of broken elements".to_owned());
    }
    Ok(())
}

/// What is wrong with a compressed gradient.
pub(super) fn check_code(compression: &Compression, code: &[u8], geometry: Geometry) -> Result<(), String> {
    if geometry.dtype != DType::F32 {
        return Err(format!("a compressed gradient of {} elements", geometry.dtype));
    }
    compression.check().map_err(|cause| cause.to_string())?;
    compression.check_code(code, geometry.len_bytes / size_of::<f32>())
}

pub(super) fn broken_code(rank: usize, place: &Place, what: String) -> Error {
    Error::protocol(rank, format!("its push of key {}", place.key), what)
}

pub(super) fn in_words(compression: Option<Compression>) -> String {
    compression
        .map_or("an uncompressed gradient".to_owned(), |compression| format!("a gradient compressed by {compression}"))
}

pub(super) fn ids_of(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect()
}

pub(super) fn check_units(ids: &[i64], geometry: Geometry) -> Result<(), String> {
    let units = i64::try_from(geometry.len_bytes / geometry.unit_bytes).unwrap_or(i64::MAX);
    let fits = ids.iter().all(|id| (0..units).contains(id)) && ids.is_sorted_by(|a, b| a < b);
    if fits { Ok(()) } else { Err(format!("units that are not ascending below {units}")) }
}

pub(super) fn rows_of(count: u64, payload: &[u8], geometry: Geometry) -> Result<Gradient, String> {
    let wrong = || format!("{} bytes for {count} units of {} bytes", payload.len(), geometry.unit_bytes);
    let ids_bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(8)).ok_or_else(wrong)?;
    let (ids, rows) = payload.split_at_checked(ids_bytes).ok_or_else(wrong)?;
    if (ids_bytes / 8).checked_mul(geometry.unit_bytes) != Some(rows.len()) {
        return Err(wrong());
    }
    let ids = ids_of(ids);
    check_units(&ids, geometry)?;
    Ok(Gradient::Rows(ids, rows.to_vec()))
}
