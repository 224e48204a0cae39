//! Finds two racks and slow links by measuring hosts in pairs. Racks are looked for if they are not named.
//!
//! A narrow link between racks is slow only when several pairs of hosts use it at once. So hosts exchange
//! data in pairs, all pairs of a round at the same time, until every host has been paired with every other.
//! The rounds follow the circle method of tournaments (in round `r` of `m` hosts, `i` meets `r - i`, modulo
//! `m - 1`). Two groups of hosts are racks if, without exception, the times within a group are short and
//! those between the groups are long. Load on a machine slows some pairs down, but hardly ever so that two
//! groups result. So tournaments are repeated, each pair's shortest time counts, and two in a row must find
//! the same racks.
//!
//! Both hosts of a pair take the time until the other's data has come, so a link has a rate for each
//! direction. A host sends as fast as its messages to hosts whose links receive no more slowly: about as fast
//! as to the host that takes them fastest. The delay by other load does not last through all of a host's
//! exchanges. With a host whose link is slow all are slow, so no two groups are found. Links that seem to
//! differ are measured again, with more bytes, until all pairs but a few take the time that the rates
//! predict.
//!
//! The racks are used only if the plan for racks is predicted to be faster: a ring over hosts in the order of
//! the racks may be nearly as fast.

use std::time::Instant;

use ringpull_base::{Buffer, Result};
use ringpull_plan::{Algorithm, LinkRates, Links};

use super::probe::{BACK, ProbeRunner as _, ProbeTimes, Prober, STAMP, median};

/// The numbers of hosts that are measured in pairs. With fewer hosts neither racks nor weighted parts are of
/// use; with more, a tournament takes too long.
const HOSTS: std::ops::RangeInclusive<usize> = 3..=32;
/// The number of hosts below which times fall into two groups by chance too often.
const RACKED: usize = 6;
/// The most tournaments; two in a row must find the same racks.
const TOURNAMENTS: usize = 16;
/// The numbers of tournaments with longer exchanges in which links that seem to differ are measured, until
/// every pair but a few takes the time that the rates predict. A shaper that saves up while a busy host does
/// not send lets part of a short exchange through at once, and on busy hosts chance makes links seem to
/// differ.
const SURE: std::ops::RangeInclusive<usize> = 3..=8;
/// The factor by which a pair's time may differ from that of its slower link.
const FIT: f64 = 1.15;
/// The time of a longer exchange. More time would give no better result. Less time would measure the burst
/// that a shaper has saved up while its host waited: 128 KiB are a third of 0.05 s at 50 Mbit/s. With that
/// time equal links seemed to differ in 3 of 4 probes, and in none of 7 with this one.
const LONG_GAME_US: f64 = 150_000.0;
const LONG_GAME_BYTES: std::ops::RangeInclusive<f64> = 16_384.0..=16_777_216.0;
/// The bytes that a pair sends in each direction: a ring passes them on in about 50 ms.
const GAME_US: f64 = 50_000.0;
const GAME_BYTES: std::ops::RangeInclusive<f64> = 65_536.0..=1_048_576.0;
/// The shortest time between racks is more than the longest within a rack by this factor,
const APART: f64 = 1.2;
/// and the long times are more than the short ones by this factor. Otherwise there are no racks to look for.
const SPREAD: f64 = 1.5;
/// The time of the plan for racks, relative to that of its busiest link.
const OVERHEAD: f64 = 1.15;

/// The time of each host's message to each other host, in microseconds.
type PairTimes = Vec<Vec<f64>>;

/// The results of exchanges between pairs of hosts.
#[derive(Default)]
pub(super) struct PairResults {
    /// The racks, bit `h` for host `h`; 0 if all are in one rack, or if the plan for racks would not be
    /// faster.
    pub(super) racks: u64,
    /// The rates of each host's link, in bytes per microsecond; none if they are alike.
    pub(super) rates: Vec<LinkRates>,
}

impl Prober<'_> {
    /// The racks and the links of `hosts` (ranks by host). Racks are not looked for if they have names.
    /// Collective.
    pub(super) fn pairs(
        &mut self,
        hosts: &[Vec<usize>],
        are_named: bool,
        times: &ProbeTimes,
        report: &dyn Fn(&str),
    ) -> Result<PairResults> {
        if !HOSTS.contains(&hosts.len()) {
            return Ok(PairResults::default());
        }
        let ring_us_per_byte = self.ring_of(hosts, times.ring_size * times.long_part)?;
        let bytes = short_game_bytes(ring_us_per_byte) as usize;
        let step_us = times.ring_us / (2 * (times.ring_size - 1)) as f64;
        let (mut played, mut last) = (Vec::new(), None);
        let (mut racks, mut looks_for_racks) = (0, !are_named && hosts.len() >= RACKED);
        while played.len() < TOURNAMENTS {
            report(&format!("pairs of hosts, tournament {} of {TOURNAMENTS} at most", played.len() + 1));
            played.push(self.tournament(hosts, bytes)?);
            let pairs = both_ways(&shortest(&played));
            looks_for_racks &= !are_alike(&pairs);
            if !looks_for_racks {
                break;
            }
            let found = split(&pairs).filter(|racks| is_worth_it(*racks, &pairs, bytes, ring_us_per_byte));
            tracing::trace!(?pairs, bytes, ring_us_per_byte, ?found, "pairs of hosts, in microseconds");
            if found.is_some() && found == last {
                racks = found.unwrap_or(0);
                break;
            }
            last = found;
        }
        let rates = rates(&played, bytes, step_us);
        let rates = if racks == 0 && Links::of(&rates).is_some() {
            self.sure_rates(hosts, &rates, step_us, report)?.unwrap_or_default()
        } else {
            Vec::new()
        };
        Ok(PairResults { racks, rates })
    }

    /// Measures the rates of links that seem to have these, by longer exchanges. Returns an empty list if
    /// they do not differ, and `None` if the rates are not certain.
    fn sure_rates(
        &mut self,
        hosts: &[Vec<usize>],
        seem: &[LinkRates],
        step_us: f64,
        report: &dyn Fn(&str),
    ) -> Result<Option<Vec<LinkRates>>> {
        let bytes = game_bytes(typical_rate(seem));
        let mut played = Vec::new();
        while played.len() < *SURE.end() {
            report(&format!("links that seem to differ, tournament {} of {} at most", played.len() + 1, SURE.end()));
            played.push(self.tournament(hosts, bytes)?);
            if !SURE.contains(&played.len()) {
                continue;
            }
            let found = rates(&played, bytes, step_us);
            let (differ, is_sure) = (Links::of(&found).is_some(), fit(&found, &typical(&played), bytes, step_us));
            tracing::debug!(?found, bytes, differ, is_sure, "the rates of the hosts' links, in bytes per microsecond");
            if is_sure || !differ {
                return Ok(Some(if differ { found } else { Vec::new() }));
            }
        }
        Ok(None)
    }

    /// Returns the time of a byte on a link, in a ring over the hosts' first ranks, in microseconds.
    fn ring_of(&mut self, hosts: &[Vec<usize>], len: usize) -> Result<f64> {
        let members: Vec<usize> = hosts.iter().map(|ranks| ranks[0]).collect();
        let mut own_us = 0.0;
        if let Some(place) = members.iter().position(|member| *member == self.executor.rank()) {
            let plan = ringpull_plan::allreduce(Algorithm::Ring, place, members.len(), len).among(&members);
            let (schedule, mut data) = (self.executor.schedule(&plan), Buffer::zeroed(len));
            // The burst that shapers let through at first has been used up the second time.
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

    /// Pairs every host with every other, and returns the times of the exchanges.
    fn tournament(&mut self, hosts: &[Vec<usize>], bytes: usize) -> Result<PairTimes> {
        let mut pairs = vec![vec![0.0; hosts.len()]; hosts.len()];
        let own = hosts.iter().position(|ranks| ranks[0] == self.executor.rank());
        for round in 0..rounds(hosts.len()) {
            let other = own.and_then(|own| partner(own, round, hosts.len()));
            let took = other.map_or(Ok(0.0), |other| self.game(hosts[other][0], bytes))?;
            // No host begins the next round before all have ended this one.
            let rows = self.gather([took])?;
            for (host, ranks) in hosts.iter().enumerate() {
                if let Some(other) = partner(host, round, hosts.len()) {
                    pairs[other][host] = rows[ranks[0]][0];
                }
            }
        }
        Ok(pairs)
    }

    /// Exchanges `bytes` with rank `other` twice, which does the same: the burst that shapers let through at
    /// first has then been used up. Returns the time of the second message of `other`, in microseconds.
    fn game(&mut self, other: usize, bytes: usize) -> Result<f64> {
        let rank = self.executor.rank();
        let (data, _) = self.timed(&ringpull_plan::exchange(rank, other, bytes), Buffer::zeroed(2 * bytes))?;
        // One of the two may have received all its data long before the other.
        self.timed(&ringpull_plan::exchange(rank, other, 1), Buffer::zeroed(2))?;
        let (out, into) = ringpull_plan::exchange_by_direction(rank, other, bytes);
        let (out, into) = (self.executor.schedule(&out), self.executor.schedule(&into));
        let stamps = if rank < other { (STAMP, BACK) } else { (BACK, STAMP) };
        let sent = Buffer::copy_of(data.bytes());
        let start = Instant::now();
        let took = self.executor.move_beside((&out, sent, stamps.0), (&into, data, stamps.1), || start.elapsed())?;
        Ok(took.as_secs_f64() * 1e6)
    }
}

/// Returns the rates of each host's link, in bytes per microsecond. The rate follows from the typical time of
/// its messages of `bytes` bytes to hosts whose links receive no more slowly, without `step_us`, which is not
/// the link's. The rate at which it receives follows in the same way.
fn rates(played: &[PairTimes], bytes: usize, step_us: f64) -> Vec<LinkRates> {
    if played.is_empty() {
        return Vec::new();
    }
    let pairs = typical(played);
    let back: PairTimes = (0..pairs.len()).map(|host| pairs.iter().map(|row| row[host]).collect()).collect();
    let (sends, receives) = (one_way(&pairs, &back), one_way(&back, &pairs));
    // Not less than half of it, whatever load has done to the other time.
    let rate = |time: f64| bytes as f64 / (time - step_us).max(0.5 * time);
    sends.into_iter().zip(receives).map(|(out, into)| LinkRates { sends: rate(out), receives: rate(into) }).collect()
}

/// Returns the typical time of each host's messages in one direction. `pairs` has the times by host and other
/// host, and `back` those of the other direction.
fn one_way(pairs: &PairTimes, back: &PairTimes) -> Vec<f64> {
    /// The factor by which noise changes a time, up or down.
    const NOISE: f64 = 1.25;
    let with_others = |host: usize| (0..pairs.len()).filter(move |other| *other != host);
    let shortest = |times: &PairTimes| -> Vec<f64> {
        let of = |host: usize| with_others(host).map(|other| times[host][other]).fold(f64::INFINITY, f64::min);
        (0..times.len()).map(of).collect()
    };
    let (there, here) = (shortest(pairs), shortest(back));
    let typical = |host: usize| {
        let no_slower = with_others(host).filter(|other| here[*other] < NOISE * there[host]);
        median(&mut no_slower.map(|other| pairs[host][other]).collect::<Vec<_>>())
    };
    (0..pairs.len()).map(typical).collect()
}

/// The bytes that a pair sends in each direction at once in a longer game, on links of this typical rate.
fn game_bytes(typical: f64) -> usize {
    (LONG_GAME_US * typical).clamp(*LONG_GAME_BYTES.start(), *LONG_GAME_BYTES.end()) as usize
}

/// The median of the links' rates, of the slower direction of each.
pub(super) fn typical_rate(rates: &[LinkRates]) -> f64 {
    median(&mut rates.iter().map(|rates| rates.slower()).collect::<Vec<_>>())
}

/// Returns the longer time of each pair.
fn both_ways(pairs: &PairTimes) -> PairTimes {
    let longer = |host: usize, other: usize| pairs[host][other].max(pairs[other][host]);
    (0..pairs.len()).map(|host| (0..pairs.len()).map(|other| longer(host, other)).collect()).collect()
}

/// Returns true if all messages but a quarter take the time that the slower of their links predicts.
fn fit(rates: &[LinkRates], pairs: &PairTimes, bytes: usize, step_us: f64) -> bool {
    let hosts = 0..rates.len();
    let all = || hosts.clone().flat_map(|from| hosts.clone().map(move |to| (from, to))).filter(|(from, to)| from != to);
    let is_off = |(from, to): &(usize, usize)| {
        let ratio = (pairs[*from][*to] - step_us) * rates[*from].sends.min(rates[*to].receives) / bytes as f64;
        !(1.0 / FIT..FIT).contains(&ratio)
    };
    4 * all().filter(is_off).count() <= all().count()
}

/// Each pair's shortest time: other load only adds to it.
fn shortest(played: &[PairTimes]) -> PairTimes {
    let hosts = 0..played[0].len();
    let of = |host: usize, other: usize| played.iter().map(|pairs| pairs[host][other]).fold(f64::INFINITY, f64::min);
    hosts.clone().map(|host| hosts.clone().map(|other| of(host, other)).collect()).collect()
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

/// Returns the number of rounds until every host has met every other.
fn rounds(hosts: usize) -> usize {
    hosts.next_multiple_of(2) - 1
}

/// Returns the host that `host` meets in `round`, if any.
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

/// Returns the bytes that a pair sends in each direction, where a byte takes `ring_us_per_byte` in a ring.
fn short_game_bytes(ring_us_per_byte: f64) -> f64 {
    (GAME_US / ring_us_per_byte).clamp(*GAME_BYTES.start(), *GAME_BYTES.end())
}

/// Returns true if the times are nearly equal, without the longest and the shortest tenth.
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

/// Returns true if sums that cross the link between `racks` once are faster than a ring over all hosts.
fn is_worth_it(racks: u64, pairs: &PairTimes, bytes: usize, ring_us_per_byte: f64) -> bool {
    let hosts = pairs.len();
    let within = |host: usize, other: usize| !is_apart(racks, host, other);
    // The least time of a byte in all rounds, over the link between the racks and over a host's own.
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

    /// Returns the times of a tournament where host `h` stands in rack `h` of `racks` and a byte takes
    /// `(host, uplink)` microseconds.
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
    fn the_rates_of_links_are_found_whoever_meets_whom_and_whatever_one_time_is() {
        for hosts in [3, 5, 8] {
            let rate = |host: usize| if host == 2 { 12.5 } else { 25.0 };
            let exchange = |host: usize, other: usize| 100.0 + 1e6 / f64::min(rate(host), rate(other));
            let pairs: PairTimes = (0..hosts)
                .map(|host| (0..hosts).map(|other| if other == host { 0.0 } else { exchange(host, other) }).collect())
                .collect();
            let mut noisy = pairs.clone();
            (noisy[0][1], noisy[1][0]) = (1.0, 1.0);
            let found = rates(&[pairs.clone(), noisy, pairs], 1_000_000, 100.0);
            for (host, found) in found.iter().enumerate() {
                assert!((found.sends - rate(host)).abs() < 1e-6, "host {host} of {hosts}: {found:?}");
                assert!((found.receives - rate(host)).abs() < 1e-6, "host {host} of {hosts}: {found:?}");
            }
        }
        assert_eq!(rates(&[], 1, 1.0), []);
    }

    #[test]
    fn a_link_that_is_slow_in_one_direction_has_two_rates() {
        let rates_of = |host: usize| match host {
            1 => LinkRates { sends: 12.5, receives: 25.0 },
            4 => LinkRates { sends: 25.0, receives: 5.0 },
            _ => LinkRates::both(25.0),
        };
        let takes = |from: usize, to: usize| 100.0 + 1e6 / f64::min(rates_of(from).sends, rates_of(to).receives);
        let pairs: PairTimes = (0..6).map(|from| (0..6).map(|to| takes(from, to)).collect()).collect();
        let found = rates(std::slice::from_ref(&pairs), 1_000_000, 100.0);
        let expected: Vec<LinkRates> = (0..6).map(rates_of).collect();
        let is_close = |(one, other): (&LinkRates, &LinkRates)| {
            (one.sends - other.sends).abs() < 1e-6 && (one.receives - other.receives).abs() < 1e-6
        };
        assert!(found.iter().zip(&expected).all(is_close), "{found:?}");
        assert!(fit(&found, &pairs, 1_000_000, 100.0) && !fit(&[LinkRates::both(25.0); 6], &pairs, 1_000_000, 100.0));
    }

    #[test]
    fn rates_are_sure_where_every_pair_has_the_time_of_its_slower_link() {
        let rate = |host: usize| if host < 4 { 12.5 } else { 25.0 };
        let exchange = |host: usize, other: usize| 100.0 + 1e6 / f64::min(rate(host), rate(other));
        let mut pairs: PairTimes = (0..8).map(|host| (0..8).map(|other| exchange(host, other)).collect()).collect();
        let found: Vec<LinkRates> = (0..8).map(rate).map(LinkRates::both).collect();
        assert!(fit(&found, &pairs, 1_000_000, 100.0));
        // A quarter of 28 pairs is 7.
        for other in 0..7 {
            (pairs[7][other], pairs[other][7]) = (2e5, 2e5);
        }
        assert!(fit(&found, &pairs, 1_000_000, 100.0));
        (pairs[1][0], pairs[0][1]) = (2e5, 2e5);
        assert!(!fit(&found, &pairs, 1_000_000, 100.0));
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
