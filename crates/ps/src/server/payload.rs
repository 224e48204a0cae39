//! Checks the content of a request's payload against its segment. Nothing in it is trusted before.

use ringpull_base::{DType, Error};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::row_ids;

use crate::merge::{Geometry, Gradient};
use crate::message::Place;
use crate::shard::MAX_SEGMENT_BYTES;

/// The most dimensions of a key.
const MAX_DIMENSIONS: usize = 64;

/// Returns the fault of an init, if it has one. A segment must be a part of its key, consist of whole units
/// of whole elements, and not exceed the greatest length.
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

/// Returns the fault of a compressed gradient, if it has one.
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

/// Returns the ids of the units that the code names, for each segment, counted from the segment's first unit.
pub(super) fn ids_of(code: &[u8], segments: &[Geometry]) -> Result<Vec<Vec<i64>>, String> {
    let units: usize = segments.iter().map(|geometry| geometry.units()).sum();
    let ids = row_ids::decode(code, units).ok_or_else(|| format!("no ids of units below {units}"))?;
    let (mut at, mut start) = (0, 0);
    let of_segment = |geometry: &Geometry| {
        let end = start + geometry.units() as i64;
        let count = ids[at..].partition_point(|id| *id < end);
        let own = ids[at..at + count].iter().map(|id| id - start).collect();
        (at, start) = (at + count, end);
        own
    };
    Ok(segments.iter().map(of_segment).collect())
}

/// Returns the gradient of each segment.
pub(super) fn rows_of(ids_bytes: u64, payload: &[u8], segments: &[Geometry]) -> Result<Vec<Gradient>, String> {
    let ids_bytes = usize::try_from(ids_bytes).unwrap_or(usize::MAX);
    let (code, mut rows) = payload
        .split_at_checked(ids_bytes)
        .ok_or_else(|| format!("{} bytes, {ids_bytes} of them of ids", payload.len()))?;
    let ids = ids_of(code, segments)?;
    let sizes = || ids.iter().zip(segments).map(|(ids, geometry)| ids.len() * geometry.unit_bytes);
    if sizes().sum::<usize>() != rows.len() {
        return Err(format!("{} bytes for units of {}", rows.len(), sizes().sum::<usize>()));
    }
    let sizes: Vec<usize> = sizes().collect();
    let gradients = ids.into_iter().zip(sizes).map(|(ids, size)| {
        let (own, others) = rows.split_at(size);
        rows = others;
        Gradient::Rows(ids, own.to_vec())
    });
    Ok(gradients.collect())
}
