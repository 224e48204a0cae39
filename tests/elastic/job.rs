//! Starts a job of the tests, on this host or on those of the lab, and checks the output of its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull_base::config;
use ringpull_processes::{Processes, own_path};

use crate::rank::{CHILD, STEP};

/// A program in place of ssh on emulated hosts.
const AGENT: &str = r#"#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
exec nsenter --uts=/run/ringpull/lab/$host.uts -- ip netns exec "$host" sh -c "$*"
"#;

/// An installation of Open MPI with fault tolerance.
pub(crate) fn open_mpi() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = [".deps/openmpi5", "target/mpis/openmpi5"].map(|folder| root.join(folder));
    let found = found.into_iter().find(|folder| folder.join("bin/mpirun").is_file());
    if found.is_none() {
        eprintln!("skipped: no Open MPI with fault tolerance; scripts/setup --openmpi5 fetches it");
    }
    found
}

/// The hosts of the ranks of a job: rank `r` is on the host `r` modulo their number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hosts {
    /// All on this one.
    Here,
    /// On the first hosts of `ringpull lab up`, and `mpirun` on the one after them.
    Lab(usize),
}

impl Hosts {
    pub(crate) fn is_here(self) -> bool {
        matches!(self, Hosts::Here)
    }

    /// The command that begins with `mpirun`.
    fn mpirun(self, folder: &Path, ranks: usize, processes: &Processes) -> Command {
        let program = folder.join("bin/mpirun");
        let (mut command, places) = match self {
            Hosts::Here => (Command::new(program), None),
            Hosts::Lab(hosts) => {
                let launcher = format!("h{}", hosts + 1);
                let mut command = Command::new("nsenter");
                command.args([&format!("--uts=/run/ringpull/lab/{launcher}.uts"), "--"]);
                command.args(["ip", "netns", "exec", &launcher]).arg(program);
                let agent = processes.folder().join("agent");
                std::fs::write(&agent, AGENT).unwrap();
                std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o700)).unwrap();
                for (name, value) in [
                    ("plm_ssh_agent", agent.to_str().unwrap()),
                    ("plm_ssh_no_tree_spawn", "1"),
                    ("prte_if_include", "10.55.0.0/24"),
                ] {
                    command.args(["--prtemca", name, value]);
                }
                command.args(["--mca", "btl_tcp_if_include", "10.55.0.0/24", "--map-by", "node:OVERSUBSCRIBE"]);
                let slots = |host: usize| format!("h{}:{}", host + 1, (ranks - host).div_ceil(hosts));
                (command, Some((0..hosts.min(ranks)).map(slots).collect::<Vec<_>>().join(",")))
            }
        };
        match places {
            Some(places) => command.args(["--host", &places]),
            None => command.arg("--oversubscribe"),
        };
        command.args(["--with-ft", "ulfm", "--bind-to", "none", "-n", &ranks.to_string()]);
        command
    }
}

/// The output of a job that ended by itself.
pub(crate) struct EndedJob {
    pub(crate) processes: Processes,
    pub(crate) ranks: usize,
}

/// Runs the job to its end. Checks that no process of it is left.
pub(crate) fn run(folder: &Path, hosts: Hosts, ranks: usize, plan: &str, env: &[(&str, &str)]) -> EndedJob {
    let mut processes = Processes::new();
    let mut command = hosts.mpirun(folder, ranks, &processes);
    command
        .args(processes.redirected([own_path()]))
        .args(["rank::one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.join("lib"))
        .envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .envs(["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")))
        .env("RINGPULL_ELASTIC", "1")
        .env("RINGPULL_QUIET", "1")
        .env(CHILD, format!("{plan};links={}", std::process::id()))
        .envs(env.iter().copied());
    processes.start("mpirun", &mut command);
    let limit = Duration::from_secs(120);
    if let (Hosts::Lab(_), Some(cut)) = (hosts, plan.split_once("cut=")) {
        // `mpirun` cannot end before it hears of the rank that was cut off.
        let cut: usize = cut.1.split('@').next().unwrap().parse().unwrap();
        let has_ended = |processes: &Processes, rank: usize| processes.rank(rank).count("test result") > 0;
        processes.wait_until(limit, "ranks have not ended", |processes| {
            (0..ranks)
                .all(|rank| has_ended(processes, rank) || rank == cut && processes.rank(rank).count("failed ") > 0)
        });
        mend_links(hosts);
    }
    assert!(processes.ends_by(Instant::now() + limit), "{plan}: the job did not end in {limit:?}:\n{processes}");
    processes.wait_until(Duration::from_secs(5), "processes are left", |processes| processes.living().is_empty());
    EndedJob { processes, ranks }
}

/// Runs a job on this host, loses `lost` of its ranks, and checks everything.
pub(crate) fn case(ranks: usize, plan: &str, lost: &[usize], steps: usize, env: &[(&str, &str)]) -> Option<EndedJob> {
    let folder = open_mpi()?;
    let ended = run(&folder, Hosts::Here, ranks, &format!("steps={steps};{plan}"), env);
    let times = ended.check(lost, steps);
    println!("{plan}: {times:.1?} ms");
    Some(ended)
}

impl EndedJob {
    /// The words of the lines of a rank that begin with `first`.
    pub(crate) fn lines(&self, rank: usize, first: &str) -> Vec<Vec<String>> {
        let text = self.processes.rank(rank).to_string();
        let lines = text.lines().filter_map(|line| line.split_once(&format!("{first} ")));
        lines.map(|(_, rest)| rest.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Returns true if some surviving ranks have created their store with all ranks, and some without a lost
    /// rank.
    pub(crate) fn began_apart(&self) -> bool {
        let left = (0..self.ranks).filter(|rank| self.lines(*rank, "lost").is_empty());
        let began = left.flat_map(|rank| self.lines(rank, "began"));
        began.map(|words| words[1].clone()).collect::<BTreeSet<String>>().len() > 1
    }

    fn complain(&self, what: &str) -> ! {
        panic!("{what}\n{}", self.processes)
    }

    fn survivors(&self, lost: &[usize]) -> Vec<usize> {
        (0..self.ranks).filter(|rank| !lost.contains(rank)).collect()
    }

    /// Checks every sum and the end of the surviving ranks, if `lost` were lost during `steps` steps, in this
    /// order or at once. Returns for each loss the milliseconds until all survivors had their first sum
    /// without the lost rank.
    pub(crate) fn check(&self, lost: &[usize], steps: usize) -> Vec<f64> {
        let survivors = self.survivors(lost);
        let first_without = self.check_sums(lost);
        for rank in &survivors {
            let counted = self.lines(*rank, "sum").iter().filter(|words| words[1] == "long").count();
            if counted != steps {
                self.complain(&format!("rank {rank} has {counted} of {steps} sums"));
            }
        }
        self.check_ends(&survivors, lost, steps);
        let time = |gone: &usize| {
            let at: f64 = self.lines(*gone, "lost").first()?.first()?.parse().ok()?;
            (first_without[*gone] > 0.0).then_some((first_without[*gone] - at) * 1e3)
        };
        lost.iter().filter_map(time).collect()
    }

    /// Checks that every sum has the contributions of all present ranks, and is the same on all ranks. The
    /// last sum that a lost rank has completed may be lost with it, if others were lost at the same time. The
    /// survivors have then repeated it, and only their sum is compared. Returns for each lost rank the time
    /// at which all survivors had their first sum of `long` without it.
    pub(crate) fn check_sums(&self, lost: &[usize]) -> Vec<f64> {
        let survivors = self.survivors(lost);
        let all_left: u32 = survivors.iter().map(|rank| 1 << rank).sum();
        // For each step and key, the ranks whose contributions are in the sum.
        let mut masks: BTreeMap<(usize, String), BTreeSet<u32>> = BTreeMap::new();
        let mut first_without = vec![0f64; self.ranks];
        for rank in 0..self.ranks {
            let sums = self.lines(rank, "sum");
            let last_step = sums.iter().map(|words| words[0].parse::<usize>().unwrap()).max();
            let mut before: BTreeMap<String, u32> = BTreeMap::new();
            for words in &sums {
                let [step, key, mask, time] = &words[..] else { self.complain(&format!("rank {rank}: {words:?}")) };
                let (step, mask): (usize, u32) = (step.parse().unwrap(), mask.parse().unwrap());
                let were = before.insert(key.clone(), mask).unwrap_or((1 << self.ranks) - 1);
                if mask & all_left != all_left || mask & !were != 0 {
                    self.complain(&format!("rank {rank}, step {step}: contributions {mask:b} after {were:b}"));
                }
                if lost.len() < 2 || survivors.contains(&rank) || last_step != Some(step) {
                    masks.entry((step, key.clone())).or_default().insert(mask);
                }
                for gone in lost.iter().filter(|gone| key == "long" && (were & !mask) >> **gone & 1 == 1) {
                    if survivors.contains(&rank) {
                        first_without[*gone] = first_without[*gone].max(time.parse().unwrap());
                    }
                }
            }
        }
        if masks.is_empty() {
            self.complain("there are no sums");
        }
        if let Some(((step, key), masks)) = masks.iter().find(|(_, masks)| masks.len() > 1) {
            self.complain(&format!("step {step}, key {key}: ranks have different sums: {masks:?}"));
        }
        first_without
    }

    /// Checks that ranks with a cut link have ended, each with one error that names this reason.
    pub(crate) fn check_cut_off(&self, ranks: &[usize]) {
        for rank in ranks {
            let failed = self.lines(*rank, "failed");
            if failed.len() != 1 || !failed[0].join(" ").contains("it is cut off") {
                self.complain(&format!("rank {rank} was cut off and failed with {failed:?}"));
            }
        }
    }

    /// Checks the end of survivors. All have one value of the optimizer, from sums with the contributions of
    /// all ranks that were present before or after a loss. Each was told of every loss, except losses while
    /// it created its store.
    fn check_ends(&self, survivors: &[usize], lost: &[usize], steps: usize) {
        let mut values = BTreeSet::new();
        for rank in survivors {
            let ended = self.lines(*rank, "ended");
            let [ended] = &ended[..] else { self.complain(&format!("rank {rank} ended {} times", ended.len())) };
            values.insert(ended[2].clone());
            // The reports of losses, converted to the ranks' numbers at the start.
            let began = self.lines(*rank, "began");
            let had: usize = began[0][1].parse().unwrap();
            let mut numbers = self.survivors(&lost[..self.ranks - had]);
            if numbers.iter().position(|number| number == rank) != began[0][0].parse().ok() {
                self.complain(&format!("rank {rank} began as {began:?}"));
            }
            let mut generation = 0;
            for words in self.lines(*rank, "without") {
                let told: Vec<u64> =
                    words.iter().map(|word| word.trim_matches(['[', ']', ',']).parse().unwrap()).collect();
                let gone: Vec<usize> = told[3..].iter().map(|place| numbers[*place as usize]).collect();
                numbers.retain(|number| !gone.contains(number));
                let own = numbers.iter().position(|number| number == rank);
                let is_right =
                    told[0] > generation && own == Some(told[1] as usize) && told[2] as usize == numbers.len();
                if !is_right {
                    self.complain(&format!("rank {rank} was told {words:?}, with {numbers:?} left"));
                }
                generation = told[0];
            }
            if numbers != survivors || ended[0] != survivors.len().to_string() || ended[1] != generation.to_string() {
                self.complain(&format!("rank {rank} ended with {ended:?}, and knows of {numbers:?}"));
            }
        }
        if values.len() != 1 {
            self.complain(&format!("optimizers differ: {values:?}"));
        }
        if lost.len() > 2 {
            return;
        }
        let value: f64 = values.first().unwrap().parse().unwrap();
        let weights = possible_weights(self.ranks, lost, steps);
        if !weights.iter().any(|weights| (value - weights).abs() < 1e-5 * weights.abs().max(1.0)) {
            self.complain(&format!("the weights are {value}, not one of {weights:?}"));
        }
    }
}

/// Returns the weights that the optimizer may have, whenever the ranks were lost, and in any order.
fn possible_weights(ranks: usize, lost: &[usize], steps: usize) -> Vec<f64> {
    // The weights and their momentum after some steps, with the present ranks.
    let mut all = vec![(0.0, 0.0, (1u32 << ranks) - 1)];
    for step in 0..steps {
        for gone in lost {
            let there = all.iter().filter(|(.., mask)| mask >> gone & 1 == 1);
            let without: Vec<_> =
                there.map(|(weights, velocity, mask)| (*weights, *velocity, mask & !(1 << gone))).collect();
            all.extend(without);
        }
        for (weights, velocity, mask) in &mut all {
            let sum = f64::from(*mask) + f64::from(mask.count_ones()) * STEP * step as f64;
            *velocity = 0.5 * *velocity - sum / 1024.0;
            *weights += *velocity;
        }
    }
    all.into_iter().map(|(weights, ..)| weights).collect()
}

/// Switches every link of the lab on again.
pub(crate) fn mend_links(hosts: Hosts) {
    let Hosts::Lab(hosts) = hosts else { return };
    for host in 1..=hosts {
        let done = Command::new("ip").args(["link", "set", &format!("rp-h{host}"), "up"]).status();
        assert!(done.is_ok_and(|status| status.success()), "the link of h{host} stays down");
    }
}

/// Returns the hosts that the variable `RINGPULL_ELASTIC_HOSTS` names: this host if it is not set.
pub(crate) fn hosts_from_env() -> Hosts {
    config::text("RINGPULL_ELASTIC_HOSTS").map_or(Hosts::Here, |hosts| Hosts::Lab(hosts.parse().unwrap()))
}
