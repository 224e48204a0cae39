//! Jobs: real processes of this test's own binary, killed at a deadline, with output tagged by rank.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull::{create, run_node};
use ringpull_base::{Error, config};
use ringpull_processes::{Process, mpirun, own_path};

use crate::world::{Promise, World};

/// The variable that tells a process of a job what it is: kind, group of promises, folder.
const CHILD: &str = "RINGPULL_CONTRACT_CHILD";
/// How long a job may take. It takes a second or two on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Promises of `group` on `workers` workers of `kind`.
pub(crate) struct Job {
    pub(crate) kind: &'static str,
    pub(crate) workers: usize,
    pub(crate) group: &'static str,
}

impl Job {
    /// Runs the job and gives the hash of what its workers saw, unless it cannot run here; panics with every process's own output if a promise
    /// was broken on any of them.
    pub(crate) fn run(&self) -> Option<String> {
        self.run_with(&[])
    }

    /// As [`run`](Self::run), with the ranks as if each were on a host of its own.
    pub(crate) fn run_without_shared_memory(&self) -> Option<String> {
        self.run_with(&[("RINGPULL_SHARED_MEMORY", "0")])
    }

    /// As [`run`](Self::run), with MPI given the memory of devices as it is: simulated ones have the host's.
    pub(crate) fn run_given_device_memory(&self) -> Option<String> {
        self.run_with(&[("RINGPULL_MPI_DEVICE_MEMORY", "1")])
    }

    fn run_with(&self, env: &[(&str, &str)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = self.start(folder.path(), env);
        let deadline = Instant::now() + DEADLINE;
        let late = processes.iter_mut().any(|process| !process.ends_by(deadline));
        let failed = processes.iter_mut().any(|process| !process.succeeded());
        let output: String = processes.iter_mut().map(Process::output).collect();
        assert!(!late, "{} did not end in {DEADLINE:?}; it was killed:\n{output}", self.name());
        assert!(!failed, "{} failed:\n{output}", self.name());
        if let Some(reason) = output.lines().find_map(|line| line.split("contract skipped: ").nth(1)) {
            assert!(config::text("CI").is_none(), "{} must not be skipped on CI: {reason}", self.name());
            println!("skipped {}: {reason}", self.name());
            return None;
        }
        let hashes: Vec<&str> = output.lines().filter_map(|line| line.split("contract hash ").nth(1)).collect();
        assert_eq!(hashes.len(), self.workers, "every worker prints its hash:\n{output}");
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "the workers hold different bits:\n{output}");
        Some(hashes[0].to_owned())
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

    fn start(&self, folder: &Path, env: &[(&str, &str)]) -> Vec<Process> {
        match self.kind_and_devices().0 {
            "local" | "device" => {
                vec![Process::start("worker", &mut self.this_binary(Command::new(own_path()), folder))]
            }
            "dist_sync_mpi" => {
                vec![Process::start("mpirun", self.this_binary(mpirun(self.workers), folder).envs(env.iter().copied()))]
            }
            _ => self.with_servers(folder),
        }
    }

    /// Adds what makes this binary one process of the job.
    fn this_binary(&self, mut command: Command, folder: &Path) -> Command {
        let check_nan = if self.group == "integers" { "1" } else { "0" };
        let (kind, devices) = self.kind_and_devices();
        command
            .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{kind}\n{}\n{}", self.group, folder.display()))
            .env("RINGPULL_CHECK_NAN", check_nan)
            .env("RINGPULL_DEVICES", devices.map(named).unwrap_or_default());
        command
    }

    /// A scheduler, two servers and the workers, on loopback and on a port that the system chose.
    fn with_servers(&self, folder: &Path) -> Vec<Process> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let roles = [("scheduler", 1), ("server", 2), ("worker", self.workers)];
        roles
            .into_iter()
            .flat_map(|(role, count)| (0..count).map(move |number| (role, number)))
            .map(|(role, number)| {
                let mut command = self.this_binary(Command::new(own_path()), folder);
                command.envs([("DMLC_ROLE", role), ("DMLC_PS_ROOT_URI", "127.0.0.1"), ("DMLC_NUM_SERVER", "2")]);
                command.env("DMLC_PS_ROOT_PORT", port.to_string()).env("DMLC_NUM_WORKER", self.workers.to_string());
                Process::start(&format!("{role} {number}"), &mut command)
            })
            .collect()
    }
}

/// `count` devices for a worker: simulated ones, or, with `RINGPULL_CONTRACT_DEVICES=cuda`, the first GPU under `count` numbers.
fn named(count: usize) -> String {
    match config::text("RINGPULL_CONTRACT_DEVICES").as_deref() {
        Some(real) if real.starts_with("cuda") => format!("cuda:{}", vec!["0"; count].join(",")),
        _ => format!("sim:{count}"),
    }
}

/// What a process of a job does: all promises of its group in one store, then its hash.
pub(crate) fn be_one_process(promises_of: fn(&str) -> Vec<Promise>) {
    let Some(task) = config::text(CHILD) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    let [kind, group, folder] = task.split('\n').collect::<Vec<_>>()[..] else { panic!("{CHILD}={task:?}") };
    if run_node().unwrap_or_else(|error| panic!("run_node: {error}")) {
        return;
    }
    let store = match create(kind) {
        Err(Error::KindUnavailable { reason, .. }) => return println!("contract skipped: {reason}"),
        outcome => outcome.unwrap_or_else(|error| panic!("create({kind:?}): {error}")),
    };
    let world = World::new(store, folder.into());
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
