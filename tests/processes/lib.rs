//! Runs the processes of a test. It keeps each process's output apart, ends the processes by a deadline, and
//! leaves none running.
//!
//! A launcher such as `mpirun` mixes the output of its ranks, even within a line, so a test that searches
//! this output may find parts of two lines joined. Here a launcher starts a shell for every rank. The shell
//! redirects stdout and stderr to two files of that rank and then becomes the rank ([`files`]). The
//! launcher's own output goes to two more files.

mod example;
pub mod files;
mod gpus;

pub use example::example;
pub use files::Written;
pub use gpus::FakeGpus;

use std::ffi::OsString;
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

/// The time limit of a job whose test sets none.
pub const LIMIT: Duration = Duration::from_secs(600);
/// The time for which `mpirun` may outlive its ranks. In one of hundreds of failing jobs, `mpirun` of Open
/// MPI 4.1 with PMIx 4.2 never ends, because two of its threads wait for each other in
/// `PMIx_server_finalize`.
const OUTLIVES: Duration = Duration::from_secs(30);
/// The time in which a killed process must be gone.
const CLEARING: Duration = Duration::from_secs(3);
/// The environment variable that holds the job's folder. Every process of the job inherits it, so the
/// processes that outlive their launcher can be found.
const MARK: &str = "RINGPULL_PROCESSES_FOLDER";

/// The processes of a job: the processes that the test starts, and the processes that their launchers start.
/// Dropping it kills all processes that still run. Its text form is all output, with the process's name
/// before each line.
pub struct Processes {
    folder: TempDir,
    started: Vec<(String, Child)>,
}

impl Processes {
    /// Creates a job without processes.
    pub fn new() -> Self {
        Processes { folder: tempfile::Builder::new().prefix("ringpull-").tempdir().unwrap(), started: Vec::new() }
    }

    /// Returns the job's folder, in which the test may create files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the command that a launcher starts instead of `command`, so that each process writes to its
    /// own files.
    pub fn redirected<W: Into<OsString>>(&self, command: impl IntoIterator<Item = W>) -> Vec<OsString> {
        files::redirected(self.folder.path(), command)
    }

    /// Returns the command that starts `ranks` ranks of `program`, each with its own files. The caller may
    /// add arguments.
    pub fn mpirun(&self, ranks: usize, program: impl AsRef<Path>) -> Command {
        let launcher = ringpull_base::config::mpirun_program();
        let version = Command::new(&launcher).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        let mut command = Command::new(&launcher);
        command.args(["-n", &ranks.to_string()]);
        if String::from_utf8_lossy(&version).contains("Open MPI") {
            command
                .args(["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"])
                .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        }
        command.args(self.redirected([program.as_ref()]));
        command
    }

    /// Starts a node of a job with servers on loopback, whose scheduler listens at `port`; `workers` and
    /// `servers` are the numbers of these nodes. The node's name is `scheduler` or, for example, `server 0`.
    pub fn start_node(
        &mut self,
        command: &mut Command,
        (role, rank): (&str, Option<usize>),
        port: u16,
        (workers, servers): (usize, usize),
    ) -> String {
        command
            .env("DMLC_ROLE", role)
            .env("DMLC_PS_ROOT_URI", "127.0.0.1")
            .env("DMLC_PS_ROOT_PORT", port.to_string())
            .env("DMLC_NUM_WORKER", workers.to_string())
            .env("DMLC_NUM_SERVER", servers.to_string())
            .env("MXNET_KVSTORE_BIGARRAY_BOUND", "1000")
            .envs(rank.map(|rank| ("DMLC_RANK", rank.to_string())));
        let name = rank.map_or(role.to_owned(), |rank| format!("{role} {rank}"));
        self.start(&name, command);
        name
    }

    /// Starts a process or a launcher under this name, with its own files.
    pub fn start(&mut self, name: &str, command: &mut Command) {
        let [out, err] = files::of(self.folder.path(), name).map(|path| File::create(path).unwrap());
        command.env(MARK, self.folder.path()).stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().unwrap_or_else(|cause| panic!("cannot start {name}: {cause}"));
        self.started.push((name.to_owned(), child));
    }

    /// Starts a process or a launcher that must end within [`LIMIT`]. Returns true if it succeeded.
    pub fn run(&mut self, name: &str, command: &mut Command) -> bool {
        self.start(name, command);
        assert!(self.ends_by(Instant::now() + LIMIT), "{name} did not end in {LIMIT:?}; it was killed:\n{self}");
        self.succeeded()
    }

    /// Starts a process or a launcher that must succeed within [`LIMIT`].
    pub fn succeed(&mut self, name: &str, command: &mut Command) {
        assert!(self.run(name, command), "{name} failed:\n{self}");
    }

    /// Returns the process that was started under this name.
    pub fn child(&mut self, name: &str) -> &mut Child {
        let found = self.started.iter_mut().find(|(other, _)| other == name);
        &mut found.unwrap_or_else(|| panic!("{name} was not started")).1
    }

    /// Returns the output so far of the process of this name. The name is the name that the test started the
    /// process under, such as `mpirun`. A process that a launcher started has a name such as `rank 0`, or a
    /// name by its role: `worker 0`, `server 0` or `scheduler`. The output is empty if the process never ran.
    pub fn written(&self, name: &str) -> Written {
        files::written(self.folder.path(), name)
    }

    /// Returns the output of an MPI rank so far.
    pub fn rank(&self, rank: usize) -> Written {
        self.written(&format!("rank {rank}"))
    }

    /// Returns the output of a worker of a job with servers so far.
    pub fn worker(&self, worker: usize) -> Written {
        self.written(&format!("worker {worker}"))
    }

    /// Returns the names of all processes that have run, sorted.
    pub fn names(&self) -> Vec<String> {
        files::names(self.folder.path())
    }

    /// Waits until `holds` returns true. Panics with a message that begins with `complaint` if this takes
    /// longer than `limit`.
    pub fn wait_until(&self, limit: Duration, complaint: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + limit;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{complaint} in {limit:?}:\n{self}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits until the process of this name has written `words` `times` times. Fails at once if this process,
    /// or the launcher that should start it, has ended.
    pub fn wait_for(&self, name: &str, words: &str, times: usize, limit: Duration) {
        let complaint = format!("{name} did not write {words:?} {times} times");
        self.wait_until(limit, &complaint, |processes| {
            // If the process has ended, all its output can be read after this check.
            let has_ended = processes.has_ended(name);
            let has_written = processes.written(name).count(words) >= times;
            assert!(has_written || !has_ended, "{complaint} before it ended:\n{processes}");
            has_written
        });
    }

    /// Returns true if the started process of this name has ended. For a name that a launcher gives, returns
    /// true if all started processes have ended.
    fn has_ended(&self, name: &str) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        // A process that was waited for is no longer a child.
        let has_ended = |child: &Child| !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None));
        match self.started.iter().find(|(other, _)| other == name) {
            Some((_, child)) => has_ended(child),
            None => self.started.iter().all(|(_, child)| has_ended(child)),
        }
    }

    /// Returns the names of the started processes that still run.
    pub fn running(&mut self) -> Vec<String> {
        let running = self.started.iter_mut().filter_map(|(name, child)| match child.try_wait().unwrap() {
            None => Some(name.clone()),
            Some(_) => None,
        });
        running.collect()
    }

    /// Returns true if all started processes ended in time. Otherwise kills all processes of the job.
    pub fn ends_by(&mut self, deadline: Instant) -> bool {
        let mut look = Instant::now() + OUTLIVES;
        let mut is_left = false;
        while !self.running().is_empty() {
            if Instant::now() > deadline {
                self.kill();
                return false;
            }
            if Instant::now() > look {
                look = Instant::now() + OUTLIVES;
                let was_left = std::mem::replace(&mut is_left, self.is_mpirun_left());
                if was_left && is_left {
                    eprintln!("mpirun has outlived its ranks, and is killed");
                    self.kill();
                }
            }
            // The standard library cannot wait for a process's end with a deadline, so this polls.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        true
    }

    /// Returns true if the job's ranks have run and only `mpirun` is left.
    fn is_mpirun_left(&mut self) -> bool {
        let mpirun = self.started.iter().find(|(name, _)| name == "mpirun").map(|(_, child)| child.id() as i32);
        self.names().iter().any(|name| name.starts_with("rank ")) && mpirun.is_some_and(|pid| self.living() == [pid])
    }

    /// Waits for all started processes to end. Returns true if all ended with success.
    pub fn succeeded(&mut self) -> bool {
        self.started.iter_mut().all(|(_, child)| child.wait().unwrap().success())
    }

    /// Returns the ids of the job's living processes, launchers and ranks included.
    pub fn living(&self) -> Vec<i32> {
        let mark = [MARK.as_bytes(), b"=", self.folder.path().as_os_str().as_encoded_bytes()].concat();
        let of_job = |pid: &i32| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(of_job).collect()
    }

    /// Kills the job's remaining processes. Kills launchers first, so that they start no more ranks, and then
    /// the ranks, which outlive a killed launcher.
    pub fn kill(&mut self) {
        for (name, child) in &mut self.started {
            if matches!(child.try_wait(), Ok(None))
                && let Err(cause) = child.kill().and_then(|()| child.wait())
            {
                eprintln!("{name} cannot be killed: {cause}");
            }
        }
        let deadline = Instant::now() + CLEARING;
        loop {
            let left = self.living();
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            for pid in left.into_iter().filter_map(Pid::from_raw) {
                if let Err(cause) = kill_process(pid, Signal::KILL) {
                    eprintln!("process {pid:?} has ended since it was listed: {cause}");
                }
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Default for Processes {
    fn default() -> Self {
        Self::new()
    }
}

impl Display for Processes {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&files::tagged(self.folder.path()))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns true if ranks can be started on this machine.
pub fn has_mpi() -> bool {
    Command::new(ringpull_base::config::mpirun_program())
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Returns a port on which no process listens, below the ports that Linux assigns to outgoing connections.
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let next = || std::process::id().wrapping_mul(97).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
    let mut ports = std::iter::repeat_with(|| 10_000 + (next() % 22_000) as u16);
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("there is always another")
}

/// Returns the path of this test's own binary.
pub fn own_path() -> PathBuf {
    std::env::current_exe().unwrap()
}
