//! Many losses at random times, and the time from each loss to the next correct sum on all survivors.

use ringpull_base::config;

use crate::job::{Hosts, hosts_from_env, mend_links, open_mpi, run};

/// A linear congruential generator. It is random enough, and gives equal numbers for equal seeds.
struct RandomTrials(u64);

impl RandomTrials {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const RANKS: usize = 8;
/// The number of steps, great enough that no loss comes after the last one. The latest loss is 60 ms after
/// the beginning of step 38.
const STEPS: usize = 90;

/// A job with losses.
struct Trial {
    phase: &'static str,
    plan: String,
    lost: Vec<usize>,
    /// The number of ranks that share a host of the lab.
    share: usize,
    /// `RINGPULL_SILENCE`, after which a rank with a cut link is lost.
    silence_s: Option<u64>,
}

/// A rank is killed in one of the phases of a job; every eighth time it is rank 0.
fn one(random: &mut RandomTrials, number: u64) -> Trial {
    let rank = if number % 8 == 7 { 0 } else { random.below(RANKS as u64) };
    let (phase, when, share) = match number % 6 {
        0 => ("init", format!("init+{}", random.below(30_000)), 1),
        1 => ("between steps", format!("{}", random.below(15)), 1),
        2 => ("in a sum", format!("{}+{}", random.below(15), 500 + random.below(60_000)), 1),
        3 => ("frozen", format!("{}", 25 + random.below(12)), 1),
        4 => ("frozen, in a sum", format!("{}+{}", 25 + random.below(12), 500 + random.below(60_000)), 1),
        _ => ("shared memory", format!("{}+{}", random.below(35), random.below(60_000)), 2),
    };
    Trial { phase, plan: format!("kill={rank}@{when}"), lost: vec![rank as usize], share, silence_s: None }
}

/// Two ranks are killed within two milliseconds.
fn two(random: &mut RandomTrials, number: u64) -> Trial {
    let first = random.below(RANKS as u64);
    let second = (first + 1 + random.below(RANKS as u64 - 1)) % RANKS as u64;
    let (step, after) = (random.below(35), random.below(60_000));
    let plan = format!("kill={first}@{step}+{after},{second}@{step}+{}", after + random.below(2000));
    let (lost, share) = (vec![first as usize, second as usize], 1 + number as usize % 2);
    Trial { phase: "two at once", plan, lost, share, silence_s: None }
}

/// Six ranks are killed, one after the other.
fn down_to_two(random: &mut RandomTrials, number: u64) -> Trial {
    let mut left: Vec<usize> = (0..RANKS).collect();
    let lost: Vec<usize> = (2..RANKS).map(|_| left.swap_remove(random.below(left.len() as u64) as usize)).collect();
    let kills = lost.iter().enumerate().map(|(at, rank)| format!("{rank}@{}+{}", 3 + 7 * at, random.below(60_000)));
    let plan = format!("kill={}", kills.collect::<Vec<_>>().join(","));
    Trial { phase: "8 down to 2", plan, lost, share: 1 + number as usize % 2, silence_s: None }
}

/// The link of a rank's host is cut.
fn cut(random: &mut RandomTrials, _: u64) -> Trial {
    let rank = random.below(RANKS as u64);
    let plan = format!("cut={rank}@{}+{}", random.below(35), random.below(60_000));
    Trial { phase: "link cut", plan, lost: vec![rank as usize], share: 1, silence_s: Some(2) }
}

/// Milliseconds are counted from the loss, or from `RINGPULL_SILENCE` after a cut.
///
/// Runs `RINGPULL_ELASTIC_TRIALS` jobs, on this host, or on `RINGPULL_ELASTIC_HOSTS` emulated hosts
/// (`ringpull lab up`, with one more host for `mpirun`). `RINGPULL_ELASTIC_LOSS` is `one`, `two`, `down` or
/// `cut`. `RINGPULL_ELASTIC_FIRST` is the number of the first trial, to do them in pieces.
#[test]
#[ignore = "a measurement: benches/README.md has the command"]
fn trials() {
    let Some(folder) = open_mpi() else { return };
    let number = |name: &str, default| config::text(name).map_or(default, |number| number.parse().unwrap());
    let (first, count) = (number("RINGPULL_ELASTIC_FIRST", 0), number("RINGPULL_ELASTIC_TRIALS", 10));
    let hosts = hosts_from_env();
    let next: fn(&mut RandomTrials, u64) -> Trial = match config::text("RINGPULL_ELASTIC_LOSS").as_deref() {
        Some("two") => two,
        Some("down") => down_to_two,
        Some("cut") => cut,
        _ => one,
    };
    let mut times: Vec<(f64, u64)> = Vec::new();
    for trial in first..first + count {
        let Trial { phase, plan, lost, share, silence_s } = next(&mut RandomTrials(trial), trial);
        let place = match hosts {
            Hosts::Lab(hosts) => Hosts::Lab(hosts.div_ceil(share)),
            Hosts::Here => Hosts::Here,
        };
        mend_links(hosts);
        let silence = silence_s.map(|silence_s| silence_s.to_string());
        let mut env: Vec<(&str, &str)> = silence.iter().map(|silence| ("RINGPULL_SILENCE", &silence[..])).collect();
        if place.is_here() && share == 1 {
            env.extend(crate::BY_MESSAGES);
        }
        let ended = run(&folder, place, RANKS, &format!("steps={STEPS};len=30000;pause=1000;{plan}"), &env);
        let mut found = ended.check(&lost, STEPS);
        if let Some(silence_s) = silence_s {
            found.iter_mut().for_each(|time| *time -= 1e3 * silence_s as f64);
            ended.check_cut_off(&lost);
        }
        println!("{trial}: {phase}: {plan}: {found:.1?} ms");
        times.extend(found.into_iter().map(|time| (time, trial)));
    }
    mend_links(hosts);
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (worst, trial) = times.last().copied().unwrap_or_default();
    let median = times.get(times.len() / 2).map_or(f64::NAN, |time| time.0);
    println!("{count} jobs, {} losses: median {median:.1} ms, worst {worst:.1} ms in trial {trial}", times.len());
}
