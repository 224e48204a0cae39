//! Which server holds which segment of a key: arithmetic alone, the same on every worker.
//!
//! A key shorter than the bound goes whole to one server, which its content names; a longer one is split
//! evenly over all servers. Each server's shard is cut into segments, the messages that travel: small enough
//! that the value of the first comes back long before the last has left, large enough that a message's own
//! cost does not show.
//!
//! Cuts fall between **units**: a row of the key, or an equal piece of one where rows are long. So a
//! row-sparse gradient is a list of units in each segment. A key that is mostly pushed and pulled by rows has
//! longer segments: each takes a message, however few of its rows are in it. Segments are numbered so that servers take turns,
//! and all links are busy at once.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::Key;

/// The shortest and the longest segment, in bytes, except a shard's last one.
const SEGMENT_BYTES: (usize, usize) = (32 << 10, 128 << 10);

/// No segment is longer, in bytes. Those of a key that is pushed by rows are as long, where its shards are.
pub const MAX_SEGMENT_BYTES: usize = 2 << 20;

/// A shard has about this many segments, so that filling and draining the pipeline costs little, and a few
/// segments of each worker under way are not more than a switch can hold.
const SEGMENTS_PER_SHARD: usize = 256;

/// The longest unit, in bytes.
const UNIT_BYTES: usize = 32 << 10;

/// One segment of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The server that holds it; the first one, if several do ([`holders`]).
    pub server: usize,
    /// Its units within the key.
    pub units: Range<usize>,
}

/// How a key is cut up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The size of a unit in bytes.
    pub unit_bytes: usize,
    /// The units of a row of the key.
    pub units_per_row: usize,
    /// The segments; every key has at least one.
    pub segments: Vec<Segment>,
}

/// The server that holds a key which is not split: MXNet's rule, strings being numbered by their content.
pub fn home(key: &Key, servers: usize) -> usize {
    let number = match key {
        Key::Int(number) => number.unsigned_abs(),
        Key::Str(name) => xxh3_64(name.as_bytes()) >> 16,
    };
    (number.wrapping_mul(9973) % servers as u64) as usize
}

/// The servers that hold the shard of server `shard` if each value is on `replicas`, in the order in which
/// they answer for it.
pub fn holders(shard: usize, servers: usize, replicas: usize) -> impl Iterator<Item = usize> {
    (0..replicas).map(move |replica| (shard + replica) % servers)
}

impl Layout {
    /// The layout of a key of `shape` and `element_bytes` over `servers`, split from `bound` elements up.
    pub fn new(key: &Key, shape: &[usize], element_bytes: usize, servers: usize, bound: usize) -> Self {
        let wanted = |bytes: usize| (bytes / SEGMENTS_PER_SHARD).clamp(SEGMENT_BYTES.0, SEGMENT_BYTES.1);
        Layout::cut(key, shape, element_bytes, (servers, bound), wanted)
    }

    /// The same of a key that is mostly pushed and pulled by rows.
    pub fn by_rows(key: &Key, shape: &[usize], element_bytes: usize, servers: usize, bound: usize) -> Self {
        Layout::cut(key, shape, element_bytes, (servers, bound), |_| MAX_SEGMENT_BYTES)
    }

    /// A shard of so many bytes is cut into segments of at most what `wanted` says.
    fn cut(
        key: &Key,
        shape: &[usize],
        element_bytes: usize,
        (servers, bound): (usize, usize),
        wanted: impl Fn(usize) -> usize,
    ) -> Self {
        let len: usize = shape.iter().product();
        let home = home(key, servers);
        if len == 0 {
            let segments = vec![Segment { server: home, units: 0..0 }];
            return Layout { unit_bytes: element_bytes, units_per_row: 0, segments };
        }
        let row_len: usize = shape.iter().skip(1).product();
        let units_per_row = pieces(row_len, UNIT_BYTES / element_bytes);
        let unit_bytes = row_len / units_per_row * element_bytes;
        let units = len * element_bytes / unit_bytes;
        let mut shards: Vec<(usize, std::vec::IntoIter<Range<usize>>)> = if len < bound || servers == 1 {
            vec![(home, cut(0..units, unit_bytes, &wanted).into_iter())]
        } else {
            let edge = |server| (units as u128 * server as u128 / servers as u128) as usize;
            // The first part goes to the home server, so that keys with few units do not all meet on server
            // 0.
            (0..servers)
                .map(|part| ((home + part) % servers, cut(edge(part)..edge(part + 1), unit_bytes, &wanted).into_iter()))
                .collect()
        };
        let mut segments = Vec::new();
        loop {
            let before = segments.len();
            for (server, ranges) in &mut shards {
                segments.extend(ranges.next().map(|units| Segment { server: *server, units }));
            }
            if segments.len() == before {
                return Layout { unit_bytes, units_per_row, segments };
            }
        }
    }

    /// The bytes of a segment within the key.
    pub fn bytes_of(&self, segment: usize) -> Range<usize> {
        let units = &self.segments[segment].units;
        units.start * self.unit_bytes..units.end * self.unit_bytes
    }

    /// The units that the rows `ids` (ascending, each once) are made of.
    pub fn units_of_rows(&self, ids: &[i64]) -> Vec<usize> {
        let per_row = self.units_per_row;
        ids.iter().flat_map(|id| (0..per_row).map(move |piece| *id as usize * per_row + piece)).collect()
    }

    /// For each segment that holds any of `units` (ascending, each once): its index and the positions in
    /// `units`.
    pub fn split(&self, units: &[usize]) -> Vec<(usize, Range<usize>)> {
        debug_assert!(units.is_sorted_by(|before, after| before < after), "units ascend, each once");
        let found = self.segments.iter().enumerate().map(|(index, segment)| {
            let start = units.partition_point(|unit| *unit < segment.units.start);
            let end = units.partition_point(|unit| *unit < segment.units.end);
            (index, start..end)
        });
        found.filter(|(_, positions)| !positions.is_empty()).collect()
    }
}

/// The smallest number of equal pieces of at most `limit` elements that `len` elements can be cut into.
fn pieces(len: usize, limit: usize) -> usize {
    let least = len.div_ceil(limit);
    let mut best = len;
    for small in (1..).take_while(|small| small * small <= len).filter(|small| len.is_multiple_of(*small)) {
        for divisor in [small, len / small] {
            if divisor >= least {
                best = best.min(divisor);
            }
        }
    }
    best
}

fn cut(units: Range<usize>, unit_bytes: usize, wanted: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let step = (wanted(units.len() * unit_bytes) / unit_bytes).max(1);
    units.clone().step_by(step).map(|start| start..units.end.min(start + step)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_integer_keys_follow_mxnets_rule_and_strings_their_content() {
        assert_eq!((0..4).map(|key| home(&Key::Int(key), 4)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(home(&Key::from("fc1"), 7), home(&Key::from("fc1".to_owned()), 7));
        let used: std::collections::BTreeSet<_> = (0..40).map(|i| home(&Key::from(format!("w{i}")), 4)).collect();
        assert_eq!(used.len(), 4);
    }

    #[test]
    fn long_rows_are_cut_into_equal_pieces() {
        let layout = Layout::new(&Key::Int(0), &[2, 1 << 20], 4, 2, 1000);
        assert_eq!((layout.units_per_row, layout.unit_bytes), (128, 32 << 10));
        assert_eq!(layout.units_of_rows(&[1]), (128..256).collect::<Vec<_>>());
    }

    #[test]
    fn a_large_key_has_many_segments_on_every_server() {
        let layout = Layout::new(&Key::Int(3), &[6_250_000], 4, 8, 1_000_000);
        for server in 0..8 {
            let count = layout.segments.iter().filter(|segment| segment.server == server).count();
            assert!((94..=98).contains(&count), "{count} segments on server {server}");
        }
        let first: std::collections::BTreeSet<_> = layout.segments[..8].iter().map(|segment| segment.server).collect();
        assert_eq!(first.len(), 8, "the servers take turns");
    }

    #[test]
    fn a_key_that_is_pushed_by_rows_has_few_segments() {
        let shape = [100_000, 64];
        let layout = Layout::by_rows(&Key::Int(3), &shape, 4, 8, 1_000_000);
        assert_eq!(layout.segments.len(), 16, "two on each server");
        assert_eq!(Layout::by_rows(&Key::Int(3), &[1_000_000, 64], 4, 8, 1_000_000).segments.len(), 128);
    }

    proptest! {
        #[test]
        fn segments_tile_every_key(
            rows in 0usize..5000, row_len in 1usize..300, servers in 1usize..9, bound in 1usize..100_000, key in -5i64..50,
            by_rows in any::<bool>(),
        ) {
            let new = if by_rows { Layout::by_rows } else { Layout::new };
            let layout = new(&Key::Int(key), &[rows, row_len], 4, servers, bound);
            let mut ranges: Vec<_> = (0..layout.segments.len()).map(|index| layout.bytes_of(index)).collect();
            ranges.sort_by_key(|range| range.start);
            let mut at = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, at);
                at = range.end;
            }
            prop_assert_eq!(at, rows * row_len * 4);
            prop_assert!(layout.segments.iter().all(|segment| segment.server < servers));
            prop_assert!(ranges.iter().all(|range| range.len() <= MAX_SEGMENT_BYTES));
        }

        #[test]
        fn every_row_is_found_in_exactly_one_place(rows in 1usize..3000, row_len in 1usize..9000, servers in 1usize..5) {
            let layout = Layout::new(&Key::Int(1), &[rows, row_len], 4, servers, 1000);
            let mut ids = vec![0, rows as i64 / 2, rows as i64 - 1];
            ids.dedup();
            let units = layout.units_of_rows(&ids);
            let split = layout.split(&units);
            prop_assert_eq!(split.iter().map(|(_, positions)| positions.len()).sum::<usize>(), units.len());
            for (segment, positions) in split {
                prop_assert!(units[positions].iter().all(|unit| layout.segments[segment].units.contains(unit)));
            }
        }
    }
}
