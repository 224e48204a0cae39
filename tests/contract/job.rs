//! Jobs of real processes of this test's own binary. They are killed at a deadline, and the output of each is
//! kept separately.

use std::ffi::OsStr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull::{KvStore, create, create_on, run_node};
use ringpull_base::{Error, config};
use ringpull_processes::{FakeGpus, LIMIT, Processes, free_port, own_path};

use crate::threads::cluster_file;
use crate::world::{Promise, World};

/// The variable with the description of a process of a job: kind, group of promises, folder.
const CHILD: &str = "RINGPULL_CONTRACT_CHILD";
/// The variable with the number of each worker's own GPUs.
const OWN_GPUS: &str = "RINGPULL_CONTRACT_GPUS";
/// The time limit of a job. It takes a second or two on an idle machine.
const DEADLINE: Duration = LIMIT;

/// The arguments by which this binary is one process of a job.
const ONE_PROCESS: [&str; 5] = ["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
/// The number of helpers of a job.
const HELPERS: &str = "CONTRACT_HELPERS";

/// Promises of `group` on `workers` workers of `kind`.
pub(crate) struct Job {
    pub(crate) kind: &'static str,
    pub(crate) workers: usize,
    pub(crate) group: &'static str,
}

impl Job {
    /// Runs the job and gives the hash of what its workers saw, unless it cannot run here; panics with every
    /// process's own output if a promise was broken on any of them.
    pub(crate) fn run(&self) -> Option<String> {
        self.run_with(&[])
    }

    /// Runs the job with helpers that take part in every sum.
    pub(crate) fn run_with_helpers(&self, helpers: usize) -> Option<String> {
        self.run_by_model(&[], helpers)
    }

    /// Runs the job with plans for links of these rates, at which the ranks send and receive.
    pub(crate) fn run_on_links(&self, rates: &[(f64, f64)]) -> Option<String> {
        self.run_by_model(rates, 0)
    }

    /// Runs the job with a cluster file in which only bytes have a cost.
    fn run_by_model(&self, rates: &[(f64, f64)], helpers: usize) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cluster.toml");
        std::fs::write(&file, cluster_file(rates)).unwrap();
        let count = helpers.to_string();
        self.run_with(&[
            (HELPERS, &count),
            ("RINGPULL_SHARED_MEMORY", "0"),
            ("RINGPULL_CLUSTER", file.to_str().expect("a temporary folder has a plain name")),
        ])
    }

    /// Runs the job as [`run`](Self::run) does, on GPUs of the fake driver, which must find nothing wrong.
    pub(crate) fn run_on(&self, gpus: &FakeGpus, env: &[(&str, &str)]) -> Option<String> {
        let envs = gpus.envs();
        let mut all: Vec<(&str, &OsStr)> =
            envs.iter().map(|(name, value)| (name.as_str(), value.as_os_str())).collect();
        let count = self.kind_and_devices().1.unwrap_or(0).to_string();
        all.push((OWN_GPUS, OsStr::new(&count)));
        all.extend(env.iter().map(|(name, value)| (*name, OsStr::new(value))));
        let hash = self.run_in(&all);
        assert_eq!(gpus.findings(), "", "{}", self.name());
        hash
    }

    fn run_with(&self, env: &[(&str, &str)]) -> Option<String> {
        self.run_in(&env.iter().map(|(name, value)| (*name, OsStr::new(*value))).collect::<Vec<_>>())
    }

    fn run_in(&self, env: &[(&str, &OsStr)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = Processes::new();
        self.start(&mut processes, folder.path(), env);
        let late = !processes.ends_by(Instant::now() + DEADLINE);
        assert!(!late, "{} did not end in {DEADLINE:?}; it was killed:\n{processes}", self.name());
        assert!(processes.succeeded(), "{} failed:\n{processes}", self.name());
        let written: Vec<_> = processes.names().iter().map(|name| processes.written(name)).collect();
        if let Some(reason) = written.iter().find_map(|written| written.after("contract skipped: ")) {
            assert!(config::text("CI").is_none(), "{} must not be skipped on CI: {reason}", self.name());
            println!("skipped {}: {reason}", self.name());
            return None;
        }
        let hashes: Vec<String> = (0..self.workers)
            .map(|worker| {
                let written = if self.is_mpi() { processes.rank(worker) } else { processes.worker(worker) };
                assert_eq!(written.count("contract hash "), 1, "every worker prints its hash:\n{processes}");
                written.after("contract hash ").unwrap().to_owned()
            })
            .collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "the workers hold different bits:\n{processes}");
        let total: usize = written.iter().map(|written| written.count("contract hash ")).sum();
        assert_eq!(total, self.workers, "nobody else prints one:\n{processes}");
        Some(hashes[0].clone())
    }

    fn name(&self) -> String {
        format!("{} of {} on {} workers", self.group, self.kind, self.workers)
    }

    /// The kind to create, and how many devices each worker has: `device on 4`.
    fn kind_and_devices(&self) -> (&'static str, Option<usize>) {
        match self.kind.split_once(" on ") {
            Some((kind, count)) => (kind, Some(count.parse().unwrap())),
            None => (self.kind, None),
        }
    }

    fn is_mpi(&self) -> bool {
        self.kind_and_devices().0 == "dist_sync_mpi"
    }

    fn start(&self, processes: &mut Processes, folder: &Path, env: &[(&str, &OsStr)]) {
        match self.kind_and_devices().0 {
            "local" | "device" => {
                let mut command = self.this_binary(Command::new(own_path()), folder);
                processes.start("worker 0", command.envs(env.iter().copied()));
            }
            "dist_sync_mpi" => {
                let mut command = self.this_binary(processes.mpirun(self.workers, own_path()), folder);
                if let Some((_, helpers)) = env.iter().find(|(name, _)| *name == HELPERS) {
                    command.args([OsStr::new(":"), OsStr::new("-n"), *helpers]);
                    command.args(["env", "RINGPULL_ROLE=helper"]).args(processes.redirected([own_path()]));
                    command.args(ONE_PROCESS);
                }
                processes.start("mpirun", command.envs(env.iter().copied()));
            }
            "dist_hybrid" => {
                let port = free_port();
                self.start_nodes(processes, folder, env, port, &[("scheduler", 1), ("server", 2)]);
                let mut command = self.this_binary(processes.mpirun(self.workers, own_path()), folder);
                processes.start("mpirun", command.envs(env.iter().copied()).envs(self.of_job("worker", port)));
            }
            _ => {
                let roles = [("scheduler", 1), ("server", 2), ("worker", self.workers)];
                self.start_nodes(processes, folder, env, free_port(), &roles);
            }
        }
    }

    /// Adds the arguments and variables that make this binary one process of the job.
    fn this_binary(&self, mut command: Command, folder: &Path) -> Command {
        let check_nan = if self.group == "integers" { "1" } else { "0" };
        let (kind, devices) = self.kind_and_devices();
        command
            .args(ONE_PROCESS)
            .env(CHILD, format!("{kind}\n{}\n{}", self.group, folder.display()))
            .env("RINGPULL_CHECK_NAN", check_nan)
            .env("RINGPULL_DEVICES", devices.map(named).unwrap_or_default());
        command
    }

    /// The variables of a process in a job with two servers, on loopback.
    fn of_job(&self, role: &str, port: u16) -> [(&'static str, String); 5] {
        [
            ("DMLC_ROLE", role.to_owned()),
            ("DMLC_PS_ROOT_URI", "127.0.0.1".to_owned()),
            ("DMLC_PS_ROOT_PORT", port.to_string()),
            ("DMLC_NUM_SERVER", "2".to_owned()),
            ("DMLC_NUM_WORKER", self.workers.to_string()),
        ]
    }

    /// Starts the given numbers of processes of each role of a job with servers.
    fn start_nodes(
        &self,
        processes: &mut Processes,
        folder: &Path,
        env: &[(&str, &OsStr)],
        port: u16,
        roles: &[(&str, usize)],
    ) {
        for (role, count) in roles {
            for number in 0..*count {
                let mut command = self.this_binary(Command::new(own_path()), folder);
                command.envs(env.iter().copied()).envs(self.of_job(role, port));
                command.env("DMLC_WORKER_ID", number.to_string());
                processes.start(&format!("{role} {number}"), &mut command);
            }
        }
    }
}

/// `count` devices for a worker: simulated ones, or, with `RINGPULL_CONTRACT_DEVICES=cuda`, the first GPU
/// under `count` numbers.
fn named(count: usize) -> String {
    match config::text("RINGPULL_CONTRACT_DEVICES").as_deref() {
        Some(real) if real.starts_with("cuda") => format!("cuda:{}", vec!["0"; count].join(",")),
        _ => format!("sim:{count}"),
    }
}

/// Creates the store of a process, on its own GPUs if it has some.
fn create_store(kind: &str) -> ringpull_base::Result<KvStore> {
    let Some(count) = config::text(OWN_GPUS).and_then(|count| count.parse::<usize>().ok()) else { return create(kind) };
    let number = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "DMLC_WORKER_ID"].into_iter().find_map(config::text);
    let first = number.and_then(|number| number.parse().ok()).unwrap_or(0) * count;
    let gpus: Vec<String> = (first..first + count).map(|gpu| gpu.to_string()).collect();
    create_on(kind, &ringpull_device::open(&format!("cuda:{}", gpus.join(",")))?)
}

/// Runs a process of a job: all promises of its group in one store, then its hash.
pub(crate) fn be_one_process(promises_of: fn(&str) -> Vec<Promise>) {
    let Some(task) = config::text(CHILD) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    let [kind, group, folder] = task.split('\n').collect::<Vec<_>>()[..] else { panic!("{CHILD}={task:?}") };
    if run_node().unwrap_or_else(|error| panic!("run_node: {error}")) {
        return;
    }
    let store = match create_store(kind) {
        Err(Error::KindUnavailable { reason, .. }) => return println!("contract skipped: {reason}"),
        outcome => outcome.unwrap_or_else(|error| panic!("create({kind:?}): {error}")),
    };
    let world = World::new(store, folder.into(), group == "sharded");
    let rank = world.rank();
    for (name, promise) in promises_of(group) {
        if std::panic::catch_unwind(AssertUnwindSafe(|| promise(&world))).is_err() {
            eprintln!("rank {rank} broke the promise {name}");
            // Ends the job: the peers must not wait for this one.
            std::process::exit(1);
        }
        println!("rank {rank} kept {name}");
    }
    world.store.wait_all().unwrap();
    world.store.barrier().unwrap();
    println!("contract hash {:016x}", world.hash());
}
