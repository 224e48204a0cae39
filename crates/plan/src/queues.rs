//! How much waits for a link.
//!
//! What a rank has handed over to be sent leaves in its turn, and a more urgent message comes after it. So a
//! rank hands over what keeps a link busy until it looks again, and no more. A rank that waits looks again
//! within 4 ms.

/// How long a link sends what was handed over for one peer, and what its connection has not taken.
const POSTED_US: f64 = 10_000.0;
/// How long it sends what the connection has taken, and not sent.
const UNSENT_US: f64 = 5_000.0;
/// A connection takes some packets in any case.
const LEAST_UNSENT: usize = 16 << 10;

/// How many bytes are enough that were handed over for one peer, and that its connection has not taken.
pub fn posted_bytes(link_bytes_per_us: f64) -> usize {
    (link_bytes_per_us * POSTED_US) as usize
}

/// How many bytes a connection takes that it cannot send at once.
pub fn unsent_bytes(link_bytes_per_us: f64) -> usize {
    ((link_bytes_per_us * UNSENT_US) as usize).max(LEAST_UNSENT)
}
