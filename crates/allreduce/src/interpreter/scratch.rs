//! Host memory for bytes that arrive to be added, and for bytes that are sent and are in no buffer. It is
//! kept for later messages.

use std::collections::BTreeMap;

use ringpull_base::Buffer;

/// Buffers, kept by size: powers of two.
#[derive(Default)]
pub struct Scratch {
    free: BTreeMap<usize, Vec<Buffer>>,
}

impl Scratch {
    /// A buffer of at least this length, with bytes of no meaning.
    pub fn take(&mut self, len_bytes: usize) -> Buffer {
        let size = len_bytes.next_power_of_two().max(4096);
        self.free.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| Buffer::zeroed(size))
    }

    /// Gives back a buffer that was taken.
    pub fn put(&mut self, buffer: Buffer) {
        self.free.entry(buffer.bytes().len()).or_default().push(buffer);
    }
}
