//! Jobs: real processes of this test's own binary, killed at a deadline, with output tagged by rank.

use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringpull::store::create;
use ringpull::{Error, config};

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
    /// Runs the job; panics with every process's own output if a promise was broken on any of them.
    pub(crate) fn run(&self) {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = self.start(folder.path());
        let deadline = Instant::now() + DEADLINE;
        let late = processes.iter_mut().any(|process| !process.ends_by(deadline));
        let failed = processes.iter_mut().any(|process| !process.succeeded());
        let output: String = processes.iter_mut().map(Process::output).collect();
        assert!(!late, "{} did not end in {DEADLINE:?}; it was killed:\n{output}", self.name());
        assert!(!failed, "{} failed:\n{output}", self.name());
        if let Some(reason) = output.lines().find_map(|line| line.split("contract skipped: ").nth(1)) {
            assert!(config::text("CI").is_none(), "{} must not be skipped on CI: {reason}", self.name());
            println!("skipped {}: {reason}", self.name());
            return;
        }
        let hashes: Vec<&str> = output.lines().filter_map(|line| line.split("contract hash ").nth(1)).collect();
        assert_eq!(hashes.len(), self.workers, "every worker prints its hash:\n{output}");
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "the workers hold different bits:\n{output}");
    }

    fn name(&self) -> String {
        format!("{} of {} on {} workers", self.group, self.kind, self.workers)
    }

    fn start(&self, folder: &Path) -> Vec<Process> {
        match self.kind {
            "local" => vec![Process::start("worker", &mut self.this_binary(Command::new(own_path()), folder))],
            "dist_sync_mpi" => vec![Process::start("mpirun", &mut self.this_binary(self.mpirun(), folder))],
            _ => self.with_servers(folder),
        }
    }

    /// Adds what makes this binary one process of the job.
    fn this_binary(&self, mut command: Command, folder: &Path) -> Command {
        let check_nan = if self.group == "integers" { "1" } else { "0" };
        command
            .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{}\n{}\n{}", self.kind, self.group, folder.display()))
            .env("RINGPULL_CHECK_NAN", check_nan);
        command
    }

    fn mpirun(&self) -> Command {
        let program = config::text("RINGPULL_MPIRUN").unwrap_or_else(|| "mpirun".to_owned());
        let version = Command::new(&program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(["-n", &self.workers.to_string()]);
        if String::from_utf8_lossy(&version).contains("Open MPI") {
            command
                .args(["--oversubscribe", "--bind-to", "none", "--tag-output", "--mca", "mpi_yield_when_idle", "1"])
                .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        } else {
            command.arg("-prepend-rank");
        }
        command.arg(own_path());
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

fn own_path() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

/// A started process whose output is being gathered.
struct Process {
    name: String,
    child: Child,
    readers: Vec<std::thread::JoinHandle<String>>,
}

impl Process {
    fn start(name: &str, command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("cannot start {name}: {cause}"));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let readers = vec![std::thread::spawn(move || text(stdout)), std::thread::spawn(move || text(stderr))];
        Process { name: name.to_owned(), child, readers }
    }

    /// Whether the process ended in time; if not, it is killed.
    fn ends_by(&mut self, deadline: Instant) -> bool {
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                return false;
            }
            // The process's end is the event; the standard library has no wait with a deadline.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        true
    }

    fn succeeded(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    fn output(&mut self) -> String {
        let texts = self.readers.drain(..).map(|reader| reader.join().unwrap());
        let lines: Vec<String> = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        lines.iter().fold(String::new(), |text, line| text + &self.name + ": " + line + "\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.child.kill().is_ok() {
            self.child.wait().unwrap();
        }
    }
}

fn text(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    stream.map(|mut stream| stream.read_to_end(&mut bytes)).transpose().unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a process of a job does: all promises of its group in one store, then its hash.
pub(crate) fn be_one_process(promises_of: fn(&str) -> Vec<Promise>) {
    let Some(task) = config::text(CHILD) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    let [kind, group, folder] = task.split('\n').collect::<Vec<_>>()[..] else { panic!("{CHILD}={task:?}") };
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
