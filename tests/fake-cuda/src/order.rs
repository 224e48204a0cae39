//! The order of work: vector clocks of streams and of the host, and the accesses to a region of memory. If
//! one of two accesses writes and they are not ordered, that is a finding, in whatever order they ran.
//!
//! All threads of the host count as one, because their waits for each other cannot be seen here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use parking_lot::Mutex;

/// The part of each stream that is known to be done, by the streams' names.
pub(crate) type VectorClock = HashMap<usize, u64>;

/// A piece of work, and the work that precedes it.
pub(crate) struct WorkStamp {
    pub(crate) what: &'static str,
    pub(crate) stream: usize,
    pub(crate) number: u64,
    pub(crate) after: VectorClock,
}

#[derive(Default)]
struct Clocks {
    streams: HashMap<usize, VectorClock>,
    host: VectorClock,
}

static CLOCKS: LazyLock<Mutex<Clocks>> = LazyLock::new(Mutex::default);

fn merge(into: &mut VectorClock, other: &VectorClock) {
    for (stream, number) in other {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*number);
    }
}

/// Returns the next piece of work of a stream. It comes after all work that the stream and the host know to
/// be done.
pub(crate) fn stamp(stream: usize, what: &'static str) -> WorkStamp {
    let clocks = &mut *CLOCKS.lock();
    let own = clocks.streams.entry(stream).or_default();
    merge(own, &clocks.host);
    let number = own.get(&stream).copied().unwrap_or(0) + 1;
    own.insert(stream, number);
    WorkStamp { what, stream, number, after: own.clone() }
}

/// Returns the clock of the stream's current end.
pub(crate) fn known_to(stream: usize) -> VectorClock {
    CLOCKS.lock().streams.get(&stream).cloned().unwrap_or_default()
}

/// Orders later work of the stream after `other`.
pub(crate) fn learn(stream: usize, other: &VectorClock) {
    merge(CLOCKS.lock().streams.entry(stream).or_default(), other);
}

/// Orders later work of the host after `other`.
pub(crate) fn host_learns(other: &VectorClock) {
    merge(&mut CLOCKS.lock().host, other);
}

/// The accesses to some bytes of a region.
pub(crate) struct Done {
    bytes: Range<u64>,
    writes: bool,
    what: &'static str,
    stream: usize,
    number: u64,
}

/// Adds the accesses of `stamp`'s work to the history of a region. Returns a text if an earlier access is not
/// ordered with it.
pub(crate) fn add(history: &mut Vec<Done>, stamp: &WorkStamp, bytes: &[Range<u64>], writes: bool) -> Option<String> {
    let comes_after = |done: &Done| stamp.after.get(&done.stream).is_some_and(|number| done.number <= *number);
    let overlaps = |done: &Done, one: &Range<u64>| done.bytes.start < one.end && one.start < done.bytes.end;
    let other = history
        .iter()
        .find(|done| (writes || done.writes) && bytes.iter().any(|one| overlaps(done, one)) && !comes_after(done));
    let verb = |writes| if writes { "writes" } else { "reads" };
    let found = other.map(|done| {
        let bytes = bytes.iter().find(|one| overlaps(done, one)).cloned().unwrap_or_default();
        format!(
            "{} on stream {:#x} {} bytes {bytes:?} that {} on stream {:#x} {}, and nothing orders the two",
            stamp.what,
            stamp.stream,
            verb(writes),
            done.what,
            done.stream,
            verb(done.writes)
        )
    });
    // Earlier accesses within these bytes need not be kept: work after this access is also after them.
    history.retain(|done| {
        let is_within = bytes.iter().any(|one| one.start <= done.bytes.start && done.bytes.end <= one.end);
        !(is_within && comes_after(done) && (writes || (!done.writes && done.stream == stamp.stream)))
    });
    let (what, stream, number) = (stamp.what, stamp.stream, stamp.number);
    history.extend(bytes.iter().map(|one| Done { bytes: one.clone(), writes, what, stream, number }));
    found
}
