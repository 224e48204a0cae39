//! Jobs under `mpirun`: what every rank said, and whether anything is left of them.

use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use ringpull_base::{Result, config};
use ringpull_processes::{Process, mpirun};

/// The variable that tells a process which case it is part of, and the folder whose name no other job has.
const CHILD: &str = "RINGPULL_FAULTS_CHILD";
/// How long a job may take to end once its fate is sealed.
const DEADLINE: Duration = Duration::from_secs(25);
/// How long the launcher may take to clear away what it started.
const CLEARING: Duration = Duration::from_secs(3);

/// Ranks that run a case.
pub(crate) struct Job {
    task: String,
    ranks: usize,
    mpirun: Process,
    // Its name marks the job's processes.
    _folder: TempDir,
}

impl Job {
    /// Starts `ranks` ranks of `case`, with `RINGPULL_TIMEOUT` of `patience_s` or its default.
    pub fn start(case: &str, ranks: usize, patience_s: Option<u64>) -> Self {
        Self::start_with(case, ranks, patience_s, &[])
    }

    /// As [`start`](Self::start), with the ranks as if each were on a host of its own.
    pub(crate) fn start_by_messages(case: &str, ranks: usize) -> Self {
        Self::start_with(case, ranks, None, &[("RINGPULL_SHARED_MEMORY", "0")])
    }

    /// As [`start`](Self::start), on two simulated devices each, that sum with those of the other ranks by themselves.
    pub(crate) fn start_on_devices(case: &str, ranks: usize) -> Self {
        Self::start_with(case, ranks, None, &[("RINGPULL_DEVICES", "sim:2"), ("RINGPULL_ALGORITHM", "nccl")])
    }

    fn start_with(case: &str, ranks: usize, patience_s: Option<u64>, env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let task = format!("{case}\n{}", folder.path().display());
        let mut command = mpirun(ranks);
        command
            .args(["one_process_of_a_job", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, &task)
            .env("RUST_BACKTRACE", "0")
            .envs(env.iter().copied())
            .env_remove("RINGPULL_TIMEOUT");
        if let Some(seconds) = patience_s {
            command.env("RINGPULL_TIMEOUT", seconds.to_string());
        }
        Job { task, ranks, mpirun: Process::start("mpirun", &mut command), _folder: folder }
    }

    /// Waits until the ranks together have written `words` so many times.
    pub(crate) fn wait_for(&self, words: &str, times: usize) {
        let enough = |text: &str| text.matches(words).count() >= times;
        self.wait(DEADLINE, &format!("the ranks did not write {words:?} {times} times"), enough);
    }

    pub fn count(&self, words: &str) -> usize {
        self.mpirun.text().matches(words).count()
    }

    /// Waits until each of `ranks` has said its error.
    pub(crate) fn wait_for_errors(&self, ranks: &[usize], limit: Duration) {
        let all = |text: &str| ranks.iter().all(|rank| errors_of(text, *rank).next().is_some());
        self.wait(limit, &format!("not each of ranks {ranks:?} said an error in {limit:?}"), all);
    }

    fn wait(&self, limit: Duration, complaint: &str, holds: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + limit;
        loop {
            let text = self.mpirun.text();
            if holds(&text) {
                return;
            }
            assert!(Instant::now() < deadline, "{complaint}:\n{text}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        let text = self.mpirun.text();
        let mark = format!("rank {rank} is process ");
        let pid = text.lines().find_map(|line| line.split(&mark).nth(1)?.trim().parse().ok());
        let pid = pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("rank {rank} did not say its id:\n{text}"));
        kill_process(pid, signal).unwrap();
    }

    /// The job ends, nothing is left of it; whether it succeeded, and its output.
    fn ends(mut self) -> (bool, String) {
        let deadline = Instant::now() + DEADLINE;
        while self.mpirun.runs() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        // When ranks end while it ends the job, Open MPI 4.1.4 sometimes waits for itself for ever, in PMIx_server_finalize for a
        // thread that waits for a lock. What is asked here is that no rank is left.
        let is_alone = self.mpirun.runs() && self.processes().len() == 1;
        if is_alone {
            println!("mpirun hangs although every rank has ended");
        }
        let in_time = self.mpirun.ends_by(Instant::now()) || is_alone;
        let cleared = Instant::now() + CLEARING;
        while !self.processes().is_empty() && Instant::now() < cleared {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let left = self.processes();
        self.end_processes();
        let output = self.mpirun.output();
        assert!(in_time, "{:?} did not end in {DEADLINE:?}:\n{output}", self.task);
        assert!(left.is_empty(), "processes {left:?} of {:?} are left:\n{output}", self.task);
        (self.mpirun.succeeded(), output)
    }

    pub(crate) fn succeeds(self) {
        let (succeeded, output) = self.ends();
        assert!(succeeded, "{output}");
    }

    /// The job fails, and every rank but those named says one error that holds `words`.
    pub(crate) fn fails(self, but: &[usize], words: &[&str]) {
        for error in self.errors(but) {
            words.iter().for_each(|word| assert!(error.contains(word), "{word:?} is missing in: {error}"));
        }
    }

    /// The job fails, and every rank but those named says one error: those, in the order of the ranks.
    pub(crate) fn errors(self, but: &[usize]) -> Vec<String> {
        let ranks = self.ranks;
        let (succeeded, output) = self.ends();
        assert!(!succeeded, "the job must not succeed:\n{output}");
        let said = (0..ranks).filter(|rank| !but.contains(rank)).map(|rank| {
            let errors: Vec<&str> = errors_of(&output, rank).collect();
            assert_eq!(errors.len(), 1, "rank {rank} must say one error:\n{output}");
            errors[0].to_owned()
        });
        said.collect()
    }

    /// The job's processes that live, `mpirun` among them.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("{CHILD}={}", self.task).into_bytes();
        let of_job = |pid: &i32| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(of_job).collect()
    }

    fn end_processes(&self) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            if let Err(cause) = kill_process(pid, Signal::KILL) {
                println!("process {pid:?} has ended since it was listed: {cause}");
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end_processes();
    }
}

/// The errors that `rank` said: its own report, or the library's when the launcher ended it first.
fn errors_of(text: &str, rank: usize) -> impl Iterator<Item = &str> {
    let marks = [format!("rank {rank} says: "), format!("ringpull: rank {rank}: ")];
    text.lines().filter(move |line| marks.iter().any(|mark| line.contains(mark)))
}

/// What a process of a job does: its case, then its error, if any, on one line.
pub(crate) fn be_one_process(run: fn(&str, &dyn Fn(usize)) -> Result<()>) {
    let Some(task) = config::text(CHILD) else {
        println!("skipped: the other tests start this one as a process of a job");
        return;
    };
    let (case, _) = task.split_once('\n').unwrap();
    let rank = std::cell::Cell::new(usize::MAX);
    let begun = |own: usize| {
        rank.set(own);
        println!("rank {own} is process {}", std::process::id());
    };
    if let Err(error) = run(case, &begun) {
        let line = format!("rank {} says: {}\n", rank.get(), error.to_string().replace('\n', " | "));
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        std::process::exit(3);
    }
}
