//! Finds two racks by measuring, if they are not named.
//!
//! A narrow link between racks is slow only when several pairs of hosts use it at once. So hosts exchange
//! data in pairs, all pairs of a round at the same time, until every host has met every other: a tournament
//! by the circle method (in round `r` of `m` hosts, `i` meets `r - i`, modulo `m - 1`). Two groups of hosts
//! are racks if, without exception, the times within a group are short and those between the groups are long.
//! Load on a machine slows some pairs down, but hardly ever so that two groups result. So tournaments are
//! repeated, each pair's median counts, and two in a row must find the same racks.
//!
//! The racks are used only if the plan for racks is predicted to be faster: a ring over hosts in the order of
//! the racks may be nearly as fast.

use std::time::Instant;

use ringpull_base::{Buffer, Result};
use ringpull_plan::Algorithm;

use super::probe::{Prober, STAMP, Times, median};

/// With fewer hosts, times fall into two groups by chance too often; with more, a tournament takes too long.
const HOSTS: std::ops::RangeInclusive<usize> = 6..=32;
/// At most this many tournaments; two in a row must find the same racks.
const TOURNAMENTS: usize = 6;
/// About the limit for all of them together.
const MOST_US: f64 = 1_500_000.0;
/// What a pair sends in each direction: what a ring passes on in about 12 ms.
const GAME_US: f64 = 12_000.0;
const GAME_BYTES: std::ops::RangeInclusive<f64> = 65_536.0..=262_144.0;
/// The shortest time between racks is more than the longest within a rack by this factor,
const APART: f64 = 1.2;
/// and the long times are more than the short ones by this factor. Otherwise there are no racks to look for.
const SPREAD: f64 = 1.5;
/// The time of the plan for racks, relative to that of its busiest link.
const OVERHEAD: f64 = 1.15;

/// The times of all pairs, by host and host, in microseconds.
type PairTimes = Vec<Vec<f64>>;

impl Prober<'_> {
    /// The racks of `hosts` (ranks by host), bit `h` for host `h`; 0 if all are in one rack, or if the plan
    /// for racks would not be faster. Collective.
    pub(super) fn racks(&mut self, hosts: &[Vec<usize>], times: &Times) -> Result<u64> {
        if !HOSTS.contains(&hosts.len()) {
            return Ok(0);
        }
        let ring_us_per_byte = self.ring_of(hosts, times.size * times.long_part)?;
        let bytes = (GAME_US / ring_us_per_byte).clamp(*GAME_BYTES.start(), *GAME_BYTES.end()) as usize;
        let (mut played, mut last, mut spent_us) = (Vec::new(), None, 0.0);
        for _ in 0..TOURNAMENTS {
            let Some(times) = self.tournament(hosts, bytes, &mut spent_us)? else { return Ok(0) };
            played.push(times);
            let pairs = typical(&played);
            let found = split(&pairs).filter(|racks| is_worth_it(*racks, &pairs, bytes, ring_us_per_byte));
            tracing::trace!(?pairs, bytes, ring_us_per_byte, ?found, "pairs of hosts, in microseconds");
            if are_alike(&pairs) {
                return Ok(0);
            }
            if let Some(racks) = found.filter(|_| found == last) {
                return Ok(racks);
            }
            last = found;
        }
        Ok(0)
    }

    /// What a byte on a link takes in a ring over the hosts' first ranks, in microseconds.
    fn ring_of(&mut self, hosts: &[Vec<usize>], len: usize) -> Result<f64> {
        let members: Vec<usize> = hosts.iter().map(|ranks| ranks[0]).collect();
        let mut own_us = 0.0;
        if let Some(place) = members.iter().position(|member| *member == self.executor.rank()) {
            let plan = ringpull_plan::allreduce(Algorithm::Ring, place, members.len(), len).among(&members);
            let (schedule, mut data) = (self.executor.schedule(&plan), Buffer::zeroed(len));
            // The second time what shapers let through at first has been used up.
            for _ in 0..2 {
                let start = Instant::now();
                data = self.executor.move_buffer(&schedule, data, STAMP)?;
                own_us = start.elapsed().as_secs_f64() * 1e6;
            }
        }
        let rows = self.gather([own_us])?;
        let mut times: Vec<f64> = members.iter().map(|rank| rows[*rank][0]).collect();
        Ok(median(&mut times) * hosts.len() as f64 / (2 * (hosts.len() - 1) * len.max(1)) as f64)
    }

    /// Every host meets every other. `None` once more than [`MOST_US`] have been spent, by the clock of the
    /// slowest.
    fn tournament(&mut self, hosts: &[Vec<usize>], bytes: usize, spent_us: &mut f64) -> Result<Option<PairTimes>> {
        let mut pairs = vec![vec![0.0; hosts.len()]; hosts.len()];
        let own = hosts.iter().position(|ranks| ranks[0] == self.executor.rank());
        for round in 0..rounds(hosts.len()) {
            let other = own.and_then(|own| partner(own, round, hosts.len()));
            let took = other.map_or(Ok(0.0), |other| self.game(hosts[other][0], bytes))?;
            // No host begins the next round before all have ended this one.
            let rows = self.gather([took])?;
            // The half of each game that is not timed takes as long.
            *spent_us += 2.0 * rows.iter().map(|row| row[0]).fold(0.0, f64::max);
            if *spent_us > MOST_US {
                tracing::debug!("looking for racks takes too long; RINGPULL_RACK can name them");
                return Ok(None);
            }
            for (host, ranks) in hosts.iter().enumerate() {
                if let Some(other) = partner(host, round, hosts.len()) {
                    pairs[host][other] = rows[ranks[0]][0].max(rows[hosts[other][0]][0]);
                }
            }
        }
        Ok(Some(pairs))
    }

    /// Exchanges `bytes` with rank `other`, which does the same, twice: what shapers let through at first has
    /// then been used up.
    fn game(&mut self, other: usize, bytes: usize) -> Result<f64> {
        let plan = ringpull_plan::exchange(self.executor.rank(), other, bytes);
        let (data, _) = self.timed(&plan, Buffer::zeroed(2 * bytes))?;
        Ok(self.timed(&plan, data)?.1)
    }
}

/// Each pair's median; of an even number the lower of the two.
fn typical(played: &[PairTimes]) -> PairTimes {
    let hosts = played[0].len();
    let median = |host: usize, other: usize| {
        let mut times: Vec<f64> = played.iter().map(|pairs| pairs[host][other]).collect();
        times.sort_unstable_by(f64::total_cmp);
        times[(times.len() - 1) / 2]
    };
    (0..hosts).map(|host| (0..hosts).map(|other| median(host, other)).collect()).collect()
}

/// How many rounds it takes until every host has met every other.
fn rounds(hosts: usize) -> usize {
    hosts.next_multiple_of(2) - 1
}

/// Whom `host` meets in `round`, if anybody.
fn partner(host: usize, round: usize, hosts: usize) -> Option<usize> {
    let odd = rounds(hosts);
    let other = if host == odd {
        // The last host meets the one that would otherwise meet itself: `2 other = round`, modulo an odd
        // number.
        round * odd.div_ceil(2) % odd
    } else {
        let other = (round + odd - host) % odd;
        if other == host { odd } else { other }
    };
    (other < hosts).then_some(other)
}

/// Whether the times are nearly equal, without the longest and the shortest tenth.
fn are_alike(pairs: &PairTimes) -> bool {
    let sorted = sorted(pairs);
    let tenth = sorted.len() / 10;
    sorted[sorted.len() - 1 - tenth] < SPREAD * sorted[tenth]
}

fn sorted(pairs: &PairTimes) -> Vec<f64> {
    let mut times: Vec<f64> = pairs.iter().enumerate().flat_map(|(host, row)| row[..host].iter().copied()).collect();
    times.sort_unstable_by(f64::total_cmp);
    times
}

fn is_apart(racks: u64, host: usize, other: usize) -> bool {
    (racks >> host ^ racks >> other) & 1 == 1
}

/// The two groups of hosts, each of at least two, such that all times within a group are short and all times
/// between them are long.
fn split(pairs: &PairTimes) -> Option<u64> {
    let hosts = pairs.len();
    let all = || (0..hosts).flat_map(|host| (0..host).map(move |other| (host, other)));
    sorted(pairs).windows(2).filter(|two| two[1] >= APART * two[0]).find_map(|two| {
        let racks = (1..hosts).filter(|host| pairs[0][*host] >= two[1]).fold(0, |racks, host| racks | 1u64 << host);
        let fits = all().all(|(host, other)| (pairs[host][other] >= two[1]) == is_apart(racks, host, other));
        let second = racks.count_ones() as usize;
        (fits && second >= 2 && hosts - second >= 2).then_some(racks)
    })
}

/// Whether sums that cross the link between `racks` once are faster than a ring over all hosts.
fn is_worth_it(racks: u64, pairs: &PairTimes, bytes: usize, ring_us_per_byte: f64) -> bool {
    let hosts = pairs.len();
    let within = |host: usize, other: usize| !is_apart(racks, host, other);
    // Of all rounds, what a byte takes over the link between the racks, and what it takes over a host's own.
    let (mut across_us_per_byte, mut within_us_per_byte) = (f64::INFINITY, f64::INFINITY);
    for round in 0..rounds(hosts) {
        let met = (0..hosts).filter_map(|host| Some((host, partner(host, round, hosts)?)));
        let met: Vec<(usize, usize)> = met.filter(|(host, other)| host < other).collect();
        let crossing: Vec<f64> = met.iter().filter(|(a, b)| !within(*a, *b)).map(|(a, b)| pairs[*a][*b]).collect();
        if let Some(slowest) = crossing.iter().copied().max_by(f64::total_cmp) {
            across_us_per_byte = across_us_per_byte.min(slowest / (crossing.len() * bytes) as f64);
        }
        for (host, other) in met.into_iter().filter(|(host, other)| within(*host, *other)) {
            within_us_per_byte = within_us_per_byte.min(pairs[host][other] / bytes as f64);
        }
    }
    let share = 2.0 * (hosts - 1) as f64 / hosts as f64;
    OVERHEAD * across_us_per_byte.max(share * within_us_per_byte) < share * ring_us_per_byte
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a tournament measures where host `h` stands in rack `h` of `racks` and a byte takes `(host,
    /// uplink)` microseconds.
    fn times(racks: u64, hosts: usize, bytes: usize, host_us: f64, uplink_us: f64) -> PairTimes {
        let mut pairs = vec![vec![f64::INFINITY; hosts]; hosts];
        for round in 0..rounds(hosts) {
            let crossing = (0..hosts)
                .filter(|host| partner(*host, round, hosts).is_some_and(|other| is_apart(racks, *host, other)));
            let at_once = crossing.count() as f64 / 2.0;
            for host in 0..hosts {
                if let Some(other) = partner(host, round, hosts) {
                    let uplink = if is_apart(racks, host, other) { at_once * uplink_us } else { 0.0 };
                    pairs[host][other] = bytes as f64 * host_us.max(uplink);
                }
            }
        }
        pairs
    }

    #[test]
    fn every_host_meets_every_other_once() {
        for hosts in HOSTS {
            let mut met = vec![vec![0; hosts]; hosts];
            for round in 0..rounds(hosts) {
                for host in 0..hosts {
                    if let Some(other) = partner(host, round, hosts) {
                        assert_eq!(partner(other, round, hosts), Some(host), "{hosts} hosts, round {round}");
                        met[host][other] += 1;
                    }
                }
            }
            for (host, row) in met.iter().enumerate() {
                assert!(row.iter().enumerate().all(|(other, count)| *count == usize::from(other != host)), "{met:?}");
            }
        }
    }

    #[test]
    fn racks_are_found_wherever_their_hosts_stand() {
        for (racks, hosts) in [(0b1111_0000, 8), (0b1010_1010, 8), (0b0110_1010, 8), (0b01_1100, 6), (0b010_0110, 7)] {
            let racks = if racks & 1 == 1 { !racks & ((1 << hosts) - 1) } else { racks };
            for uplink_us in [0.016, 0.02, 0.1] {
                assert_eq!(
                    split(&times(racks, hosts, 1 << 18, 0.008, uplink_us)),
                    Some(racks),
                    "{racks:b} {uplink_us}"
                );
            }
        }
    }

    #[test]
    fn one_rack_a_slow_host_and_noise_are_no_racks() {
        let one_rack = times(0, 8, 1 << 18, 0.008, 1.0);
        assert!(split(&one_rack).is_none() && are_alike(&one_rack));
        let slow_host = |host, other| if host == 3 || other == 3 { 50.0 } else { 8.0 };
        let pairs = (0..8).map(|host| (0..8).map(|other| slow_host(host, other)).collect()).collect();
        assert_eq!(split(&pairs), None);
        let mut noisy = times(0b1111_0000, 8, 1 << 18, 0.008, 0.02);
        (noisy[1][2], noisy[2][1]) = (1e5, 1e5);
        assert_eq!(split(&noisy), None);
    }

    #[test]
    fn racks_count_where_the_link_between_them_is_what_a_ring_waits_for() {
        let (hosts, bytes, host_us) = (8, 1 << 18, 0.008);
        for (racks, uplink_us, ring_us, expected) in [
            // A ring of hosts in order crosses once in each direction, one of hosts in turn with every second
            // message.
            (0b1111_0000u64, 0.016, 0.016, true),
            (0b1010_1010, 0.016, 0.064, true),
            (0b1111_0000, 0.008, 0.008, false),
            (0b1010_1010, 0.008, 0.032, true),
        ] {
            let pairs = times(racks, hosts, bytes, host_us, uplink_us);
            assert_eq!(is_worth_it(racks, &pairs, bytes, ring_us), expected, "{racks:b} {uplink_us}");
        }
    }
}
