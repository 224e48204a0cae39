//! The division of a tensor over the devices of a process.

use std::ops::Range;

use ringpull_kernels::compress::Codec;

/// The division of a tensor's elements into equal parts. The last part also has the remainder. Parts of a
/// block ([`Codec::BLOCK`]) or more consist of whole blocks, so that the codes of all parts together are the
/// codes of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    len: usize,
    size_bytes: usize,
    count: usize,
}

impl Layout {
    /// Returns the layout of `len` elements of `size_bytes` over `count` devices.
    pub fn new(len: usize, size_bytes: usize, count: usize) -> Self {
        Layout { len, size_bytes, count }
    }

    /// Returns the layout with another size of elements.
    #[must_use]
    pub fn sized(self, size_bytes: usize) -> Self {
        Layout { size_bytes, ..self }
    }

    /// The size of the whole.
    pub fn len_bytes(&self) -> usize {
        self.len * self.size_bytes
    }

    /// The size of an element.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns the range of bytes of `device`'s part.
    pub fn bytes(&self, device: usize) -> Range<usize> {
        let elements = self.elements(device);
        elements.start * self.size_bytes..elements.end * self.size_bytes
    }

    /// Returns the pieces of `range`, a range of bytes of the whole. A piece is a device, a range of bytes in
    /// its part, and a range of bytes in `range`.
    pub fn pieces(&self, range: &Range<usize>) -> Vec<(usize, Range<usize>, Range<usize>)> {
        let piece = |device: usize| {
            let part = self.bytes(device);
            let (start, end) = (range.start.max(part.start), range.end.min(part.end));
            (start < end)
                .then(|| (device, start - part.start..end - part.start, start - range.start..end - range.start))
        };
        (0..self.count).filter_map(piece).collect()
    }

    /// Returns the range of elements of `device`'s part.
    pub fn elements(&self, device: usize) -> Range<usize> {
        let end = if device + 1 == self.count { self.len } else { (device + 1) * self.equal_len() };
        device * self.equal_len()..end
    }

    /// Returns true if every part begins with a whole block.
    pub fn is_blocked(&self) -> bool {
        self.count == 1 || self.equal_len().is_multiple_of(Codec::BLOCK)
    }

    fn equal_len(&self) -> usize {
        let equal = self.len / self.count;
        if equal < Codec::BLOCK { equal } else { equal / Codec::BLOCK * Codec::BLOCK }
    }

    /// Returns the bytes of each part except the last, which also has the remainder.
    pub(super) fn equal_bytes(&self) -> usize {
        self.equal_len() * self.size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tile_the_whole_and_pieces_tile_a_range() {
        for (len, count) in [(0, 1), (1, 4), (7, 2), (12, 4), (13, 4), (127, 4), (255, 4)] {
            let layout = Layout::new(len, 4, count);
            let parts: Vec<Range<usize>> = (0..count).map(|device| layout.bytes(device)).collect();
            assert_eq!((parts[0].start, parts[count - 1].end), (0, len * 4));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
        let lens = |len| (0..4).map(|device| Layout::new(len, 4, 4).elements(device).len()).collect::<Vec<_>>();
        assert_eq!((lens(127), lens(255)), (vec![31, 31, 31, 34], vec![32, 32, 32, 159]));
        let blocked = |len, count| Layout::new(len, 4, count).is_blocked();
        assert!(blocked(255, 4) && blocked(3, 4) && blocked(31, 1) && !blocked(127, 4));
        let layout = Layout::new(10, 4, 4);
        assert_eq!(layout.pieces(&(4..20)), [(0, 4..8, 0..4), (1, 0..8, 4..12), (2, 0..4, 12..16)]);
    }
}
