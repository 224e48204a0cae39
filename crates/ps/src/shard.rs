//! Assigns the segments of a key to servers. This is only arithmetic, and gives the same result on every
//! worker.
//!
//! A key shorter than the bound goes to one server, which a hash of the key chooses. A longer key is split
//! evenly over all servers. Each server's shard is cut into segments, which are the messages. A segment is so
//! small that the value of the first comes back long before the last has left, and so large that the cost of
//! a message does not matter.
//!
//! Cuts are between **units**. A unit is a row of the key, or an equal piece of a row if rows are long. So a
//! row-sparse gradient is a list of units in each segment. A message has the rows of one segment or, if they
//! are few, of several segments of a server: a [`Batch`]. Segments are numbered so that servers take turns,
//! and all links are busy at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use ringpull_base::Key;

/// The shortest and the longest segment, in bytes, except a shard's last one.
const SEGMENT_BYTES: (usize, usize) = (32 << 10, 128 << 10);

/// The greatest length of any segment, in bytes.
pub const MAX_SEGMENT_BYTES: usize = 2 << 20;

/// The shortest and the longest segment of a key that is mostly pushed and pulled by rows. Segments are
/// longer there, because few bytes of a segment are sent, and each segment takes some time in every push.
const ROW_SEGMENT_BYTES: (usize, usize) = (128 << 10, MAX_SEGMENT_BYTES);

/// If a call has about this number of bytes of rows for each server, or fewer, each server gets its rows in
/// one message. A server with most of the rows may get a few messages, of at most twice this number. The
/// window has room for all of them at once.
const ONE_MESSAGE_BYTES: usize = 64 << 10;

/// Otherwise a message with rows of several segments has about this number of bytes of rows, and at most
/// twice this number.
const BATCH_BYTES: usize = 24 << 10;

/// The approximate number of segments of a shard. With it, filling and draining the pipeline costs little,
/// and a switch can buffer a few segments of each worker.
const SEGMENTS_PER_SHARD: usize = 256;

/// The longest unit, in bytes.
const UNIT_BYTES: usize = 32 << 10;

/// One segment of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The server that holds it.
    pub server: usize,
    /// The segment's units within the key.
    pub units: Range<usize>,
}

/// The content of one message of a call: segments of one server, and units in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The segments, in ascending order. There is at least one.
    pub segments: Vec<usize>,
    /// The range in the call's list of units that is in these segments.
    pub positions: Range<usize>,
}

/// The division of a key into segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The size of a unit in bytes.
    pub unit_bytes: usize,
    /// The units of a row of the key.
    pub units_per_row: usize,
    /// The segments. Every key has at least one.
    pub segments: Vec<Segment>,
}

/// Returns the server of a key that is not split, by MXNet's rule. A key that is a string is numbered by a
/// hash of its content.
pub fn home(key: &Key, servers: usize) -> usize {
    let number = match key {
        Key::Int(number) => number.unsigned_abs(),
        Key::Str(name) => xxh3_64(name.as_bytes()) >> 16,
    };
    (number.wrapping_mul(9973) % servers as u64) as usize
}

impl Layout {
    /// Returns the layout of a key of `shape` and `element_bytes` over `servers`. The key is split if it has
    /// `bound` or more elements.
    pub fn new(key: &Key, shape: &[usize], element_bytes: usize, servers: usize, bound: usize) -> Self {
        Layout::cut(key, shape, element_bytes, (servers, bound), SEGMENT_BYTES)
    }

    /// Returns the layout of a key that is mostly pushed and pulled by rows.
    pub fn by_rows(key: &Key, shape: &[usize], element_bytes: usize, servers: usize, bound: usize) -> Self {
        Layout::cut(key, shape, element_bytes, (servers, bound), ROW_SEGMENT_BYTES)
    }

    fn cut(
        key: &Key,
        shape: &[usize],
        element_bytes: usize,
        (servers, bound): (usize, usize),
        limits: (usize, usize),
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
            vec![(home, cut(0..units, unit_bytes, limits).into_iter())]
        } else {
            let edge = |server| (units as u128 * server as u128 / servers as u128) as usize;
            // The first part goes to the home server, so that keys with few units are not all on server 0.
            (0..servers)
                .map(|part| ((home + part) % servers, cut(edge(part)..edge(part + 1), unit_bytes, limits).into_iter()))
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

    /// Returns the range of bytes of a segment within the key.
    pub fn bytes_of(&self, segment: usize) -> Range<usize> {
        let units = &self.segments[segment].units;
        units.start * self.unit_bytes..units.end * self.unit_bytes
    }

    /// Returns the units of the rows `ids` (ascending, each once).
    pub fn units_of_rows(&self, ids: &[i64]) -> Vec<usize> {
        let per_row = self.units_per_row;
        ids.iter().flat_map(|id| (0..per_row).map(move |piece| *id as usize * per_row + piece)).collect()
    }

    /// The number of servers that have segments.
    fn servers(&self) -> usize {
        self.segments.iter().map(|segment| segment.server).collect::<BTreeSet<usize>>().len()
    }

    /// Returns a batch for each segment.
    pub fn segment_by_segment(&self) -> Vec<Batch> {
        (0..self.segments.len()).map(|segment| Batch { segments: vec![segment], positions: 0..0 }).collect()
    }

    /// Returns the messages for `units` (ascending, each once). They name all segments, or only those that
    /// have units of them. A few units make one message for each server, which names all of its segments. So
    /// the answer to a pull of them also shows that all earlier pushes are done. With no units at all, each
    /// server still gets such a message.
    ///
    /// Messages begin at the same segments on all workers, and for pushes and pulls, if they name similar
    /// numbers of units. The reason is that a pull is answered only when all workers have pushed all segments
    /// that it names.
    pub fn batches(&self, units: &[usize], has_all: bool) -> Vec<Batch> {
        debug_assert!(units.is_sorted_by(|before, after| before < after), "units ascend, each once");
        let mut batches: Vec<Batch> = Vec::new();
        let per_segment = (units.len() * self.unit_bytes).div_ceil(self.segments.len()).max(1);
        let is_one = units.len() * self.unit_bytes <= ONE_MESSAGE_BYTES * self.servers();
        let (together, bytes) = if is_one {
            (self.segments.len(), ONE_MESSAGE_BYTES)
        } else {
            (1 << (BATCH_BYTES / per_segment).max(1).ilog2(), BATCH_BYTES)
        };
        // For each server: the number of its segments so far, and its last batch with the batch's group.
        let mut servers: BTreeMap<usize, (usize, Option<(usize, usize)>)> = BTreeMap::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let (before, last) = servers.entry(segment.server).or_default();
            let group = *before / together;
            *before += 1;
            let edge = |unit: usize| units.partition_point(|named| *named < unit);
            let positions = edge(segment.units.start)..edge(segment.units.end);
            if positions.is_empty() && !has_all && !is_one {
                continue;
            }
            let fits = |batch: &Batch| (positions.end - batch.positions.start) * self.unit_bytes <= 2 * bytes;
            match *last {
                Some((at, of)) if of == group && fits(&batches[at]) => {
                    batches[at].segments.push(index);
                    batches[at].positions.end = positions.end;
                }
                _ => {
                    *last = Some((batches.len(), group));
                    batches.push(Batch { segments: vec![index], positions });
                }
            }
        }
        if !has_all {
            batches.retain(|batch| !batch.positions.is_empty());
        }
        batches
    }

    /// Returns the ids of the batch's units, counted through the batch's segments, and the number of units of
    /// these segments.
    pub(crate) fn ids(&self, batch: &Batch, units: &[usize]) -> (Vec<i64>, usize) {
        let (mut ids, mut before) = (Vec::with_capacity(batch.positions.len()), 0);
        let mut left = &units[batch.positions.clone()];
        for segment in batch.segments.iter().map(|segment| &self.segments[*segment].units) {
            let (own, others) = left.split_at(left.partition_point(|unit| *unit < segment.end));
            ids.extend(own.iter().map(|unit| (unit - segment.start + before) as i64));
            (left, before) = (others, before + segment.len());
        }
        (ids, before)
    }
}

/// Returns the smallest number of equal pieces of at most `limit` elements into which `len` elements can be
/// cut.
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

fn cut(units: Range<usize>, unit_bytes: usize, (shortest, longest): (usize, usize)) -> Vec<Range<usize>> {
    let wanted = (units.len() * unit_bytes / SEGMENTS_PER_SHARD).clamp(shortest, longest);
    let step = (wanted / unit_bytes).max(1);
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
        let used: BTreeSet<_> = (0..40).map(|i| home(&Key::from(format!("w{i}")), 4)).collect();
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
        let first: BTreeSet<_> = layout.segments[..8].iter().map(|segment| segment.server).collect();
        assert_eq!(first.len(), 8, "the servers take turns");
    }

    #[test]
    fn a_key_that_is_pushed_by_rows_has_longer_segments() {
        let count = |rows: usize| Layout::by_rows(&Key::Int(3), &[rows, 64], 4, 8, 1_000_000).segments.len();
        assert_eq!(count(100_000), 8 * 25, "128 KiB");
        assert_eq!(count(100_000_000), 8 * 1526, "2 MiB");
    }

    #[test]
    fn a_message_carries_the_rows_of_several_segments_while_they_are_few() {
        let layout = Layout::by_rows(&Key::Int(3), &[100_000, 64], 4, 8, 1_000_000);
        let messages = |part: usize, has_all| {
            let ids: Vec<usize> = (0..100_000).step_by(part).collect();
            layout.batches(&ids, has_all).len()
        };
        assert_eq!([messages(100, true), messages(25, true), messages(10, true)], [8, 8 * 7, 8 * 25]);
        assert_eq!([messages(100_000, false), messages(100_000, true)], [1, 8]);
        assert_eq!((layout.batches(&[], true).len(), layout.batches(&[], false).len()), (8, 0));
        let few: Vec<usize> = (0..100_000).step_by(5000).collect();
        let pulled: usize = layout.batches(&few, false).iter().map(|batch| batch.segments.len()).sum();
        assert_eq!(pulled, layout.segments.len(), "a message of a pull is about all segments of its server");
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
            for has_all in [false, true] {
                let batches = layout.batches(&units, has_all);
                prop_assert_eq!(batches.iter().map(|batch| batch.positions.len()).sum::<usize>(), units.len());
                for batch in &batches {
                    let servers = batch.segments.iter().map(|segment| layout.segments[*segment].server);
                    prop_assert_eq!(servers.collect::<BTreeSet<_>>().len(), 1);
                    let all: Vec<usize> =
                        batch.segments.iter().flat_map(|segment| layout.segments[*segment].units.clone()).collect();
                    let (ids, count) = layout.ids(batch, &units);
                    prop_assert_eq!(count, all.len());
                    let named: Vec<usize> = ids.iter().map(|id| all[*id as usize]).collect();
                    prop_assert_eq!(&named[..], &units[batch.positions.clone()]);
                }
                let mut segments: Vec<usize> = batches.into_iter().flat_map(|batch| batch.segments).collect();
                segments.sort_unstable();
                prop_assert!(!has_all || segments.iter().copied().eq(0..layout.segments.len()));
            }
        }
    }
}
