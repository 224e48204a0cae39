//! `auto`: the algorithm and the segment size for a length and a number of ranks.
//!
//! The choice is a pure function of the cluster's [`Model`], the bytes and the number of ranks. The time of
//! each algorithm is predicted with each size of segment, and the least time is chosen. Of equal times, the
//! algorithm that is first in [`Algorithm::ALL`] is chosen. Ranks with the same model make the same choice
//! without a message.
//!
//! With the default model, for instance:
//!
//! | ranks | doubling up to | then | ring from |
//! | --- | --- | --- | --- |
//! | 2 | 405 KB | | 405 KB |
//! | 3 | never | direct | 60 KB |
//! | 4 | 34 KB | direct | 163 KB |
//! | 8 | 26 KB | direct | 503 KB |
//! | 16 | 30 KB | circulant | 1.25 MB |
//! | 64 | 24 KB | circulant | 6.9 MB |

use super::model::Model;
use super::{Algorithm, Links, Parts, Plan, ReduceScatter, allreduce, allreduce_weighted};

/// Segment sizes, longest first. Of equal predictions the longest segment wins.
const SEGMENTS: [usize; 5] = [256 << 10, 128 << 10, 64 << 10, 32 << 10, 16 << 10];

/// The most bytes of a message, and whether shorter messages may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// The largest message for which the transport is set up.
    pub most_bytes: usize,
    /// True if the user has set `most_bytes`, so that it is used unchanged.
    pub is_fixed: bool,
}

/// An algorithm, the best size of segments for it, and the predicted time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The most bytes of one message.
    pub segment_bytes: usize,
    /// The time by the model, in microseconds.
    pub time_us: f64,
}

/// Returns the choice of `auto`: the prediction of least time.
pub fn choose(model: &Model, len_bytes: usize, size: usize, segments: Segments) -> Prediction {
    let [first, rest @ ..] = Algorithm::ALL.map(|algorithm| predict(model, algorithm, len_bytes, size, segments));
    rest.into_iter().fold(first, |best, other| if other.time_us < best.time_us { other } else { best })
}

/// Returns the plan that `auto` gives `rank`, and the most bytes of one of its messages. The plan is that of
/// [`choose`], or one of weighted parts if `links` differ or have helpers and it is predicted to be faster.
/// The ranks from `size` on are the helpers. A helper's plan is empty if it has no part in the sum.
pub fn auto(
    (model, links): (&Model, Option<&Links>),
    (rank, size): (usize, usize),
    (len, element_bytes): (usize, usize),
    segments: Segments,
) -> (Plan, usize) {
    let len_bytes = len * element_bytes;
    let chosen = choose(model, len_bytes, size, segments);
    if let Some(links) = links.filter(|links| links.len() == size + links.helpers()) {
        // With helpers every rank has its own host.
        let model = &if links.helpers() > 0 { model.apart() } else { *model };
        let weighted = choose_weighted(model, links, len_bytes, segments);
        if weighted.time_us < choose(model, len_bytes, size, segments).time_us {
            return (allreduce_weighted(rank, links, len, weighted.turns), segments.most_bytes);
        }
    }
    if rank >= size {
        return (Plan::new(Parts::even(len, 1)), chosen.segment_bytes);
    }
    (allreduce(chosen.algorithm, rank, size, len), chosen.segment_bytes)
}

/// The number of turns of a sum of weighted parts, and the predicted time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedChoice {
    /// The turns.
    pub turns: usize,
    /// The time by the model, in microseconds.
    pub time_us: f64,
}

/// Returns the number of turns with the least predicted time, for parts that suit the `links`.
pub fn choose_weighted(model: &Model, links: &Links, len_bytes: usize, segments: Segments) -> WeightedChoice {
    /// The least gain for which longer segments are chosen. Longer segments have a cost that the model does
    /// not contain, because a contribution is some turns ahead of its sum.
    const WORTH: f64 = 1.1;
    let longest = links.shape().longest_share * len_bytes as f64;
    let with = |segment_bytes: usize| {
        let turns = (longest / segment_bytes.max(1) as f64).ceil().max(1.0) as usize;
        WeightedChoice { turns, time_us: model.predicted_weighted_us(links, len_bytes, turns) }
    };
    let shorter = SEGMENTS.into_iter().rev().filter(|bytes| !segments.is_fixed && *bytes < segments.most_bytes);
    let all = shorter.chain([segments.most_bytes]).map(with);
    all.reduce(|best, longer| if WORTH * longer.time_us < best.time_us { longer } else { best })
        .unwrap_or_else(|| with(segments.most_bytes))
}

/// Returns the least predicted time of `algorithm` over all sizes of segments.
pub fn predict(model: &Model, algorithm: Algorithm, len_bytes: usize, size: usize, segments: Segments) -> Prediction {
    let with = |segment_bytes| Prediction {
        algorithm,
        segment_bytes,
        time_us: model.predicted_us(algorithm, len_bytes, size, segment_bytes),
    };
    let shorter = SEGMENTS.into_iter().filter(|bytes| !segments.is_fixed && *bytes < segments.most_bytes);
    shorter
        .map(with)
        .fold(with(segments.most_bytes), |best, other| if other.time_us < best.time_us { other } else { best })
}

/// Returns the faster of two reduce-scatters, and the most bytes of one message. Each is the first half of an
/// allreduce that takes twice as long, so the quicker allreduce decides.
pub fn choose_reduce_scatter(
    model: &Model,
    len_bytes: usize,
    size: usize,
    segments: Segments,
) -> (ReduceScatter, usize) {
    let [ring, direct] =
        [Algorithm::Ring, Algorithm::Direct].map(|algorithm| predict(model, algorithm, len_bytes, size, segments));
    if direct.time_us < ring.time_us {
        (ReduceScatter::Direct, direct.segment_bytes)
    } else {
        (ReduceScatter::Ring, ring.segment_bytes)
    }
}

/// The most time that a bucket's bytes may take, in units of the time of the shortest sum. A bucket saves
/// about one such unit for each of its sums except one. Its last sum waits for all bytes of the bucket, and
/// the step waits too if this sum is the last of the step.
const WORTH: f64 = 8.0;

impl Model {
    /// Returns the most bytes of a bucket of short sums over `size` ranks. A longer bucket does not pay.
    pub fn bucket_bytes(&self, size: usize, segments: Segments) -> usize {
        const LONG: usize = 16 << 20;
        let time_us = |len_bytes| choose(self, len_bytes, size, segments).time_us;
        let us_per_byte = (time_us(2 * LONG) - time_us(LONG)) / LONG as f64;
        if us_per_byte > 0.0 { (WORTH * time_us(1) / us_per_byte) as usize } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkRates;

    const SEGMENTS: Segments = Segments { most_bytes: 256 << 10, is_fixed: false };

    fn even(rates: &[f64]) -> Vec<LinkRates> {
        rates.iter().copied().map(LinkRates::both).collect()
    }

    fn chosen(model: &Model, len_bytes: usize, size: usize) -> Algorithm {
        choose(model, len_bytes, size, SEGMENTS).algorithm
    }

    #[test]
    fn the_choice_goes_from_few_messages_to_few_bytes_as_buffers_grow() {
        let model = Model::default();
        assert_eq!(chosen(&model, 4, 8), Algorithm::Doubling);
        assert_eq!(chosen(&model, 64 << 10, 8), Algorithm::Direct);
        assert_eq!(chosen(&model, 256 << 10, 64), Algorithm::Circulant);
        assert_eq!(chosen(&model, 100_000_000, 8), Algorithm::Ring);
        assert_eq!(chosen(&model, 1_000_000, 1000), Algorithm::Circulant);
    }

    #[test]
    fn the_documented_boundaries_are_where_the_choice_changes() {
        use Algorithm::{Circulant, Direct, Doubling, Ring};
        let boundaries = [
            (2, 405e3, Doubling, Ring),
            (3, 60e3, Direct, Ring),
            (4, 34e3, Doubling, Direct),
            (4, 163e3, Direct, Ring),
            (8, 26e3, Doubling, Direct),
            (8, 503e3, Direct, Ring),
            (16, 30e3, Doubling, Circulant),
            (16, 1.25e6, Circulant, Ring),
            (64, 24e3, Doubling, Circulant),
            (64, 6.9e6, Circulant, Ring),
        ];
        let model = Model::default();
        for (size, len_bytes, below, above) in boundaries {
            assert_eq!(chosen(&model, (len_bytes * 0.95) as usize, size), below, "{size} ranks below {len_bytes}");
            assert_eq!(chosen(&model, (len_bytes * 1.05) as usize, size), above, "{size} ranks above {len_bytes}");
        }
    }

    #[test]
    fn links_that_are_not_alike_have_weighted_parts_where_bytes_count() {
        let of = |rates: &[f64], len| {
            let links = Links::of(&even(rates));
            let plan = |links| auto((&Model::default(), links), (0, rates.len()), (len, 4), SEGMENTS);
            plan(links.as_ref()) != plan(None)
        };
        let one_slow = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!([of(&one_slow, 100), of(&one_slow, 25_000_000), of(&[1.0; 8], 25_000_000)], [false, true, false]);
        let links = Links::of(&even(&one_slow)).unwrap();
        let bound_us = 1e8 / Model::default().long_bytes_per_us;
        let weighted = choose_weighted(&Model::default(), &links, 100_000_000, SEGMENTS);
        assert!((1.0..1.25).contains(&(weighted.time_us / bound_us)), "{weighted:?} of {bound_us}");
        // Links for another number of ranks are not used.
        let seven = auto((&Model::default(), Some(&links)), (0, 7), (25_000_000, 4), SEGMENTS);
        assert_eq!(seven, auto((&Model::default(), None), (0, 7), (25_000_000, 4), SEGMENTS));
    }

    #[test]
    fn helpers_take_part_where_bytes_count_and_have_an_empty_plan_elsewhere() {
        for (workers, helpers) in [(3, 2), (8, 4), (8, 8), (4, 8)] {
            let links = Links::with_helpers(&even(&vec![1.0; workers + helpers]), helpers);
            // The costs of ranks that share cores would make it slower.
            let busy = Model { shared_message_us: 10.0, shared_us_per_byte: 0.01, ..Model::default() };
            for (len, is_helped) in [(0, false), (100, false), (25_000_000, true)] {
                let of = |rank| auto((&busy, links.as_ref()), (rank, workers), (len, 4), SEGMENTS).0;
                let has_part = |rank: usize| !of(rank).moves.is_empty();
                assert!((workers..workers + helpers).all(|helper| has_part(helper) == is_helped), "{len}");
                assert!((0..workers).all(|worker| has_part(worker) == (len > 0)), "{len}");
            }
        }
    }

    #[test]
    fn short_reduce_scatters_take_one_message_in_a_row_and_long_ones_the_ring() {
        let of = |len_bytes| choose_reduce_scatter(&Model::default(), len_bytes, 8, SEGMENTS).0;
        assert_eq!(
            [of(4), of(100_000), of(100_000_000)],
            [ReduceScatter::Direct, ReduceScatter::Direct, ReduceScatter::Ring]
        );
    }

    #[test]
    fn ranks_that_share_cores_take_the_fewest_messages() {
        let shared = Model { shared_message_us: 10.0, ..Model::default() };
        assert_eq!(chosen(&shared, 4, 8), Algorithm::Star);
        assert_eq!(chosen(&shared, 100_000_000, 8), Algorithm::Ring);
    }

    #[test]
    fn buckets_are_longer_where_messages_are_dear_and_shorter_where_bytes_are() {
        let of = |model: Model, size| model.bucket_bytes(size, SEGMENTS);
        let slow = Model { short_bytes_per_us: 25.0, long_bytes_per_us: 25.0, ..Model::default() };
        let far = Model { latency_us: 300.0, ..Model::default() };
        assert!(of(slow, 8) < 64 << 10, "{}", of(slow, 8));
        assert!((128 << 10..512 << 10).contains(&of(Model::default(), 8)), "{}", of(Model::default(), 8));
        assert!(of(far, 8) > 3 * of(Model::default(), 8), "{}", of(far, 8));
        assert_eq!(of(Model::default(), 1), usize::MAX);
    }

    #[test]
    fn a_segment_that_was_asked_for_is_used_as_it_is() {
        let fixed = Segments { most_bytes: 5000, is_fixed: true };
        for bits in 0..28 {
            assert_eq!(choose(&Model::default(), 1 << bits, 8, fixed).segment_bytes, 5000);
            assert!(choose(&Model::default(), 1 << bits, 8, SEGMENTS).segment_bytes <= 256 << 10);
        }
    }

    #[test]
    fn a_ring_once_chosen_stays_chosen_for_longer_buffers() {
        for size in 2..200 {
            let lens = (0..36).map(|bits| 1usize << bits);
            let chosen: Vec<Algorithm> = lens.map(|len_bytes| chosen(&Model::default(), len_bytes, size)).collect();
            let first = chosen.iter().position(|algorithm| *algorithm == Algorithm::Ring);
            let first = first.unwrap_or_else(|| panic!("{size} ranks never use the ring"));
            assert!(chosen[first..].iter().all(|algorithm| *algorithm == Algorithm::Ring), "{size}: {chosen:?}");
        }
    }

    #[test]
    fn no_length_and_one_rank_have_a_choice_too() {
        for (len_bytes, size) in [(0, 1), (0, 2), (1, 1), (usize::MAX, 2), (usize::MAX, 1)] {
            assert!(choose(&Model::default(), len_bytes, size, SEGMENTS).time_us.is_finite());
        }
    }
}
