//! Jobs that go on without ranks that are killed, under the `mpirun` of an Open MPI with fault tolerance:
//! which contributions every sum has, on every rank that is left. Skipped where there is none: `scripts/setup
//! --openmpi5` fetches it.
//!
//! In step `s` each rank adds to every element `2^own + 1024 s`, `own` being its number at the start. So a
//! sum tells whose contributions it has: all of those that were there before a loss, or all that are there
//! after it.
#![cfg(feature = "mpi")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull::{DType, Error, Optimizer, Result, Tensor};
use ringpull_base::config;
use ringpull_processes::{Processes, own_path};
use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// The variable with what a rank does, and when it kills itself: `steps=40;kill=2@7+300,0@12`, which is rank
/// 2 in step 7, 300 us after its beginning, and rank 0 in step 12 before it.
const CHILD: &str = "RINGPULL_ELASTIC_CHILD";
const STEP: f64 = 1024.0;

/// An installation of Open MPI with fault tolerance.
fn open_mpi() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = [".deps/openmpi5", "target/mpis/openmpi5"].map(|folder| root.join(folder));
    let found = found.into_iter().find(|folder| folder.join("bin/mpirun").is_file());
    if found.is_none() {
        eprintln!("skipped: no Open MPI with fault tolerance; scripts/setup --openmpi5 fetches it");
    }
    found
}

/// What a job of so many ranks has written, which ended by itself.
struct Ended {
    processes: Processes,
    ranks: usize,
}

fn run(folder: &Path, ranks: usize, plan: &str, env: &[(&str, &str)]) -> Ended {
    let mut processes = Processes::new();
    let mut command = Command::new(folder.join("bin/mpirun"));
    command
        .args(["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()])
        .args(processes.redirected([own_path()]))
        .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.join("lib"))
        .envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .envs(["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .env("RINGPULL_ELASTIC", "1")
        .env("RINGPULL_QUIET", "1")
        .env(CHILD, plan)
        .envs(env.iter().copied());
    processes.start("mpirun", &mut command);
    let limit = Duration::from_secs(40);
    assert!(processes.ends_by(Instant::now() + limit), "{plan}: the job did not end in {limit:?}:\n{processes}");
    processes.wait_until(Duration::from_secs(2), "processes are left", |processes| processes.living().is_empty());
    Ended { processes, ranks }
}

impl Ended {
    /// The words of the lines of a rank that begin with `first`.
    fn lines(&self, rank: usize, first: &str) -> Vec<Vec<String>> {
        let text = self.processes.rank(rank).to_string();
        let lines = text.lines().filter_map(|line| line.split_once(&format!("{first} ")));
        lines.map(|(_, rest)| rest.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Checks every sum; `lost` are the ranks that are killed, in that order, in `steps` steps. The time from
    /// the first kill to the first sum without that rank on all others.
    fn check(&self, lost: &[usize], steps: usize) -> Option<f64> {
        let complain = |what: String| -> ! { panic!("{what}\n{}", self.processes) };
        let mut allowed: Vec<u32> = vec![(1 << self.ranks) - 1];
        lost.iter().for_each(|rank| allowed.push(allowed[allowed.len() - 1] & !(1 << rank)));
        // Of each step and key, whose contributions its sum has.
        let mut masks: BTreeMap<(usize, String), BTreeSet<u32>> = BTreeMap::new();
        let mut first_without = 0f64;
        let survivors: Vec<usize> = (0..self.ranks).filter(|rank| !lost.contains(rank)).collect();
        for rank in 0..self.ranks {
            let sums = self.lines(rank, "sum");
            let mut stage = BTreeMap::new();
            for words in &sums {
                let [step, key, mask, time] = &words[..] else { complain(format!("rank {rank}: {words:?}")) };
                let (step, mask): (usize, u32) = (step.parse().unwrap(), mask.parse().unwrap());
                let Some(found) = allowed.iter().position(|allowed| *allowed == mask) else {
                    complain(format!("rank {rank}, step {step}: contributions {mask:b}"))
                };
                let before = stage.insert(key.clone(), found).unwrap_or(0);
                if before > found {
                    complain(format!("rank {rank}, step {step}: lost contributions are back"));
                }
                masks.entry((step, key.clone())).or_default().insert(mask);
                let is_first = key == "long" && before == 0 && found > 0;
                if is_first && survivors.contains(&rank) {
                    first_without = first_without.max(time.parse().unwrap());
                }
            }
            if survivors.contains(&rank) {
                let counted = sums.iter().filter(|words| words[1] == "long").count();
                if counted != steps {
                    complain(format!("rank {rank} has {counted} of {steps} sums"));
                }
                let ended = self.lines(rank, "ended");
                let expected = [(self.ranks - lost.len()).to_string(), lost.len().to_string()];
                if ended.len() != 1 || ended[0][..2] != expected {
                    complain(format!("rank {rank} ended with {ended:?}, not {expected:?}"));
                }
            }
        }
        if let Some(((step, key), masks)) = masks.iter().find(|(_, masks)| masks.len() > 1) {
            complain(format!("step {step}, key {key}: ranks have different sums: {masks:?}"));
        }
        let killed = self.lines(*lost.first()?, "killed");
        let killed: f64 = killed.first()?.first()?.parse().unwrap();
        Some(first_without - killed)
    }
}

fn now_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn die() -> ! {
    println!("killed {:.6}", now_s());
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("a process that is killed does nothing more")
}

/// Whose contributions a sum of that step has.
fn mask(sum: f64, step: usize) -> Option<u32> {
    (1..=16u32).find_map(|count| {
        let rest = sum - f64::from(count) * STEP * step as f64;
        let mask = rest as u32;
        ((0.0..STEP).contains(&rest) && mask.count_ones() == count).then_some(mask)
    })
}

/// All elements of a tensor, which have to be one.
fn element(tensor: &Tensor) -> Result<f64> {
    let all = tensor.to_vec::<f32>()?;
    let odd = all.iter().find(|element| **element != all[0]);
    odd.map_or(Ok(f64::from(all[0])), |odd| Err(Error::bug(format!("elements {} and {odd}", all[0]))))
}

#[test]
#[ignore = "one process of a job, which the other tests start"]
fn one_process_of_a_job() {
    let plan = config::text(CHILD).expect("the tests start it");
    let words: BTreeMap<&str, &str> = plan.split(';').filter_map(|word| word.split_once('=')).collect();
    let number = |name: &str, default: usize| words.get(name).map_or(default, |word| word.parse().unwrap());
    if let Err(fault) = rank(&words, number("steps", 30), number("len", 300_000)) {
        println!("failed {fault}");
        std::process::exit(1);
    }
}

fn rank(words: &BTreeMap<&str, &str>, steps: usize, len: usize) -> Result<()> {
    let store = ringpull::create("dist_sync_mpi")?;
    let own = store.rank();
    let kills = words.get("kill").copied().unwrap_or_default().split(',').filter(|kill| !kill.is_empty());
    let kills = kills.map(|kill| {
        let (who, when) = kill.split_once('@').unwrap();
        let (step, after) = when.split_once('+').map_or((when, None), |(step, after)| (step, Some(after)));
        (who.parse().unwrap(), step.to_owned(), after.map(|after| after.parse().unwrap()))
    });
    let kills: Vec<(usize, String, Option<u64>)> = kills.collect();
    let own_kill = kills.iter().find(|(rank, ..)| *rank == own);
    store.on_change(Box::new(|change| {
        println!("without {} {} {} {:?}", change.generation, change.rank, change.num_workers, change.lost);
        Ok(())
    }));
    let dies = |step: &str| {
        let Some((_, _, after)) = own_kill.filter(|(_, when, _)| when == step) else { return };
        match *after {
            None => die(),
            Some(after) => drop(std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(after));
                die();
            })),
        }
    };
    dies("init");
    let (long, short) = (Tensor::zeros(DType::F32, &[len]), Tensor::zeros(DType::F32, &[10]));
    store.init("long", &long)?;
    store.init("short", &short)?;
    let others = ringpull::create_elastic("dist_sync_mpi")?;
    others.set_optimizer(&"sgd,lr=1,momentum=0.5".parse::<Optimizer>()?)?;
    others.init("weights", &short)?;
    let give = |tensor: &Tensor, value: f64| tensor.write().as_mut_slice::<f32>().fill(value as f32);
    let (gradient, weights) = (Tensor::zeros(DType::F32, &[10]), Tensor::zeros(DType::F32, &[10]));
    let pause = Duration::from_micros(words.get("pause").map_or(0, |word| word.parse().unwrap()));
    for step in 0..steps {
        dies(&step.to_string());
        let value = f64::from(1u32 << own) + STEP * step as f64;
        give(&long, value);
        give(&short, value);
        give(&gradient, value / 1024.0);
        if words.get("error").is_some_and(|when| *when == format!("{own}@{step}")) {
            store.push("no such key", std::slice::from_ref(&long), 0)?;
        }
        assert!(words.get("panic").is_none_or(|when| *when != format!("{own}@{step}")), "a program may panic");
        store.push_pull("long", std::slice::from_ref(&long), std::slice::from_ref(&long), 0)?;
        store.push_pull("short", std::slice::from_ref(&short), std::slice::from_ref(&short), 0)?;
        others.push("weights", std::slice::from_ref(&gradient), 0)?;
        for (key, tensor) in [("long", &long), ("short", &short)] {
            let sum = element(tensor)?;
            let mask = mask(sum, step).ok_or_else(|| Error::bug(format!("step {step}, {key}: {sum}")))?;
            println!("sum {step} {key} {mask} {:.6}", now_s());
        }
        std::thread::sleep(pause);
    }
    if words.contains_key("leave") {
        // All but rank 0 leave at once, and a rank may die while their last sum is under way.
        give(&long, f64::from(1u32 << own));
        store.push("long", std::slice::from_ref(&long), 0)?;
        dies("leave");
        if own == 0 {
            store.pull("long", std::slice::from_ref(&long), 0)?;
            println!("last {}", element(&long)?);
        } else if own_kill.is_some() {
            std::thread::sleep(Duration::from_secs(5));
        }
        return Ok(());
    }
    others.pull("weights", std::slice::from_ref(&weights), 0)?;
    store.barrier()?;
    println!("ended {} {} {}", store.num_workers(), store.generation().min(9), element(&weights)?);
    Ok(())
}

/// The end of ranks that have come through: one value of what an optimizer has made of all sums, each of them
/// of all that were there before a loss or after it; and each was told of every loss.
fn check_ends(ended: &Ended, lost: &[usize], steps: usize) {
    let left: Vec<usize> = (0..ended.ranks).filter(|rank| !lost.contains(rank)).collect();
    let values: BTreeSet<String> = left.iter().map(|rank| ended.lines(*rank, "ended")[0][2].clone()).collect();
    assert_eq!(values.len(), 1, "optimizers differ:\n{}", ended.processes);
    let value: f64 = values.first().unwrap().parse().unwrap();
    let weights = possible_weights(ended.ranks, lost, steps);
    let is_near = |weights: &f64| (value - weights).abs() < 1e-5 * weights.abs().max(1.0);
    assert!(weights.iter().any(is_near), "the weights are {value}, not one of {weights:?}");
    for rank in left {
        let mut numbers: Vec<usize> = (0..ended.ranks).collect();
        let expected = lost.iter().zip(1..).map(|(lost, generation)| {
            let place = numbers.iter().position(|other| other == lost).unwrap();
            numbers.remove(place);
            let own = numbers.iter().position(|other| *other == rank).unwrap();
            [generation, own, numbers.len()].map(|number| number.to_string()).into_iter().chain([format!("[{place}]")])
        });
        let expected: Vec<Vec<String>> = expected.map(Iterator::collect).collect();
        assert_eq!(ended.lines(rank, "without"), expected, "rank {rank}:\n{}", ended.processes);
    }
}

/// What the optimizer may have made of the sums, whenever the ranks were lost.
fn possible_weights(ranks: usize, lost: &[usize], steps: usize) -> Vec<f64> {
    // The weights and their momentum after some steps, with who is there and who will be lost.
    let mut all = vec![(0.0, 0.0, (1u32 << ranks) - 1, lost)];
    for step in 0..steps {
        for at in 0..all.len() {
            let (mut state, mut lost) = (all[at], all[at].3);
            while let [first, rest @ ..] = lost {
                lost = rest;
                (state.2, state.3) = (state.2 & !(1 << first), rest);
                all.push(state);
            }
        }
        for (weights, velocity, mask, _) in &mut all {
            let sum = f64::from(*mask) + f64::from(mask.count_ones()) * STEP * step as f64;
            *velocity = 0.5 * *velocity - sum / 1024.0;
            *weights += *velocity;
        }
    }
    all.into_iter().map(|(weights, ..)| weights).collect()
}

fn case(ranks: usize, plan: &str, lost: &[usize], steps: usize, env: &[(&str, &str)]) {
    let Some(folder) = open_mpi() else { return };
    let ended = run(&folder, ranks, &format!("steps={steps};{plan}"), env);
    let time = ended.check(lost, steps);
    check_ends(&ended, lost, steps);
    println!("{plan}: {:.1} ms", time.unwrap_or(0.0) * 1e3);
}

const BY_MESSAGES: &[(&str, &str)] = &[("RINGPULL_SHARED_MEMORY", "0")];

#[test]
fn a_rank_that_dies_between_steps_is_left_out_of_later_sums() {
    case(3, "kill=2@2", &[2], 8, &[]);
    case(3, "kill=1@2", &[1], 8, BY_MESSAGES);
}

#[test]
fn a_rank_that_dies_in_a_sum_counts_in_it_on_all_ranks_or_on_none() {
    case(4, "kill=2@3+300;len=4000000", &[2], 8, &[]);
    case(4, "kill=2@3+300;len=4000000", &[2], 8, BY_MESSAGES);
}

#[test]
fn rank_0_may_die() {
    case(3, "kill=0@3", &[0], 8, &[]);
    case(3, "kill=0@3+200", &[0], 8, BY_MESSAGES);
}

#[test]
fn two_ranks_may_die_one_after_the_other() {
    case(4, "kill=0@3,2@7+100", &[0, 2], 12, &[]);
    case(4, "kill=3@3,1@7+100", &[3, 1], 12, BY_MESSAGES);
}

#[test]
fn a_rank_may_die_while_steps_are_frozen() {
    case(3, "kill=1@25", &[1], 40, &[]);
    case(3, "kill=1@25+100", &[1], 40, BY_MESSAGES);
}

/// Kills a random rank of eight at a random time, as often as `RINGPULL_ELASTIC_TRIALS` says, and prints the
/// time from the kill to the next correct sum on all that are left.
#[test]
#[ignore = "a measurement: RINGPULL_ELASTIC_TRIALS=200 cargo test --release --test elastic -- --ignored trials"]
fn trials() {
    let Some(folder) = open_mpi() else { return };
    let count: u64 = config::text("RINGPULL_ELASTIC_TRIALS").map_or(10, |count| count.parse().unwrap());
    let seed = config::text("RINGPULL_ELASTIC_SEED").map_or(1, |seed| seed.parse().unwrap());
    // A linear congruence is random enough, and the same again for the same seed.
    let mut state: u64 = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut times = Vec::new();
    for trial in 0..count {
        let (rank, step, after) = (random(8), random(30), random(20_000));
        let plan = format!("kill={rank}@{step}+{after};len=100000;steps=60;pause=1000");
        let env = if trial % 2 == 0 { &[][..] } else { BY_MESSAGES };
        let time = run(&folder, 8, &plan, env).check(&[rank as usize], 60).unwrap_or(f64::NAN);
        println!("{trial}: {plan} {}: {:.1} ms", if trial % 2 == 0 { "shared" } else { "messages" }, time * 1e3);
        times.push(time * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{count} losses: median {:.1} ms, worst {:.1} ms", times[times.len() / 2], times[times.len() - 1]);
}

#[test]
fn a_program_that_fails_is_no_loss() {
    let Some(folder) = open_mpi() else { return };
    for (plan, why) in [("error=2@3", "no such key"), ("panic=2@3", "it panicked")] {
        let ended = run(&folder, 3, &format!("steps=8;{plan}"), &[]);
        for rank in 0..2 {
            let failed: Vec<String> = ended.lines(rank, "failed").iter().map(|words| words.join(" ")).collect();
            assert!(failed.iter().any(|failed| failed.contains(why)), "{plan}: {failed:?}\n{}", ended.processes);
        }
    }
}

#[test]
fn a_rank_that_leaves_stays_for_its_last_sum() {
    let Some(folder) = open_mpi() else { return };
    let ended = run(&folder, 4, "steps=4;len=4000000;leave=1;kill=2@leave+1000", &[]);
    let last = ended.lines(0, "last");
    assert!(last == [["15"]] || last == [["11"]], "{last:?}\n{}", ended.processes);
}

#[test]
fn a_rank_may_die_before_it_has_called_init() {
    case(3, "kill=1@init", &[1], 6, &[]);
    case(3, "kill=0@init+100", &[0], 6, BY_MESSAGES);
}
