//! The layout of several jobs' memory in a bucket.
//!
//! A plain bucket has one job's memory behind another's. In a divided bucket each rank owns a part of every
//! job's memory, as it does if the job is sent alone. A divided bucket has first rank 0's parts of all jobs,
//! then rank 1's parts, and so on, so that a rank's part of the bucket is in one piece:
//!
//! ```text
//!   jobs a, b on two ranks:    a of rank 0 | b of rank 0 | a of rank 1 | b of rank 1
//! ```

use std::ops::Range;

use ringpull_plan::Parts;

/// The layout of several jobs' memory, in elements.
pub(super) struct Layout {
    element: usize,
    /// The owners' parts of each job's memory.
    jobs: Vec<Parts>,
    owners: usize,
}

impl Layout {
    /// Returns the layout of jobs with memory of the lengths `lens_bytes`, in elements of `element` bytes.
    pub(super) fn new(lens_bytes: impl Iterator<Item = usize>, element: usize, owners: usize) -> Self {
        Layout { element, jobs: lens_bytes.map(|len| Parts::even(len / element, owners)).collect(), owners }
    }

    /// The bytes of an element.
    pub(super) fn element(&self) -> usize {
        self.element
    }

    /// The bytes of the whole bucket.
    pub(super) fn len_bytes(&self) -> usize {
        self.jobs.iter().map(|parts| parts.len() * self.element).sum()
    }

    /// The parts of the bucket, in elements.
    pub(super) fn parts(&self) -> Parts {
        let of = |owner: usize| self.jobs.iter().map(|parts| parts.range(owner..owner + 1).len()).sum();
        Parts::of_lens((0..self.owners).map(of))
    }

    /// The pieces of the bucket in their order: a job, and a range of its memory in bytes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        (0..self.owners).flat_map(|owner| self.pieces_of(owner))
    }

    /// The pieces of one owner.
    pub(super) fn pieces_of(&self, owner: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let piece = move |parts: &Parts| {
            let range = parts.range(owner..owner + 1);
            range.start * self.element..range.end * self.element
        };
        self.jobs.iter().map(piece).enumerate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_has_the_owners_behind_one_another_and_each_owner_the_jobs() {
        let layout = Layout::new([12, 4].into_iter(), 4, 2);
        assert_eq!(layout.pieces().collect::<Vec<_>>(), [(0, 0..8), (1, 0..4), (0, 8..12), (1, 4..4)]);
        assert_eq!((layout.len_bytes(), layout.parts()), (16, Parts::of(vec![0, 3, 4])));
    }

    proptest! {
        #[test]
        fn the_pieces_tile_every_job_and_the_parts_the_bucket(
            lens in prop::collection::vec(0usize..100, 0..10),
            owners in 1usize..9,
        ) {
            let layout = Layout::new(lens.iter().map(|len| len * 2), 2, owners);
            for (job, len) in lens.iter().enumerate() {
                let mut end = 0;
                for (_, piece) in layout.pieces().filter(|(of, _)| *of == job) {
                    prop_assert_eq!(piece.start, end);
                    end = piece.end;
                }
                prop_assert_eq!(end, len * 2);
            }
            for owner in 0..owners {
                let of_owner: usize = layout.pieces_of(owner).map(|(_, piece)| piece.len()).sum();
                prop_assert_eq!(layout.parts().range(owner..owner + 1).len() * 2, of_owner);
            }
            prop_assert_eq!(layout.parts().len() * 2, layout.len_bytes());
        }
    }
}
