//! The limits of the bytes that wait for a link.
//!
//! Messages leave in the order in which a rank has handed them over, so a more urgent one comes after them.
//! So a rank hands over the bytes that keep a link busy until it looks again, and no more. A rank that waits
//! looks again within 4 ms.

/// The time for which a link sends the bytes that were handed over for one peer, and that its connection has
/// not taken.
const POSTED_US: f64 = 10_000.0;

/// Returns the number of bytes, handed over for one peer and not taken by its connection, that are enough.
pub fn posted_bytes(link_bytes_per_us: f64) -> usize {
    (link_bytes_per_us * POSTED_US) as usize
}
