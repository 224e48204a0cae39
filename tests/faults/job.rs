//! Jobs under `mpirun`, with checks of the output of every rank, and that no process is left.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use ringpull_base::{Result, config};
use ringpull_processes::{FakeGpus, Processes, Written, own_path};

/// The variable with the case that a process is part of.
const CHILD: &str = "RINGPULL_FAULTS_CHILD";
/// The time in which a job must end after its fault.
const DEADLINE: Duration = Duration::from_secs(25);
/// The time in which the launcher must clear away the processes that it started.
const CLEARING: Duration = Duration::from_secs(3);

/// Ranks that run a case.
pub(crate) struct Job {
    case: String,
    ranks: usize,
    processes: Processes,
}

impl Job {
    /// Starts `ranks` ranks of `case`, with `RINGPULL_TIMEOUT` of `patience_s` or its default.
    pub(crate) fn start(case: &str, ranks: usize, patience_s: Option<u64>) -> Self {
        Self::start_with(case, ranks, patience_s, &[])
    }

    /// As [`start`](Self::start), with the ranks as if each were on a host of its own.
    pub(crate) fn start_by_messages(case: &str, ranks: usize) -> Self {
        Self::start_with(case, ranks, None, &[("RINGPULL_SHARED_MEMORY", "0")])
    }

    /// As [`start`](Self::start), with a warning after a second.
    pub(crate) fn start_with_warnings(case: &str, ranks: usize) -> Self {
        Self::start_with(case, ranks, None, &[("RINGPULL_WARN", "1")])
    }

    /// As [`start`](Self::start), on two simulated devices each, that sum with those of the other ranks by
    /// themselves.
    pub(crate) fn start_on_devices(case: &str, ranks: usize) -> Self {
        Self::start_with(case, ranks, None, &[("RINGPULL_DEVICES", "sim:2"), ("RINGPULL_ALGORITHM", "nccl")])
    }

    /// As [`start`](Self::start), two ranks with two of `gpus` each.
    pub(crate) fn start_on_gpus(gpus: &FakeGpus, env: &[(&str, &str)]) -> Self {
        let envs = gpus.envs();
        let of_gpus = envs.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str()?)));
        let all: Vec<(&str, &str)> = of_gpus.chain(env.iter().copied()).collect();
        Self::start_with("on_gpus", 2, Some(3), &all)
    }

    fn start_with(case: &str, ranks: usize, patience_s: Option<u64>, env: &[(&str, &str)]) -> Self {
        let mut processes = Processes::new();
        let mut command = processes.mpirun(ranks, own_path());
        command
            .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, case)
            .env("RUST_BACKTRACE", "0")
            .env_remove("RINGPULL_TIMEOUT")
            .env_remove("RINGPULL_WARN")
            .env_remove("RINGPULL_SILENCE")
            .envs(env.iter().copied());
        if let Some(seconds) = patience_s {
            command.env("RINGPULL_TIMEOUT", seconds.to_string());
        }
        processes.start("mpirun", &mut command);
        Job { case: case.to_owned(), ranks, processes }
    }

    /// Waits until each of `ranks` has written `words`.
    pub(crate) fn wait_for(&self, words: &str, ranks: &[usize]) {
        self.wait_for_more(words, &ranks.iter().map(|rank| (*rank, 0)).collect::<Vec<_>>(), 1);
    }

    /// Waits until each rank has written `words` `times` times more often than the number beside it.
    pub(crate) fn wait_for_more(&self, words: &str, counts: &[(usize, usize)], times: usize) {
        let deadline = Instant::now() + DEADLINE;
        for (rank, count) in counts {
            let left = deadline.saturating_duration_since(Instant::now());
            self.processes.wait_for(&format!("rank {rank}"), words, count + times, left);
        }
    }

    /// Each rank, with how often it has written `words`.
    pub(crate) fn counts(&self, words: &str) -> Vec<(usize, usize)> {
        (0..self.ranks).map(|rank| (rank, self.processes.rank(rank).count(words))).collect()
    }

    /// Waits until each of `ranks` has printed its error.
    pub(crate) fn wait_for_errors(&self, ranks: &[usize], limit: Duration) {
        let all = |processes: &Processes| ranks.iter().all(|rank| !errors_of(&processes.rank(*rank), *rank).is_empty());
        self.processes.wait_until(limit, &format!("not each of ranks {ranks:?} said an error"), all);
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        let written = self.processes.rank(rank);
        let pid = written.after(&format!("rank {rank} is process ")).and_then(|pid| pid.trim().parse().ok());
        let pid = pid.and_then(Pid::from_raw);
        kill_process(pid.unwrap_or_else(|| panic!("rank {rank} did not say its id:\n{}", self.processes)), signal)
            .unwrap();
    }

    /// Waits for the end of the job, and checks that no process is left. Returns true if it succeeded.
    fn ends(&mut self) -> bool {
        let processes = &mut self.processes;
        let deadline = Instant::now() + DEADLINE;
        while !processes.running().is_empty() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        // When ranks end while it ends the job, Open MPI 4.1.4 sometimes waits for itself for ever, in
        // PMIx_server_finalize for a thread that waits for a lock. What is asked here is that no rank is
        // left.
        let is_alone = !processes.running().is_empty() && processes.living().len() == 1;
        if is_alone {
            println!("mpirun hangs although every rank has ended");
            processes.child("mpirun").kill().unwrap();
        }
        let in_time = is_alone || processes.running().is_empty();
        let cleared = Instant::now() + CLEARING;
        while !processes.living().is_empty() && Instant::now() < cleared {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let left = processes.living();
        processes.kill();
        assert!(in_time, "{:?} did not end in {DEADLINE:?}:\n{processes}", self.case);
        assert!(left.is_empty(), "processes {left:?} of {:?} are left:\n{processes}", self.case);
        processes.succeeded()
    }

    pub(crate) fn succeeds(mut self) {
        assert!(self.ends(), "{}", self.processes);
    }

    /// Checks that the job succeeds. Returns the lines of `rank` that begin with `words`.
    pub(crate) fn succeeds_with(mut self, rank: usize, words: &str) -> Vec<String> {
        assert!(self.ends(), "{}", self.processes);
        self.processes.rank(rank).lines().filter(|line| line.starts_with(words)).map(str::to_owned).collect()
    }

    /// Checks that the job fails, and that every rank except `but` prints one error that has `words`.
    pub(crate) fn fails(self, but: &[usize], words: &[&str]) {
        for error in self.errors(but) {
            words.iter().for_each(|word| assert!(error.contains(word), "{word:?} is missing in: {error}"));
        }
    }

    /// Checks that the job fails, and that every rank except `but` prints one error. Returns these errors, in
    /// the order of the ranks.
    pub(crate) fn errors(mut self, but: &[usize]) -> Vec<String> {
        assert!(!self.ends(), "the job must not succeed:\n{}", self.processes);
        let said = (0..self.ranks).filter(|rank| !but.contains(rank)).map(|rank| {
            let mut errors = errors_of(&self.processes.rank(rank), rank);
            assert_eq!(errors.len(), 1, "rank {rank} must say one error:\n{}", self.processes);
            errors.remove(0)
        });
        said.collect()
    }
}

/// The errors that `rank` said: its own report, or the library's when the launcher ended it first.
fn errors_of(written: &Written, rank: usize) -> Vec<String> {
    let marks = [format!("rank {rank} says: "), format!("ringpull: rank {rank}: ")];
    written.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))).map(str::to_owned).collect()
}

/// Runs a process of a job: its case, then its error, if any, on one line.
pub(crate) fn be_one_process(run: fn(&str, &dyn Fn(usize)) -> Result<()>) {
    let Some(case) = config::text(CHILD) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    let rank = std::cell::Cell::new(usize::MAX);
    let begun = |own: usize| {
        rank.set(own);
        println!("rank {own} is process {}", std::process::id());
    };
    if let Err(error) = run(&case, &begun) {
        let line = format!("rank {} says: {}\n", rank.get(), error.to_string().replace('\n', " | "));
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        std::process::exit(3);
    }
}
