//! How much waits for a link.
//!
//! What a rank has handed over to be sent leaves in its turn, and a more urgent message comes after it. So a
//! rank hands over what keeps a link busy until it looks again, and no more. It looks again within 4 ms.

/// Of messages to one peer that the transport has, and its connection has not.
const POSTED_US: f64 = 10_000.0;
/// Of what a connection has, and has not sent.
const UNSENT_US: f64 = 5_000.0;
/// Some packets.
const LEAST_UNSENT: usize = 16 << 10;

/// While so many bytes are handed over to one peer, and lie before its connection, no further message is.
pub fn posted_bytes(link_bytes_per_us: f64) -> usize {
    ((link_bytes_per_us * POSTED_US) as usize).max(1)
}

/// So many bytes may lie in a connection that have not left.
pub fn unsent_bytes(link_bytes_per_us: f64) -> usize {
    ((link_bytes_per_us * UNSENT_US) as usize).max(LEAST_UNSENT)
}
