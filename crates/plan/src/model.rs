//! The cost of an allreduce on a cluster: nine numbers, and the time of each algorithm that follows from
//! them.
//!
//! - `A` is the time from a message's leaving to its arriving, `latency_us`;
//! - `O` is the time that a rank needs to send and take a message, `message_us`;
//! - `W` is the time that a message anywhere in the job costs every rank, `shared_message_us`: ranks that
//!   share cores wait for one another's work. It is 0 if each rank has its own core;
//! - `w` is the time that a byte anywhere in the job costs every rank, `shared_us_per_byte`;
//! - `b` is the rate of a link in each direction, `short_bytes_per_us`, for the first `P` bytes,
//!   `short_bytes`; `B` is its rate in the long run, `long_bytes_per_us`. Caches, and shapers that let a
//!   burst through, make the difference;
//! - `F` is the factor on the wire's time if flows meet, `fan_factor`: if a rank has many or changing
//!   partners, flows meet in the switch and wait for one another. The fixed pairs of the ring do not;
//! - `C` is the rate at which a rank adds while its neighbours do the same, `sum_bytes_per_us`.
//!
//! The table has the work of the busiest rank, for `S` bytes on `n` ranks, with `q = ceil(log2 n)` and `l =
//! floor(log2 n)`. A message that is sent while another is received counts once with it (ring). A message
//! that is sent after another was received counts separately (star). `x` counts bytes in this way too. `y`
//! counts only the bytes in the direction that has more. `wire(x) = x/b` up to `P`, and `P/b + (x-P)/B`
//! beyond:
//!
//! | algorithm | rounds | messages of one rank | of all | bytes on one link `x` | one way `y` | on all `X` | added |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | ring | `2 (n-1)` | `2 (n-1)` | `2 n (n-1)` | `2 (n-1)/n S` | the same | `2 (n-1) S` | `(n-1)/n S` |
//! | direct | 2 | `2 (n-1)` | `2 n (n-1)` | `2 (n-1)/n S` | the same | `2 (n-1) S` | `(n-1)/n S` |
//! | circulant | `2 q` | `2 q` | `2 n q` | `2 (n-1)/n S` | the same | `2 (n-1) S` | `(n-1)/n S` |
//! | doubling | `l`, and 2 if `n` is no power of two | the same | `l 2^l + 2 (n - 2^l)` | a row `S` | `l S`, and `S` | messages times `S` | `l S` |
//! | star | 2 | `2 (n-1)` | `2 (n-1)` | `2 (n-1) S` | `(n-1) S` | `2 (n-1) S` | `(n-1) S` |
//! | weighted, in `k` turns on trees of `v` levels | `2 v` | `k` for each neighbour in each tree | `2 k
//! (n-1)` for each tree | `(k+v/2)/k t S` | the same | `2 (n-1) S` | `max(d) S` |
//! | tree | `2 l` | `2 q` | `2 (n-1)` | `2 q S` | `q S` | `2 (n-1) S` | `q S` |
//!
//! `time = rounds A + messages O + all messages W + wire(x) + X w + added / C`, with `F` before `wire` for
//! direct and circulant, and for weighted where a rank has more than three neighbours in a tree. `B` is the
//! slowest link's rate. `t` and `d` are defined for links that are not alike (`weighted`). In the first and
//! the last `v` turns these links are idle for a quarter of the time. A message longer than a segment counts
//! once for each segment. The ring's latency hides behind the other segments of a part: with `j` of them a
//! step waits for `A` less the time that `j - 1` segments take.
//!
//! A link is shaped if `B` is less than half of `b`. Then `P` is the number of bytes that its shaper lets
//! through at once after a rest, in each direction. A shaper saves up while nothing is sent in its direction,
//! also between two rounds, so latency and work cost nothing while bytes wait for it. The time is the longer
//! of two: the time above with `x/b` for `wire(x)`, and `x/y wire(y)`. In the second, each direction lets its
//! `P` through, and bytes of one direction wait for those of the other unless both go at once.
//!
//! Everything is arithmetic that IEEE 754 defines to the last bit, so ranks with the same nine numbers make
//! the same predictions.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use super::{Algorithm, Links};

/// The numbers of one cluster. They are sent as they are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
#[allow(missing_docs, reason = "the module's head defines each")]
pub struct Model {
    pub latency_us: f64,
    pub message_us: f64,
    pub shared_message_us: f64,
    pub shared_us_per_byte: f64,
    pub short_bytes_per_us: f64,
    pub short_bytes: f64,
    pub long_bytes_per_us: f64,
    pub fan_factor: f64,
    pub sum_bytes_per_us: f64,
}

impl Default for Model {
    /// A cluster between 1 and 10 Gbit/s Ethernet with TCP, one rank a core.
    fn default() -> Self {
        Model {
            latency_us: 30.0,
            message_us: 10.0,
            shared_message_us: 0.0,
            shared_us_per_byte: 0.0,
            short_bytes_per_us: 400.0,
            short_bytes: 0.0,
            long_bytes_per_us: 400.0,
            fan_factor: 1.05,
            sum_bytes_per_us: 10_000.0,
        }
    }
}

/// A link is shaped if its rate in the long run is less than this part of the first rate. Caches and noise
/// must cost less than that.
const SHAPED: f64 = 0.5;

/// The work of an algorithm, in the units of the table above.
struct Work {
    rounds: f64,
    messages: f64,
    all_messages: f64,
    link_bytes: f64,
    /// The bytes in the direction that has more.
    way_bytes: f64,
    all_bytes: f64,
    added: f64,
    fan: f64,
}

impl Model {
    /// Returns true if every number is one that a cluster can have.
    pub fn is_sound(&self) -> bool {
        let rates = [self.short_bytes_per_us, self.long_bytes_per_us, self.fan_factor, self.sum_bytes_per_us];
        let costs =
            [self.latency_us, self.message_us, self.shared_message_us, self.shared_us_per_byte, self.short_bytes];
        rates.iter().all(|rate| rate.is_finite() && *rate > 0.0)
            && costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0)
    }

    /// Returns the model for ranks that each have their own host, without the costs of ranks that share
    /// cores.
    #[must_use]
    pub fn apart(&self) -> Self {
        Model { shared_message_us: 0.0, shared_us_per_byte: 0.0, ..*self }
    }

    /// Returns the model for a sum that is one of many, with `step_bytes` in all. If they are many times the
    /// bytes that shapers let through at first, other sums have used these up.
    #[must_use]
    pub fn within(&self, step_bytes: usize) -> Self {
        const MANY: f64 = 16.0;
        let short_bytes = if step_bytes as f64 > MANY * self.short_bytes { 0.0 } else { self.short_bytes };
        Model { short_bytes, ..*self }
    }

    /// The time of an allreduce of `len_bytes` over `size` ranks in messages of at most `segment_bytes`, in
    /// microseconds.
    pub fn predicted_us(&self, algorithm: Algorithm, len_bytes: usize, size: usize, segment_bytes: usize) -> f64 {
        if size < 2 {
            return 0.0;
        }
        let (bytes, ranks) = (len_bytes as f64, size as f64);
        let part = (bytes / ranks).ceil();
        let segments = |len: f64| (len / segment_bytes.max(1) as f64).ceil().max(1.0);
        let (floor, ceil) = (f64::from(size.ilog2()), f64::from(size.next_power_of_two().ilog2()));
        let scattered = |messages: f64, rounds: f64, fan: f64| Work {
            rounds,
            messages,
            all_messages: ranks * messages,
            link_bytes: 2.0 * (ranks - 1.0) * part,
            way_bytes: 2.0 * (ranks - 1.0) * part,
            all_bytes: 2.0 * (ranks - 1.0) * bytes,
            added: (ranks - 1.0) * part,
            fan,
        };
        let work = match algorithm {
            Algorithm::Ring => {
                let work = scattered(2.0 * (ranks - 1.0) * segments(part), 0.0, 1.0);
                return self.ring_us(&work, ranks, segments(part)).max(self.wire_us(work.way_bytes));
            }
            Algorithm::Direct => scattered(2.0 * (ranks - 1.0) * segments(part), 2.0, self.fan_factor),
            Algorithm::Circulant => {
                // Rounds whose range passes the last part are two messages; with a power of two none does.
                let wrapping = if size.is_power_of_two() { 1.0 } else { 1.5 };
                let messages = (2.0 * ceil * wrapping).max(2.0 * segments((ranks - 1.0) * part));
                scattered(messages, 2.0 * ceil, self.fan_factor)
            }
            Algorithm::Doubling => {
                let core = f64::from(1u32 << size.ilog2());
                let folding = if size.is_power_of_two() { 0.0 } else { 2.0 };
                let everywhere = floor * core + 2.0 * (ranks - core);
                Work {
                    rounds: floor + folding,
                    messages: (floor + folding) * segments(bytes),
                    all_messages: everywhere * segments(bytes),
                    link_bytes: (floor + folding) * bytes,
                    way_bytes: (floor + folding / 2.0) * bytes,
                    all_bytes: everywhere * bytes,
                    added: floor * bytes,
                    fan: 1.0,
                }
            }
            Algorithm::Star | Algorithm::Tree => {
                let (rounds, degree) =
                    if algorithm == Algorithm::Star { (2.0, ranks - 1.0) } else { (2.0 * floor, ceil) };
                Work {
                    rounds,
                    messages: 2.0 * degree * segments(bytes),
                    all_messages: 2.0 * (ranks - 1.0) * segments(bytes),
                    link_bytes: 2.0 * degree * bytes,
                    way_bytes: degree * bytes,
                    all_bytes: 2.0 * (ranks - 1.0) * bytes,
                    added: degree * bytes,
                    fan: 1.0,
                }
            }
        };
        self.time_us(&work)
    }

    /// Predicts the time as [`predicted_us`](Self::predicted_us) does, in parts that suit `links` and in
    /// `turns` turns. The model has the rate of the slowest link.
    pub fn predicted_weighted_us(&self, links: &Links, len_bytes: usize, turns: usize) -> f64 {
        /// Up to this number of flows hardly wait for one another.
        const FEW: usize = 3;
        let (bytes, turns, shape) = (len_bytes as f64, turns as f64, links.shape());
        let link_bytes = links.least_time() * bytes * (turns + shape.levels as f64 / 2.0) / turns;
        self.time_us(&Work {
            rounds: 2.0 * shape.levels as f64,
            messages: shape.most_messages as f64 * turns,
            all_messages: shape.all_messages as f64 * turns,
            link_bytes,
            way_bytes: link_bytes,
            all_bytes: shape.all_sent * bytes,
            added: links.carried().iter().map(|carried| carried.receives).fold(0.0, f64::max) * bytes,
            fan: if shape.most_neighbours > FEW { self.fan_factor } else { 1.0 },
        })
    }

    fn time_us(&self, work: &Work) -> f64 {
        // Behind a shaper the two directions of a tree wait for one another. The time of an open link is in
        // the busy time.
        let turns = if self.is_shaped() { work.link_bytes / work.way_bytes.max(1.0) } else { 1.0 };
        (work.rounds * self.latency_us + self.busy_us(work)).max(work.fan * turns * self.wire_us(work.way_bytes))
    }

    /// Returns the time without the latency.
    fn busy_us(&self, work: &Work) -> f64 {
        work.messages * self.message_us
            + work.all_messages * self.shared_message_us
            + work.fan * self.open_us(work.link_bytes)
            + work.all_bytes * self.shared_us_per_byte
            + work.added / self.sum_bytes_per_us
    }

    fn ring_us(&self, work: &Work, ranks: f64, segments: f64) -> f64 {
        let steps = 2.0 * (ranks - 1.0);
        let busy = self.busy_us(work);
        let exposed = self.latency_us - (segments - 1.0) / segments * busy / steps;
        self.latency_us + busy + (steps - 1.0) * exposed.max(0.0)
    }

    /// Returns the time that a link needs for `bytes` in one direction without a shaper.
    fn open_us(&self, bytes: f64) -> f64 {
        if self.is_shaped() { bytes / self.short_bytes_per_us } else { self.wire_us(bytes) }
    }

    fn is_shaped(&self) -> bool {
        self.long_bytes_per_us < SHAPED * self.short_bytes_per_us
    }

    /// The time that a link needs for `bytes` in one direction.
    pub fn wire_us(&self, bytes: f64) -> f64 {
        let short = bytes.min(self.short_bytes);
        short / self.short_bytes_per_us + (bytes - short) / self.long_bytes_per_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_needs_no_time_and_more_bytes_never_need_less() {
        let model = Model::default();
        assert!(model.is_sound());
        for algorithm in Algorithm::ALL {
            assert_eq!(model.predicted_us(algorithm, 1 << 20, 1, 1 << 18), 0.0);
            for size in 2..40 {
                let times: Vec<f64> =
                    (0..30).map(|bits| model.predicted_us(algorithm, 1 << bits, size, 1 << 18)).collect();
                assert!(times.is_sorted(), "{algorithm} on {size} ranks: {times:?}");
            }
        }
    }

    #[test]
    fn a_link_has_its_short_rate_first_and_its_long_rate_after() {
        let model =
            Model { short_bytes_per_us: 1000.0, short_bytes: 100_000.0, long_bytes_per_us: 100.0, ..Model::default() };
        assert_eq!(model.wire_us(50_000.0), 50.0);
        assert_eq!(model.wire_us(300_000.0), 2100.0);
    }

    #[test]
    fn latency_hides_where_bytes_wait_for_a_shaper() {
        let shaped =
            Model { short_bytes_per_us: 1000.0, short_bytes: 60_000.0, long_bytes_per_us: 120.0, ..Model::default() };
        let far = Model { latency_us: 2.0 * shaped.latency_us, ..shaped };
        let on_eight = |model: &Model, algorithm, len| model.predicted_us(algorithm, len, 8, 256 << 10);
        // Three rounds of 256 KiB wait for the shaper, whatever the latency; those of 4 KiB do not.
        let bytes = 3.0 * f64::from(256 << 10);
        for model in [shaped, far] {
            assert_eq!(on_eight(&model, Algorithm::Doubling, 256 << 10), 60.0 + (bytes - 60_000.0) / 120.0);
        }
        let apart = on_eight(&far, Algorithm::Doubling, 4096) - on_eight(&shaped, Algorithm::Doubling, 4096);
        assert!((apart - 3.0 * shaped.latency_us).abs() < 1e-9, "{apart}");
        // A tree's two directions wait for one another: 3 times 256 KiB up, then 3 times 256 KiB down.
        assert_eq!(on_eight(&shaped, Algorithm::Tree, 256 << 10), 2.0 * (60.0 + (bytes - 60_000.0) / 120.0));
        // So fewer bytes pay before fewer rounds do.
        assert!(on_eight(&shaped, Algorithm::Circulant, 64 << 10) < on_eight(&shaped, Algorithm::Doubling, 64 << 10));
        assert!(on_eight(&shaped, Algorithm::Circulant, 4096) > on_eight(&shaped, Algorithm::Doubling, 4096));
    }

    #[test]
    fn latency_does_not_hide_behind_caches() {
        let cached = Model { short_bytes_per_us: 2000.0, long_bytes_per_us: 1000.0, ..Model::default() };
        let far = Model { latency_us: 2.0 * cached.latency_us, ..cached };
        let time = |model: &Model| model.predicted_us(Algorithm::Direct, 1 << 20, 8, 256 << 10);
        assert!((time(&far) - time(&cached) - 2.0 * cached.latency_us).abs() < 1e-9);
        // The time of a tree does not change either: its directions wait for one another only at a shaper,
        // and here the first bytes are the slow ones.
        let warming = Model { short_bytes_per_us: 400.0, short_bytes: 1_000_000.0, ..cached };
        let far = Model { latency_us: 2.0 * warming.latency_us, ..warming };
        let tree = |model: &Model| model.predicted_us(Algorithm::Tree, 1 << 20, 8, 256 << 10);
        assert!((tree(&far) - tree(&warming) - 6.0 * warming.latency_us).abs() < 1e-9);
    }

    #[test]
    fn a_sum_of_many_has_the_long_rate_from_its_first_byte() {
        let model =
            Model { short_bytes_per_us: 1000.0, short_bytes: 100_000.0, long_bytes_per_us: 25.0, ..Model::default() };
        assert_eq!(model.within(1_000_000), model);
        let (within, rounds_us) = (model.within(10_000_000), 3.0 * (model.latency_us + model.message_us));
        assert_eq!(within.wire_us(50_000.0), 2000.0);
        // Latency still hides.
        assert_eq!(within.predicted_us(Algorithm::Doubling, 50_000, 8, 1 << 18), 6000.0);
        let few_bytes = within.predicted_us(Algorithm::Doubling, 4, 8, 1 << 18);
        assert!((rounds_us..rounds_us + 1.0).contains(&few_bytes), "{few_bytes}");
    }

    #[test]
    fn a_long_ring_is_as_fast_as_the_wire_and_its_segments_hide_the_latency() {
        let model = Model { sum_bytes_per_us: 1e12, message_us: 0.0, ..Model::default() };
        let bound = 2.0 * 7.0 / 8.0 * 1e8 / 400.0;
        let time = model.predicted_us(Algorithm::Ring, 100_000_000, 8, 256 << 10);
        assert!((1.0..1.001).contains(&(time / bound)), "{time} of {bound}");
        let whole = model.predicted_us(Algorithm::Ring, 100_000_000, 8, 1 << 30);
        assert!((whole - time - 13.0 * model.latency_us).abs() < 1e-3, "{whole} and {time}");
    }

    #[test]
    fn numbers_that_no_cluster_has_are_found() {
        for wrong in [
            Model { latency_us: -1.0, ..Model::default() },
            Model { long_bytes_per_us: 0.0, ..Model::default() },
            Model { fan_factor: f64::NAN, ..Model::default() },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }
}
