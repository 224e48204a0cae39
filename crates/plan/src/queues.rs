//! How much waits for a link.
//!
//! What a rank has handed over to be sent leaves in its turn, and a more urgent message comes after it. So a
//! rank hands over what keeps a link busy until it looks again, and no more. A rank that waits looks again
//! within 4 ms.

/// How long a link sends what was handed over for one peer, and what its connection has not taken.
const POSTED_US: f64 = 10_000.0;

/// How many bytes are enough that were handed over for one peer, and that its connection has not taken.
pub fn posted_bytes(link_bytes_per_us: f64) -> usize {
    (link_bytes_per_us * POSTED_US) as usize
}
