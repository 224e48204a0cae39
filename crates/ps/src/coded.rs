//! A compressed gradient on its way to the servers. Each segment is compressed separately, since segments may
//! go to different servers.

use ringpull_kernels::compress::{Compression, Feedback};

use crate::shard::Layout;

/// The codes of every segment of a key.
pub struct KeyCodes {
    pub(crate) compression: Compression,
    segments: Vec<Vec<u8>>,
}

impl KeyCodes {
    /// Encodes `gradient` together with the residual in `feedback`, for each segment of `layout`.
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
