//! Jobs of real processes. They make steps until the test asks them to end, and check every sum.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ringpull::{KvStore, create, run_node};
use ringpull_base::{DType, Error, Result, Tensor, config};
use ringpull_processes::{LIMIT, Processes, Written, free_port, own_path};

use crate::greetings::Speaks;
use crate::port::OpenPort;
use crate::vitals::{CLOSED, ESTABLISHED, LISTENS, tcp, udp};

/// The environment variables of a job's process: its case, and the path of the file that ends the job.
const CASE: &str = "RINGPULL_TEST_CASE";
const FILE: &str = "RINGPULL_TEST_FILE";
/// The secret of the nodes of a job with servers.
const SECRET: &str = "what only the nodes of this job know";
/// The seconds of silence after which a rank counts as lost. The value is small, so that the test soon finds
/// a control thread that a stranger keeps busy.
const SILENCE_S: &str = "10";
/// The time limit of a job's start, and of its end.
const START: Duration = LIMIT;
const END: Duration = LIMIT;

/// The lengths of the keys.
const LENS: [usize; 4] = [1, 7, 1000, 5000];
/// The addition of rank 0 to its gradient that marks the last step.
const LAST: usize = 1 << 20;
/// The time between two reports of a worker.
const WINDOW: Duration = Duration::from_millis(50);

/// A process of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobProcess {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// The protocol of the process's port. `None` if the process does not listen.
    speaks: Option<Speaks>,
    /// True if the process makes steps.
    pub(crate) steps: bool,
}

/// A job. Dropping it kills the processes that still run.
pub(crate) struct Job {
    processes: Processes,
    members: Vec<JobProcess>,
    folder: tempfile::TempDir,
    /// The scheduler's port, and the secret of nodes that are added later.
    port: u16,
    secret: Option<&'static str>,
}

/// The progress of a worker in one period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerPeriod {
    pub(crate) longest: Duration,
    pub(crate) control_messages: u64,
}

impl Job {
    fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Job { processes: Processes::new(), members: Vec::new(), folder, port: free_port(), secret: Some(SECRET) }
    }

    /// Starts a job of ranks under `mpirun` on this host.
    ///
    /// MPI has ports of its own, which need no secret and which Ringpull cannot guard. Open MPI's launcher
    /// listens on three ports. Each rank listens for ranks on other hosts, by IPv4 and by IPv6, on all
    /// interfaces. The test knows the launcher's ports by their process. The ranks run here without the MPI
    /// component that opens their ports, which serve only other hosts. Every port of a rank is therefore one
    /// of Ringpull's.
    pub(crate) fn of_ranks(ranks: usize) -> Self {
        let mut job = Job::empty();
        let mut command = job.processes.mpirun(ranks, own_path());
        job.dress(&mut command, "dist_sync_mpi").envs([("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,vader")]);
        job.processes.start("mpirun", &mut command);
        for rank in 0..ranks {
            let name = format!("rank {rank}");
            job.processes.wait_for(&name, "of the job\n", 1, START);
            let pid = job.processes.rank(rank).after("process ").and_then(|text| text.split(' ').next()?.parse().ok());
            let speaks = Some(if rank == 0 { Speaks::ControlStar } else { Speaks::Nothing });
            job.members.push(JobProcess { name, pid: pid.unwrap(), speaks, steps: true });
        }
        job
    }

    /// Starts a job of a scheduler, servers and workers.
    pub(crate) fn with_servers(workers: usize, servers: usize) -> Self {
        let mut job = Job::scheduler(workers, servers);
        job.add_nodes(workers, servers);
        job
    }

    /// Starts a job of a scheduler, servers and workers without a secret, which anybody may join.
    pub(crate) fn without_a_secret(workers: usize, servers: usize) -> Self {
        let mut job = Job { secret: None, ..Job::empty() };
        job.add("scheduler", None, workers, servers);
        job.add_nodes(workers, servers);
        job
    }

    /// Starts a scheduler, which waits for the other nodes.
    pub(crate) fn scheduler(workers: usize, servers: usize) -> Self {
        let mut job = Job::empty();
        job.add("scheduler", None, workers, servers);
        job
    }

    /// Starts the servers and the workers.
    pub(crate) fn add_nodes(&mut self, workers: usize, servers: usize) {
        (0..servers).for_each(|server| self.add("server", Some(server), workers, servers));
        (0..workers).for_each(|worker| self.add("worker", Some(worker), workers, servers));
    }

    fn add(&mut self, role: &str, rank: Option<usize>, workers: usize, servers: usize) {
        let mut command = Command::new(own_path());
        self.dress(&mut command, "dist_sync").envs(self.secret.map(|secret| ("RINGPULL_SECRET", secret)));
        let name = self.processes.start_node(&mut command, (role, rank), self.port, (workers, servers));
        let (pid, steps) = (self.processes.child(&name).id(), role == "worker");
        self.members.push(JobProcess { name, pid, speaks: (!steps).then_some(Speaks::Servers), steps });
    }

    fn dress<'a>(&self, command: &'a mut Command, kind: &str) -> &'a mut Command {
        const UNSET: [&str; 5] =
            ["RINGPULL_SECRET", "RINGPULL_SECRET_FILE", "RINGPULL_TIMEOUT", "RINGPULL_WARN", "PS_HEARTBEAT_TIMEOUT"];
        for name in UNSET {
            command.env_remove(name);
        }
        command
            .args(["--exact", "one_process_of_a_job", "--ignored", "--nocapture", "--test-threads=1"])
            .envs([(CASE, kind), ("RINGPULL_SILENCE", SILENCE_S), ("RINGPULL_QUIET", "1"), ("RUST_BACKTRACE", "0")])
            .env(FILE, self.end_file())
    }

    fn end_file(&self) -> PathBuf {
        self.folder.path().join("end")
    }

    /// Returns the job's name in messages for people.
    pub(crate) fn name(&self) -> &'static str {
        let has_scheduler = self.members.iter().any(|member| member.name == "scheduler");
        if has_scheduler { "servers" } else { "ranks" }
    }

    pub(crate) fn members(&self) -> &[JobProcess] {
        &self.members
    }

    pub(crate) fn written(&self, name: &str) -> Written {
        self.processes.written(name)
    }

    /// Waits until every worker makes steps.
    pub(crate) fn wait_until_ready(&self, limit: Duration) {
        let stepping = self.members.iter().filter(|member| member.steps);
        stepping.for_each(|member| self.processes.wait_for(&member.name, "window: ", 1, limit));
    }

    /// Returns the progress of a worker since its start, in order.
    pub(crate) fn windows(&self, name: &str) -> Vec<WorkerPeriod> {
        let written = self.processes.written(name);
        // Leave out the last line, which may be unfinished.
        let whole = written.out.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let windows = whole.lines().filter_map(|line| line.strip_prefix("window: "));
        let numbers = windows.map(|line| line.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>());
        numbers
            .map(|numbers| WorkerPeriod { longest: Duration::from_micros(numbers[0]), control_messages: numbers[1] })
            .collect()
    }

    /// Returns every port on which a process of the job listens.
    pub(crate) fn ports(&self) -> Vec<OpenPort> {
        self.members.iter().filter_map(|member| self.port_of(member)).collect()
    }

    /// Waits until a process listens, and returns its port. Returns `None` for a process that never listens.
    /// The test fails if the process listens on an unexpected number of ports or receives datagrams. A new
    /// port must be added to this test.
    pub(crate) fn port_of(&self, member: &JobProcess) -> Option<OpenPort> {
        let JobProcess { name, pid, speaks, .. } = member;
        let open = || -> Vec<SocketAddr> {
            let listening = tcp(*pid).into_iter().filter(|socket| socket.state == LISTENS);
            listening.map(|socket| socket.local).collect()
        };
        let wanted = usize::from(speaks.is_some());
        self.processes.wait_until(START, &format!("{name} has not {wanted} port(s)"), |_| open().len() >= wanted);
        let open = open();
        assert_eq!(open.len(), wanted, "{name} listens on {open:?}: which attacks does each port withstand?");
        let datagrams: Vec<_> = udp(*pid).into_iter().filter(|socket| socket.state == CLOSED).collect();
        assert!(datagrams.is_empty(), "{name} takes datagrams: {datagrams:?}");
        let (owner, at) = (name.clone(), *open.first()?);
        Some(OpenPort { owner, pid: *pid, at, speaks: (*speaks)?, clients: self.clients_of(at), overheard: None })
    }

    /// Returns the processes of the job that are connected to `at`.
    pub(crate) fn clients_of(&self, at: SocketAddr) -> Vec<u32> {
        let is_connected = |pid: u32| tcp(pid).iter().any(|socket| socket.state == ESTABLISHED && socket.remote == at);
        self.members.iter().map(|member| member.pid).filter(|pid| is_connected(*pid)).collect()
    }

    /// Lets the job end, and checks that it ends with success.
    pub(crate) fn ends_well(mut self) {
        fs::write(self.end_file(), b"").unwrap();
        assert!(self.processes.ends_by(Instant::now() + END), "the job does not end:\n{}", self.processes);
        assert!(self.processes.succeeded(), "the job failed:\n{}", self.processes);
        for member in self.members.iter().filter(|member| member.steps) {
            assert!(self.processes.written(&member.name).contains("made its last step"), "{}", self.processes);
        }
    }
}

impl std::fmt::Display for Job {
    /// Writes all output, except for the workers' progress.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.processes.to_string();
        all.lines().filter(|line| !line.contains(": window: ")).try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// Runs a process of a job.
pub(crate) fn be_one_process() {
    let Some(kind) = config::text(CASE) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    println!("process {} of the job", std::process::id());
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    ringpull_base::notice::to_stderr();
    let outcome = match run_node() {
        Ok(true) => Ok(()),
        Ok(false) => create(&kind).and_then(|store| make_steps(&store)),
        Err(error) => Err(error),
    };
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(3);
    }
}

/// Makes steps in an order that never repeats, so that the ranks have to agree on each step, and their
/// control connections are in use all the time.
fn make_steps(store: &KvStore) -> Result<()> {
    let file = std::env::var_os(FILE).ok_or_else(|| Error::argument(format!("{FILE} is not set"), "set it"))?;
    for (key, len) in LENS.iter().enumerate() {
        store.init(format!("key {key}"), &Tensor::zeros(DType::F32, &[*len]))?;
    }
    let size = store.num_workers();
    let (mut since, mut longest) = (Instant::now(), Duration::ZERO);
    for step in 0..u64::MAX {
        let key = (mix(step) % LENS.len() as u64) as usize;
        let is_last = store.rank() == 0 && fs::exists(&file).unwrap_or(false);
        let shift = (step % 100) as usize;
        let own = store.rank() + shift + if is_last { LAST } else { 0 };
        let (value, out) =
            (Tensor::full(DType::F32, &[LENS[key]], own as f64), Tensor::zeros(DType::F32, &[LENS[key]]));
        let begun = Instant::now();
        store.push_pull(format!("key {key}"), &[value], std::slice::from_ref(&out), 0)?;
        let sums = out.to_vec::<f32>()?;
        longest = longest.max(begun.elapsed());
        let wanted = (size * (size - 1) / 2 + size * shift) as f32;
        if sums.iter().all(|sum| *sum == wanted + LAST as f32) {
            println!("made its last step, number {step}");
            return Ok(());
        }
        assert!(sums.iter().all(|sum| *sum == wanted), "step {step}: {sums:?} of {wanted}");
        if since.elapsed() > WINDOW {
            println!("window: {} {}", longest.as_micros(), store.stats().control_messages);
            (since, longest) = (Instant::now(), Duration::ZERO);
        }
        // Stands for computation. It keeps the number of calls low, because rank 0 remembers the last 32768
        // non-repeating calls of each rank.
        std::thread::sleep(Duration::from_millis(4));
    }
    Ok(())
}

/// Returns a pseudo-random number that depends on `step`.
fn mix(step: u64) -> u64 {
    let mixed = (step ^ (step >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
