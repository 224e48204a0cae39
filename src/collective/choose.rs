//! `auto`: which algorithm for which length and number of ranks.
//!
//! The choice depends on nothing but the bytes and the number of ranks, in arithmetic that IEEE 754 defines to the last
//! bit, so that all ranks choose alike without a message. Each algorithm's time is predicted by a model, and the least
//! wins. In the model
//!
//! - `A` is the time from a message's first byte leaving to its arriving, `LATENCY_US`;
//! - `O` is what it costs a rank to issue and take a message, `MESSAGE_US`;
//! - `B` is a link's rate in each direction, `LINK_BYTES_PER_US`;
//! - `C` is the rate at which a rank adds, `SUM_BYTES_PER_US`;
//! - `S` is the buffer's bytes, `n` the ranks, `q = ceil(log2 n)`, `R = 2 (n-1)/n S/B` the least time on the wire.
//!
//! | algorithm | time |
//! | --- | --- |
//! | ring | `2 (n-1) (A + O) + R + (n-1)/n S/C` |
//! | direct | `2 A + 2 (n-1) O + F R + (n-1)/n S/C` |
//! | circulant | `2 q (A + O) + F R + (n-1)/n S/C` |
//! | doubling | `rounds (A + O + S/B) + log2(core) S/C`, the rounds and the core as in `doubling` |
//! | tree | `2 floor(log2 n) A + 2 q O + 2 q S/B + q S/C`: never the least, it is there for comparison |
//!
//! `F` is `FAN_FACTOR`: where a rank's partners change, or are many, flows meet in the switch and wait for one another,
//! which the ring's fixed pairs do not. Without it direct and circulant would look as good as the ring for long
//! buffers. The rates lie between those of 1 and 10 Gbit/s Ethernet with TCP; a network that is off by a factor moves
//! the boundaries by about that factor, and near a boundary both sides take about as long.
//!
//! What follows: the smallest buffers double, as long as no rank must be folded in; then a few ranks go direct and many
//! ranks go circulant; the longest buffers take the ring, the longer the more ranks there are. For instance:
//!
//! | ranks | doubling up to | then | ring from |
//! | --- | --- | --- | --- |
//! | 2 | 810 KB | | 810 KB |
//! | 3 | never | direct | 367 KB |
//! | 4 | 34 KB | direct | 650 KB |
//! | 8 | 26 KB | direct | 1.65 MB |
//! | 16 | 30 KB | circulant | 3.8 MB |
//! | 64 | 23 KB | circulant | 18.9 MB |
//! | 1000 | 16 KB | circulant | 320 MB |

use super::plan::Algorithm;

/// `A`, in microseconds.
const LATENCY_US: f64 = 30.0;
/// `O`, in microseconds.
const MESSAGE_US: f64 = 10.0;
/// `B`: 400 MB/s, the geometric mean of 1 and 10 Gbit/s.
const LINK_BYTES_PER_US: f64 = 400.0;
/// `C`: the rate of one core adding from memory while its neighbours do the same.
const SUM_BYTES_PER_US: f64 = 10_000.0;
/// `F`: the factor on the wire's time where flows meet.
const FAN_FACTOR: f64 = 1.05;

/// The algorithm that `auto` stands for: the one predicted to sum `len_bytes` over `size` ranks soonest. The same on
/// every rank, as it follows from the arguments alone.
pub fn choose(len_bytes: usize, size: usize) -> Algorithm {
    let mut best = (Algorithm::Doubling, predicted_us(Algorithm::Doubling, len_bytes, size));
    for algorithm in [Algorithm::Direct, Algorithm::Circulant, Algorithm::Ring] {
        let time = predicted_us(algorithm, len_bytes, size);
        if time < best.1 {
            best = (algorithm, time);
        }
    }
    best.0
}

/// The model's time for an allreduce, in microseconds.
fn predicted_us(algorithm: Algorithm, len_bytes: usize, size: usize) -> f64 {
    if size < 2 {
        return 0.0;
    }
    let (bytes, ranks) = (len_bytes as f64, size as f64);
    let rounds = f64::from(size.next_power_of_two().ilog2());
    let floor = f64::from(size.ilog2());
    let once = (ranks - 1.0) / ranks * bytes;
    let wire = 2.0 * once / LINK_BYTES_PER_US;
    let sum = once / SUM_BYTES_PER_US;
    match algorithm {
        Algorithm::Ring => 2.0 * (ranks - 1.0) * (LATENCY_US + MESSAGE_US) + wire + sum,
        Algorithm::Direct => 2.0 * LATENCY_US + 2.0 * (ranks - 1.0) * MESSAGE_US + wire * FAN_FACTOR + sum,
        Algorithm::Circulant => 2.0 * rounds * (LATENCY_US + MESSAGE_US) + wire * FAN_FACTOR + sum,
        Algorithm::Doubling => {
            let folding = if size.is_power_of_two() { 0.0 } else { 2.0 };
            (floor + folding) * (LATENCY_US + MESSAGE_US + bytes / LINK_BYTES_PER_US) + floor * bytes / SUM_BYTES_PER_US
        }
        Algorithm::Tree => {
            2.0 * floor * LATENCY_US
                + 2.0 * rounds * (MESSAGE_US + bytes / LINK_BYTES_PER_US)
                + rounds * bytes / SUM_BYTES_PER_US
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_goes_from_few_messages_to_few_bytes_as_buffers_grow() {
        assert_eq!(choose(4, 8), Algorithm::Doubling);
        assert_eq!(choose(64 << 10, 8), Algorithm::Direct);
        assert_eq!(choose(256 << 10, 64), Algorithm::Circulant);
        assert_eq!(choose(100_000_000, 8), Algorithm::Ring);
        assert_eq!(choose(1_000_000, 1000), Algorithm::Circulant);
        assert_eq!(choose(100_000_000, 1000), Algorithm::Circulant);
    }

    #[test]
    fn a_ring_once_chosen_stays_chosen_for_longer_buffers() {
        for size in 2..200 {
            let lens = (0..36).map(|bits| 1usize << bits);
            let chosen: Vec<Algorithm> = lens.map(|len_bytes| choose(len_bytes, size)).collect();
            let first = chosen.iter().position(|algorithm| *algorithm == Algorithm::Ring);
            let first = first.unwrap_or_else(|| panic!("{size} ranks never use the ring"));
            assert!(chosen[first..].iter().all(|algorithm| *algorithm == Algorithm::Ring), "{size}: {chosen:?}");
        }
    }

    #[test]
    fn the_documented_boundaries_are_where_the_choice_changes() {
        use Algorithm::{Circulant, Direct, Doubling, Ring};
        let boundaries = [
            (2, 810e3, Doubling, Ring),
            (3, 367e3, Direct, Ring),
            (4, 34e3, Doubling, Direct),
            (4, 650e3, Direct, Ring),
            (8, 26e3, Doubling, Direct),
            (8, 1.65e6, Direct, Ring),
            (16, 30e3, Doubling, Circulant),
            (16, 3.8e6, Circulant, Ring),
            (64, 23e3, Doubling, Circulant),
            (64, 18.9e6, Circulant, Ring),
            (1000, 16e3, Doubling, Circulant),
            (1000, 320e6, Circulant, Ring),
        ];
        for (size, len_bytes, below, above) in boundaries {
            assert_eq!(choose((len_bytes * 0.95) as usize, size), below, "{size} ranks below {len_bytes}");
            assert_eq!(choose((len_bytes * 1.05) as usize, size), above, "{size} ranks above {len_bytes}");
        }
        assert_eq!(choose(1, 3), Direct);
    }

    #[test]
    fn no_length_and_one_rank_have_a_choice_too() {
        for (len_bytes, size) in [(0, 1), (0, 2), (1, 1), (usize::MAX, 2), (usize::MAX, 1)] {
            assert_ne!(choose(len_bytes, size), Algorithm::Tree);
        }
    }

    #[test]
    fn the_tree_is_never_the_best() {
        for size in 2..70 {
            for bits in 0..30 {
                let time = predicted_us(choose(1 << bits, size), 1 << bits, size);
                assert!(time <= predicted_us(Algorithm::Tree, 1 << bits, size), "{size} ranks, 2^{bits} bytes");
            }
        }
    }
}
