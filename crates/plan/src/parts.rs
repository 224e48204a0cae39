//! The division of a buffer among ranks.
//!
//! A buffer of `len` elements is cut into consecutive *parts*. Plans speak of parts by number only, so that
//! one plan serves every length, and the interpreter asks [`Parts`] which elements a range of parts holds.
//! Parts may be empty: with fewer elements than ranks some ranks have nothing to sum, and no message is sent
//! for them.

use std::ops::Range;

/// Boundaries, in elements, of the parts of a buffer: part `p` is `bounds[p]..bounds[p + 1]`.
///
/// The parts tile the buffer: they are consecutive, they do not overlap, and together they hold every
/// element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parts {
    bounds: Vec<usize>,
}

impl Parts {
    /// `count` parts of nearly one length: the first `len % count` parts hold one element more than the
    /// others.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn even(len: usize, count: usize) -> Self {
        assert!(count > 0, "a buffer has at least one part");
        let (shortest, longer) = (len / count, len % count);
        Parts { bounds: (0..=count).map(|part| part * shortest + part.min(longer)).collect() }
    }

    /// Parts with the given boundaries, for instance of an allgather in which every rank brings its own
    /// length.
    ///
    /// # Panics
    /// If there are fewer than two boundaries, the first is not 0, or one is below the one before it.
    pub fn of(bounds: Vec<usize>) -> Self {
        assert!(bounds.len() >= 2 && bounds[0] == 0, "boundaries begin with 0 and enclose at least one part");
        assert!(bounds.is_sorted(), "boundaries of parts do not decrease");
        Parts { bounds }
    }

    /// Parts of these lengths.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_lens(lens: impl IntoIterator<Item = usize>) -> Self {
        let ends = lens.into_iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        Parts::of(std::iter::once(0).chain(ends).collect())
    }

    /// The number of parts, at least 1.
    pub fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The number of elements in all parts together.
    pub fn len(&self) -> usize {
        self.bounds[self.count()]
    }

    /// Returns true if there is no element at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the range of elements of consecutive parts.
    ///
    /// # Panics
    /// If a part does not exist, or the range is reversed.
    pub fn range(&self, parts: Range<usize>) -> Range<usize> {
        assert!(parts.start <= parts.end && parts.end <= self.count(), "parts {parts:?} of {}", self.count());
        self.bounds[parts.start]..self.bounds[parts.end]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_parts_tile(parts: &Parts, len: usize) {
        assert_eq!(parts.len(), len);
        assert_eq!(parts.is_empty(), len == 0);
        assert_eq!(parts.range(0..parts.count()), 0..len);
        let mut next = 0;
        for part in 0..parts.count() {
            let range = parts.range(part..part + 1);
            assert_eq!(range.start, next, "part {part} begins where the one before it ends");
            next = range.end;
        }
        assert_eq!(next, len);
    }

    proptest! {
        #[test]
        fn even_parts_tile_every_length_and_differ_by_at_most_one(len in 0usize..100_000, count in 1usize..70) {
            let parts = Parts::even(len, count);
            prop_assert_eq!(parts.count(), count);
            assert_parts_tile(&parts, len);
            let lens: Vec<usize> = (0..count).map(|part| parts.range(part..part + 1).len()).collect();
            prop_assert!(lens.is_sorted_by(|a, b| a >= b), "the longer parts come first: {:?}", lens);
            prop_assert!(lens[0] - lens[count - 1] <= 1);
        }

        #[test]
        fn uneven_parts_tile_their_sum(lens in prop::collection::vec(0usize..50, 1..40)) {
            let parts = Parts::of_lens(lens.clone());
            prop_assert_eq!(parts.count(), lens.len());
            assert_parts_tile(&parts, lens.iter().sum());
            for (part, len) in lens.iter().enumerate() {
                prop_assert_eq!(parts.range(part..part + 1).len(), *len);
            }
        }
    }

    #[test]
    #[should_panic(expected = "do not decrease")]
    fn boundaries_that_decrease_are_refused() {
        let _parts = Parts::of(vec![0, 4, 3]);
    }

    #[test]
    #[should_panic(expected = "parts 2..4 of 3")]
    fn a_part_that_does_not_exist_is_refused() {
        let _range = Parts::even(9, 3).range(2..4);
    }
}
