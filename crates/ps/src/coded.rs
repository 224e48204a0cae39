//! A compressed gradient on its way to the servers: each segment by itself, since each may go to another
//! server.

use ringpull_kernels::compress::{Compression, Feedback};

use crate::shard::Layout;

/// The codes of every segment of a key.
pub struct KeyCodes {
    pub(crate) compression: Compression,
    segments: Vec<Vec<u8>>,
}

impl KeyCodes {
    /// Encodes `gradient`, whose elements `layout` cuts up, and what `feedback` kept.
    pub fn new(compression: Compression, gradient: &[f32], feedback: &mut Feedback, layout: &Layout) -> Self {
        let element = size_of::<f32>();
        let ranges = (0..layout.segments.len()).map(|segment| layout.bytes_of(segment));
        let ranges = ranges.map(|bytes| bytes.start / element..bytes.end / element);
        KeyCodes { compression, segments: compression.encode_parts(gradient, feedback, ranges) }
    }

    pub(crate) fn segment(&self, segment: usize) -> &[u8] {
        &self.segments[segment]
    }
}
