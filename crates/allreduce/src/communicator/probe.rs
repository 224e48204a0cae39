//! Learns a cluster's [`Model`] by running a few small allreduces, and solving for its numbers.
//!
//! The probe runs the plans, the interpreter and the transport of real sums, because these take more time
//! than the wire if ranks share cores. Cutting a plan is not timed, since it is done once for all equal sums.
//! All ranks take part, exchange their times, and compute the same numbers from them. Many ranks run several
//! rings at the same time ([`ProbeRing`]). In the terms of the model, for `n` ranks:
//!
//! | run | its time, without the costs that are known already |
//! | --- | --- |
//! | ring of a byte for each rank, a step | `A + O + n W` |
//! | star of a byte, half of it | `A + (n-1) (O + W)` |
//! | direct of `n` bytes, half of it | `A + (n-1) O + n (n-1) W` |
//! | ring with `x` bytes on each link | `x (1/b + n w)` |
//! | the same in a ring of two hosts, while `i` ranks are idle | `x (1/b + (n - i) w)` |
//! | ring, long, after another | `x (1/B + n w)`: the burst of a shaper is used up |
//! | ring, after a rest | `P/b + (x-P)/B` |
//! | direct, long, after another | `x (F/B + n w)` |
//!
//! The short runs move so few bytes that most shapers do not delay them. A shaper that delays them delays the
//! ring of two hosts too: this ring runs right after the ring of all hosts, and moves as many bytes over each
//! link in each direction. If a shaper delayed the ring of all hosts more, the difference would be counted as
//! the ranks' work, `w`. If no rank is idle, as on two hosts, `w` cannot be separated from `1/b`, and is
//! taken for 0. A long ring that takes half as long again as it would at `b` was delayed by a shaper. Its
//! time is then `x/B`, the time of direct is `F x/B`, and known costs are not subtracted. Without a shaper,
//! `P` is the number of bytes that the short runs moved.
//!
//! The long runs start small and grow until one takes [`LONG_ENOUGH_US`] and longer than latency alone. So a
//! slow network is not busy for long, and the run on a fast network is not too short to measure. If later
//! runs of this length take much less time, the next longer length is used. `C`, the rate at which a rank
//! adds, is not in the table: all ranks measure their own at the same time.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use ringpull_base::{Buffer, DType, Result};
use ringpull_kernels::reduce;
use ringpull_plan::{Algorithm, Model, Plan};

use super::executor::Executor;
use super::probe_rings::{ProbeRing, steps};
use crate::transport::{OF_A_SET, Stamp};

/// The stamps of the probe, which no operation of a job has. An exchange in both directions at once uses
/// both.
pub(super) const STAMP: Stamp = OF_A_SET - 1;
pub(super) const BACK: Stamp = OF_A_SET - 2;
/// The runs of each short collective. As many batches run as fit into [`BATCHES_US`] if each takes as long as
/// the second did, within the limits of [`BATCHES`]. The lower quartile counts, or the shortest of two or
/// three, since other load makes most runs longer.
const BATCHES: RangeInclusive<usize> = 2..=28;
const RUNS: usize = 2;
const BATCHES_US: f64 = 500_000.0;
/// The bytes per rank that the short transfers move over the busiest link. All short transfers together move
/// fewer bytes than most shapers admit in the time that the transfers take. With more ranks they take longer,
/// because there are more messages, so they may move more bytes.
const SHORT_BYTES: usize = 8 << 10;
const MOST_SHORT_BYTES: usize = 64 << 10;
/// The long transfers grow fourfold from the first to at most the last of these buffers.
const LONG_BYTES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
const LONG_ENOUGH_US: f64 = 8_000.0;
/// The shortest later run of a long ring must take at least this part of [`long_enough_us`]. If it takes
/// less, other load delayed the first runs, and the ring may have moved only what a shaper lets through at
/// once.
const STILL_LONG: f64 = 0.75;
/// A ring is long enough if it takes this many times as long as the smallest. The time of a shorter one may
/// be mostly latency.
const BEYOND_LATENCY: f64 = 2.0;
/// The transfer after a rest, whose time shows a shaper's burst: longer than a burst, but not many times as
/// long.
const RESTED_BYTES: usize = 256 << 10;
/// A long transfer that takes this many times as long as at the short rate was delayed by a shaper: latency
/// and noise alone would add less.
const SHAPED: f64 = 1.5;
/// Runs of each long transfer. The shortest counts, since other load only adds time.
const LONG_RUNS: usize = 4;
/// The time for a shaper to save up a burst, like `--rest` of `bench allreduce`.
const REST: Duration = Duration::from_millis(2);
/// Long transfers use segments as `auto` does for long buffers.
const SUM_BYTES: usize = 256 << 10;

/// The ranks that sum in a run.
#[derive(Clone, Copy)]
pub(super) enum ProbeRun {
    /// All ranks together.
    All(Algorithm),
    /// Each ring by itself.
    Ring,
    /// The ranks of two hosts alone in each ring, as a ring of their own, until they have taken at least the
    /// steps of the whole ring.
    Two,
}

/// The times in microseconds, each the same on every rank, and the lengths that were run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProbeTimes {
    /// The number of all ranks, and of the ranks in the longest ring.
    pub(super) size: usize,
    pub(super) ring_size: usize,
    /// The times of short allreduces. Ring and direct have one byte for each rank, the star has one byte in
    /// all.
    pub(super) ring_us: f64,
    pub(super) star_us: f64,
    pub(super) direct_us: f64,
    /// The time of a ring with one part for each of its ranks.
    pub(super) short_part: usize,
    pub(super) short_ring_us: f64,
    /// The times of the same number of steps by the ranks of two hosts, with parts of one byte and with parts
    /// of `short_part` bytes, and the number of ranks that are idle meanwhile.
    pub(super) two_us: f64,
    pub(super) short_two_us: f64,
    pub(super) idle: usize,
    /// The part and the time of a long ring.
    pub(super) long_part: usize,
    pub(super) long_ring_us: f64,
    /// The part and the time of a long direct allreduce, of `size` parts.
    pub(super) direct_part: usize,
    pub(super) long_direct_us: f64,
    /// The part and the time of a ring after a rest.
    pub(super) rested_part: usize,
    pub(super) rested_ring_us: f64,
    pub(super) segment_bytes: usize,
    pub(super) sum_bytes_per_us: f64,
}

/// The bytes of a rank's part in the long transfers.
pub(super) struct LongParts {
    ring: usize,
    direct: usize,
    rested: usize,
}

impl LongParts {
    /// Returns the parts of buffers of `bytes` bytes, over `size` ranks or over rings of `ring_size` ranks.
    fn of(bytes: usize, size: usize, ring_size: usize) -> Self {
        let ring = bytes.div_ceil(ring_size);
        // On a slow network the part after a rest is no longer than the part without a rest.
        LongParts { ring, direct: bytes.div_ceil(size), rested: RESTED_BYTES.div_ceil(ring_size).min(ring) }
    }
}

/// Runs the probe's allreduces and times them: on the ranks themselves, or, in tests, in simulated time
/// (`simulated_probe.rs`). The methods that return a `Result` are collective.
pub(super) trait ProbeRunner {
    /// The number of ranks, and the number in the longest ring.
    fn sizes(&self) -> (usize, usize);

    /// The number of ranks that are idle while two hosts of each ring are at work.
    fn idle(&self) -> usize;

    fn segment_bytes(&self) -> usize;

    /// The rate of one thread that adds.
    fn sum_bytes_per_us(&mut self) -> f64;

    /// Returns the microseconds since some fixed moment.
    fn now_us(&self) -> f64;

    /// Sums `len` bytes over all ranks, or `len` bytes for each rank of a ring, once. Returns the time in
    /// microseconds, or 0 on ranks that are idle meanwhile.
    fn run(&mut self, run: ProbeRun, len: usize) -> Result<f64>;

    /// Returns every rank's `own` row, in the order of the ranks. A simulation has one row.
    fn gather<const N: usize>(&mut self, own: [f64; N]) -> Result<Vec<[f64; N]>>;

    fn rest(&mut self, how_long: Duration);

    /// Runs all allreduces of the probe. Returns their times.
    fn measure(&mut self) -> Result<ProbeTimes> {
        let (size, ring_size) = self.sizes();
        let (segment_bytes, sum) = (self.segment_bytes(), self.sum_bytes_per_us());
        let short_part = short_part(ring_size);
        let [ring, two, star, direct, short_ring, short_two] = self.short([
            (ProbeRun::Ring, 1),
            (ProbeRun::Two, 1),
            (ProbeRun::All(Algorithm::Star), 1),
            (ProbeRun::All(Algorithm::Direct), size),
            (ProbeRun::Ring, short_part),
            (ProbeRun::Two, short_part),
        ])?;
        let [star_us, direct_us, sum_bytes_per_us] = self.medians([star, direct, sum])?;
        let [ring_us, two_us, short_ring_us, short_two_us] = self.slowest([ring, two, short_ring, short_two])?;
        let enough_us = long_enough_us(ring_us);
        let mut sizes = LONG_BYTES.into_iter().peekable();
        let (long, [long_ring_us, long_direct_us, rested_ring_us]) = loop {
            let long = LongParts::of(sizes.next().unwrap_or(LONG_BYTES[LONG_BYTES.len() - 1]), size, ring_size);
            // The shorter of two runs counts, since noise only adds time: one slow run would end the growth
            // too soon.
            let first = self.run(ProbeRun::Ring, long.ring)?;
            let own = first.min(self.run(ProbeRun::Ring, long.ring)?);
            let is_last = sizes.peek().is_none();
            if self.slowest([own])?[0] <= enough_us && !is_last {
                continue;
            }
            let runs = self.long_runs(&long)?;
            // Other load may have delayed both of the first runs.
            if runs[0] > STILL_LONG * enough_us || is_last {
                break (long, runs);
            }
        };
        Ok(ProbeTimes {
            size,
            ring_size,
            ring_us,
            star_us,
            direct_us,
            short_part,
            short_ring_us,
            two_us,
            short_two_us,
            idle: self.idle(),
            long_part: long.ring,
            long_ring_us,
            direct_part: long.direct,
            long_direct_us,
            rested_part: long.rested,
            rested_ring_us,
            segment_bytes,
            sum_bytes_per_us,
        })
    }

    /// The least times of long transfers: a ring, direct, and a ring after a rest.
    fn long_runs(&mut self, long: &LongParts) -> Result<[f64; 3]> {
        let mut least = [f64::INFINITY; 3];
        for _ in 0..LONG_RUNS {
            // All ranks end a run before the next begins.
            let ring = self.run(ProbeRun::Ring, long.ring)?;
            let [ring] = self.slowest([ring])?;
            let direct = self.run(ProbeRun::All(Algorithm::Direct), self.sizes().0 * long.direct)?;
            let [direct] = self.medians([direct])?;
            self.rest(REST);
            let rested = self.run(ProbeRun::Ring, long.rested)?;
            let [rested] = self.slowest([rested])?;
            for (least, time) in least.iter_mut().zip([ring, direct, rested]) {
                *least = least.min(time);
            }
        }
        Ok(least)
    }

    /// The times of short allreduces, run in turn. A job's last processes start in its first tenths of a
    /// second, and a collective timed then has taken three times as long as later.
    fn short<const N: usize>(&mut self, what: [(ProbeRun, usize); N]) -> Result<[f64; N]> {
        // The first run makes connections.
        what.into_iter().try_for_each(|(run, len)| self.run(run, len).map(drop))?;
        let mut batches: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
        let mut count = *BATCHES.end();
        while batches[0].len() < count {
            let start_us = self.now_us();
            for (times, (run, len)) in batches.iter_mut().zip(what) {
                let runs: Result<f64> = (0..RUNS).map(|_| self.run(run, len)).sum();
                times.push(runs? / RUNS as f64);
            }
            if batches[0].len() == *BATCHES.start() {
                let [took_us] = self.medians([self.now_us() - start_us])?;
                count = batches_in(took_us);
            }
        }
        Ok(batches.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            times[count / 4]
        }))
    }

    /// Returns the slowest ring's times, because a ring over all ranks would be as slow as its slowest part.
    fn slowest<const N: usize>(&mut self, own: [f64; N]) -> Result<[f64; N]> {
        let rows = self.gather(own)?;
        Ok(std::array::from_fn(|at| rows.iter().map(|row| row[at]).fold(0.0, f64::max)))
    }

    fn medians<const N: usize>(&mut self, own: [f64; N]) -> Result<[f64; N]> {
        let rows = self.gather(own)?;
        Ok(std::array::from_fn(|at| median(&mut rows.iter().map(|row| row[at]).collect::<Vec<_>>())))
    }
}

/// Runs plans of all ranks and takes their times. The methods that return a `Result` are collective.
pub(super) struct Prober<'a> {
    pub(super) executor: &'a mut Executor,
    ring: ProbeRing,
    begun: Instant,
}

impl ProbeRunner for Prober<'_> {
    fn sizes(&self) -> (usize, usize) {
        (self.executor.size(), self.ring.longest)
    }

    fn idle(&self) -> usize {
        self.ring.idle
    }

    fn segment_bytes(&self) -> usize {
        self.executor.runner.segment_bytes()
    }

    fn sum_bytes_per_us(&mut self) -> f64 {
        sum_bytes_per_us()
    }

    fn now_us(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() * 1e6
    }

    fn run(&mut self, run: ProbeRun, len: usize) -> Result<f64> {
        let own_us = match run {
            ProbeRun::All(algorithm) => {
                let plan = ringpull_plan::allreduce(algorithm, self.executor.rank(), self.executor.size(), len);
                return Ok(self.timed(&plan, Buffer::zeroed(len))?.1);
            }
            ProbeRun::Ring => {
                let members = self.ring.members.clone();
                self.ring_among(&members, len)? * steps(self.ring.longest) / steps(members.len())
            }
            ProbeRun::Two => {
                let members = self.ring.of_two.clone();
                let times = (steps(self.ring.longest) / steps(members.len())).ceil();
                let took: Result<f64> = (0..times as usize).map(|_| self.ring_among(&members, len)).sum();
                took? * steps(self.ring.longest) / (times * steps(members.len()))
            }
        };
        // The next run would wait for ranks that are still at work.
        self.gather([0.0])?;
        Ok(own_us)
    }

    fn gather<const N: usize>(&mut self, own: [f64; N]) -> Result<Vec<[f64; N]>> {
        self.executor.gather_rows(&own, STAMP)
    }

    fn rest(&mut self, how_long: Duration) {
        std::thread::sleep(how_long);
    }
}

impl<'a> Prober<'a> {
    pub(super) fn new(executor: &'a mut Executor, ring: ProbeRing) -> Self {
        Prober { executor, ring, begun: Instant::now() }
    }

    /// Returns the time of a ring of these ranks with parts of `part` bytes, or 0 if this rank is none of
    /// them.
    fn ring_among(&mut self, members: &[usize], part: usize) -> Result<f64> {
        let own = self.executor.rank();
        let Some(place) = members.iter().position(|member| *member == own) else { return Ok(0.0) };
        let len = members.len() * part;
        let plan = ringpull_plan::allreduce(Algorithm::Ring, place, members.len(), len).among(members);
        Ok(self.timed(&plan, Buffer::zeroed(len))?.1)
    }

    /// Runs `plan` on `data`. Returns the data and the time in microseconds.
    pub(super) fn timed(&mut self, plan: &Plan, data: Buffer) -> Result<(Buffer, f64)> {
        let schedule = self.executor.schedule(plan);
        let start = Instant::now();
        let data = self.executor.move_buffer(&schedule, data, STAMP)?;
        Ok((data, start.elapsed().as_secs_f64() * 1e6))
    }
}

/// Returns the number of batches to run, if the second took `batch_us`.
fn batches_in(batch_us: f64) -> usize {
    ((BATCHES_US / batch_us) as usize).clamp(*BATCHES.start(), *BATCHES.end())
}

/// Returns the time from which on a ring is long enough, if the smallest took `smallest_us`.
fn long_enough_us(smallest_us: f64) -> f64 {
    LONG_ENOUGH_US.max(BEYOND_LATENCY * smallest_us)
}

/// The bytes of one rank's part in the short transfers.
fn short_part(size: usize) -> usize {
    ((SHORT_BYTES * size).min(MOST_SHORT_BYTES) / 2 / (size - 1)).max(1)
}

/// Returns the model's prediction for a ring of `ring_size` ranks while all `size` ranks run such rings. The
/// cost that each message has for every rank is counted for the messages of all rings.
pub(super) fn ring_us(model: &Model, sizes: (usize, usize), part: usize, segment_bytes: usize) -> f64 {
    of_all_rings(model, sizes).predicted_us(Algorithm::Ring, sizes.1 * part, sizes.1, segment_bytes)
}

/// Returns the model's prediction for the same number of steps by two hosts of each ring, if each has one
/// rank.
#[cfg(test)]
pub(super) fn two_us(model: &Model, sizes: (usize, usize), part: usize, segment_bytes: usize) -> f64 {
    let once = of_all_rings(model, sizes).predicted_us(Algorithm::Ring, 2 * part, 2, segment_bytes);
    (sizes.1 - 1) as f64 * once
}

/// Returns the model of one ring while other rings run. A message of another ring costs a rank as much as a
/// message of its own ring.
fn of_all_rings(model: &Model, (size, ring_size): (usize, usize)) -> Model {
    let rings = size as f64 / ring_size as f64;
    Model {
        shared_message_us: rings * model.shared_message_us,
        shared_us_per_byte: rings * model.shared_us_per_byte,
        ..*model
    }
}

/// Returns the model that predicts these times. The long times are without the bytes that a shaper lets
/// through first. A number that noise made impossible is replaced by the nearest possible one.
pub(super) fn fit(times: &ProbeTimes) -> Model {
    let (n, steps) = (times.size as f64, 2.0 * (times.ring_size - 1) as f64);
    let (step, star, direct) = (times.ring_us / steps, times.star_us / 2.0, times.direct_us / 2.0);
    let least = 0.02 * step.max(0.1);
    let shared_message_us = ((direct - star) / (n - 1.0).powi(2)).clamp(0.0, step / n);
    let message_us = if times.size > 2 {
        // A step takes at least as long as a rank's own work in it.
        let most = (step - n * shared_message_us).max(least);
        ((star - step + shared_message_us) / (n - 2.0)).clamp(least, most)
    } else {
        // With two ranks latency and work cannot be separated. A quarter is taken for work, as on larger
        // clusters.
        (0.25 * (step - n * shared_message_us)).max(least)
    };
    let latency_us = (step - message_us - n * shared_message_us).max(least);
    let mut model = Model {
        latency_us,
        message_us,
        shared_message_us,
        shared_us_per_byte: 0.0,
        short_bytes_per_us: f64::INFINITY,
        short_bytes: 0.0,
        long_bytes_per_us: f64::INFINITY,
        fan_factor: 1.0,
        sum_bytes_per_us: times.sum_bytes_per_us.max(1.0),
    };
    // The model now predicts everything but the time of the bytes, which is the rest of each run's time.
    let per_byte =
        |time_us: f64, known_us: f64, link_bytes: f64| (time_us - known_us).max(0.05 * time_us).max(1e-3) / link_bytes;
    let of_all = |model: &Model, algorithm, len| model.predicted_us(algorithm, len, times.size, times.segment_bytes);
    let of_ring = |model: &Model, part| ring_us(model, (times.size, times.ring_size), part, times.segment_bytes);
    let short_link = steps * times.short_part as f64;
    let all = per_byte(times.short_ring_us, of_ring(&model, times.short_part), short_link);
    let two = per_byte(times.short_two_us, times.two_us, short_link);
    let work = if times.idle > 0 { (all - two) / times.idle as f64 } else { 0.0 };
    let shared_us_per_byte = work.clamp(0.0, 0.9 * all / n);
    let short_us_per_byte = all - n * shared_us_per_byte;
    model.shared_us_per_byte = shared_us_per_byte;
    model.short_bytes_per_us = 1.0 / short_us_per_byte;
    model.long_bytes_per_us = model.short_bytes_per_us;
    model.short_bytes = short_link;
    let open_ring_us = of_ring(&model, times.long_part);
    let open_direct_us = of_all(&model, Algorithm::Direct, times.size * times.direct_part);
    let is_shaped = times.long_ring_us > SHAPED * open_ring_us;
    let long_per_byte = |time_us: f64, open_us: f64, link: f64| {
        let known_us = if is_shaped { 0.0 } else { open_us - link * short_us_per_byte };
        per_byte(time_us, known_us, link)
    };
    let direct_link = 2.0 * (n - 1.0) * times.direct_part as f64;
    let ring_per_byte = long_per_byte(times.long_ring_us, open_ring_us, steps * times.long_part as f64);
    let direct_per_byte = long_per_byte(times.long_direct_us, open_direct_us, direct_link);
    model.long_bytes_per_us = 1.0 / ring_per_byte;
    if is_shaped {
        let rested_link = steps * times.rested_part as f64;
        let saved_us = rested_link * ring_per_byte - times.rested_ring_us;
        model.short_bytes = (saved_us / (ring_per_byte - short_us_per_byte)).clamp(short_link, rested_link);
    }
    model.fan_factor = (direct_per_byte / ring_per_byte).clamp(1.02, 3.0);
    model
}

/// The rate of one thread that adds.
fn sum_bytes_per_us() -> f64 {
    let (mut sum, other) = (Buffer::zeroed(SUM_BYTES), Buffer::zeroed(SUM_BYTES));
    let mut rates = [0.0; 5];
    for rate in &mut rates {
        let start = Instant::now();
        reduce::add_assign(DType::F32, sum.bytes_mut(), other.bytes());
        *rate = SUM_BYTES as f64 / (start.elapsed().as_secs_f64() * 1e6).max(1.0);
    }
    median(&mut rates)
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::transport::inproc;

    const SEGMENT: usize = 256 << 10;

    /// Returns the times that a cluster with these numbers would measure.
    fn times_on(model: &Model, size: usize) -> ProbeTimes {
        let ring_size = ProbeRing::longest_of(size);
        let short_part = short_part(ring_size);
        let (long_part, rested_part) = ((1 << 20) / ring_size, RESTED_BYTES / ring_size);
        let ring = |model: &Model, part| ring_us(model, (size, ring_size), part, SEGMENT);
        let time = |algorithm, len| model.predicted_us(algorithm, len, size, SEGMENT);
        // Once the burst is used up, every byte goes at the long rate.
        let steady = Model { short_bytes: 0.0, ..*model };
        ProbeTimes {
            size,
            ring_size,
            ring_us: ring(model, 1),
            star_us: time(Algorithm::Star, 1),
            direct_us: time(Algorithm::Direct, size),
            short_part,
            short_ring_us: ring(model, short_part),
            two_us: two_us(model, (size, ring_size), 1, SEGMENT),
            short_two_us: two_us(model, (size, ring_size), short_part, SEGMENT),
            idle: ProbeRing::idle_of(size),
            long_part,
            long_ring_us: ring(&steady, long_part),
            direct_part: (1 << 20) / size,
            long_direct_us: steady.predicted_us(Algorithm::Direct, (1 << 20) / size * size, size, SEGMENT),
            rested_part,
            rested_ring_us: ring(model, rested_part),
            segment_bytes: SEGMENT,
            sum_bytes_per_us: model.sum_bytes_per_us,
        }
    }

    #[test]
    fn the_numbers_of_a_cluster_are_found_from_its_times() {
        let shaped = Model {
            latency_us: 20.0,
            message_us: 6.0,
            shared_message_us: 2.0,
            shared_us_per_byte: 1e-5,
            short_bytes_per_us: 1000.0,
            short_bytes: f64::from(128 << 10),
            long_bytes_per_us: 120.0,
            fan_factor: 1.1,
            sum_bytes_per_us: 8000.0,
        };
        let own_cores = Model { shared_message_us: 0.0, shared_us_per_byte: 0.0, ..shaped };
        let cached = Model { long_bytes_per_us: 700.0, ..shaped };
        let faster_later = Model { long_bytes_per_us: 1500.0, ..own_cores };
        for model in [shaped, own_cores, cached, faster_later] {
            for size in [3, 4, 8, 13, 32] {
                let found = fit(&times_on(&model, size));
                let close = |found: f64, true_value: f64, what: &str| {
                    let off = (found - true_value).abs();
                    assert!(
                        off <= 0.12 * true_value + 0.02,
                        "{what} on {size} ranks: {found} for {true_value}: {found:?}"
                    );
                };
                close(found.latency_us, model.latency_us, "latency");
                close(found.message_us, model.message_us, "message");
                close(found.shared_message_us, model.shared_message_us, "shared message");
                close(found.short_bytes_per_us, model.short_bytes_per_us, "short rate");
                if model == shaped {
                    close(found.short_bytes, model.short_bytes, "short bytes");
                }
                close(found.long_bytes_per_us, model.long_bytes_per_us, "long rate");
                close(found.fan_factor, model.fan_factor, "fan factor");
            }
        }
    }

    #[test]
    fn ranks_in_several_rings_measure_the_same_times() {
        const RANKS: usize = 17;
        let measured = |end| {
            let mut executor = Executor::new(Box::new(end), 256 << 10, Duration::from_secs(20), Arc::default());
            let ring = ProbeRing::of(executor.rank(), &std::array::from_fn::<u64, RANKS, _>(|rank| rank as u64));
            (ring.members.len(), Prober::new(&mut executor, ring).measure().unwrap())
        };
        let all: Vec<(usize, ProbeTimes)> = std::thread::scope(|scope| {
            let ranks: Vec<_> = inproc::world(RANKS).into_iter().map(|end| scope.spawn(|| measured(end))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(all.iter().filter(|(members, _)| *members == 8).count(), 8);
        assert!(all.iter().all(|(_, times)| *times == all[0].1 && times.ring_size == 9), "{all:?}");
    }

    #[test]
    fn ranks_that_wait_for_the_latest_of_many_are_not_taken_for_ranks_that_work() {
        let rate = 125.0;
        let own_cores = Model { short_bytes_per_us: rate, long_bytes_per_us: rate, ..Model::default() };
        for size in [3, 4, 8, 32] {
            let mut times = times_on(&own_cores, size);
            let wait_us = 0.5 * times.ring_us;
            times.ring_us += wait_us;
            times.short_ring_us += wait_us;
            times.long_ring_us += wait_us;
            let found = fit(&times);
            assert!((0.8..1.2).contains(&(found.short_bytes_per_us / rate)), "{size} ranks: {found:?}");
            assert!((0.8..1.2).contains(&(found.long_bytes_per_us / rate)), "{size} ranks: {found:?}");
        }
    }

    #[test]
    fn latency_is_not_taken_for_a_shaper() {
        // A long ring that takes 8 ms of latency is not made longer, and noise adds a quarter.
        let far =
            Model { latency_us: 1000.0, short_bytes_per_us: 1250.0, long_bytes_per_us: 1250.0, ..Model::default() };
        let mut times = ProbeTimes { long_part: (64 << 10) / 5, ..times_on(&far, 5) };
        let steady = |algorithm| far.predicted_us(algorithm, 5 * times.long_part, 5, SEGMENT);
        (times.long_ring_us, times.long_direct_us) = (1.25 * steady(Algorithm::Ring), 1.25 * steady(Algorithm::Direct));
        let found = fit(&times);
        for algorithm in [Algorithm::Direct, Algorithm::Circulant] {
            let time = |algorithm| found.predicted_us(algorithm, 256 << 10, 5, SEGMENT);
            assert!(time(algorithm) < 0.9 * time(Algorithm::Ring), "{algorithm} on {found:?}");
        }
    }

    #[test]
    fn any_times_at_all_give_a_sound_model() {
        for noise in [0.0, 1e-3, 1.0, 1e3, 1e9] {
            for size in [2, 3, 8, 31] {
                let mut times = times_on(&Model::default(), size);
                for at in 0..9 {
                    let fields = [
                        &mut times.ring_us,
                        &mut times.star_us,
                        &mut times.direct_us,
                        &mut times.short_ring_us,
                        &mut times.two_us,
                        &mut times.short_two_us,
                        &mut times.long_ring_us,
                        &mut times.long_direct_us,
                        &mut times.rested_ring_us,
                    ];
                    *fields.into_iter().nth(at).unwrap() = noise;
                    let model = fit(&times);
                    assert!(model.is_sound(), "{model:?} from {times:?}");
                }
            }
        }
    }
}
