//! Elastic MPIJobs: workers are added and lost, the launcher is lost, all are lost. The program is
//! `elastic.py`. Its total shows if a step was lost or done twice.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use super::cases::{LIMIT, image, manifest};
use super::operator::Job;
use super::pod::Pod;

/// A job of `elastic.py`, with its launcher.
struct Counting {
    job: Job,
    launcher: Pod,
}

impl Counting {
    /// Starts a job of `workers` workers. Returns `None`, and prints the reason, if that is not possible.
    fn start(test: &str, workers: u8, options: &[&str]) -> Option<Self> {
        let mut image = image()?;
        let Some(python) = image.python() else {
            println!("skipped: no Python here has the package; scripts/setup --venv makes one");
            return None;
        };
        let workers_word = workers.to_string();
        let options = [&["train", "--name", "sim", "--workers", &workers_word], options].concat();
        let objects = manifest(&options, &[&python, "/train/elastic.py", "/train"]);
        let mut job = Job::new(test, &image, &objects);
        std::fs::write(job.network.volume().join("elastic.py"), include_str!("elastic.py")).unwrap();
        std::fs::create_dir(job.network.volume().join("beat")).unwrap();
        write(&job, "limit", "20");
        job.start_workers();
        job.await_workers();
        let launcher = job.start_launcher(true);
        Some(Counting { job, launcher })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.network.volume().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn all(&self) -> String {
        format!("{}\n{}", self.launcher.text(), self.log())
    }

    /// Waits until the program has printed this line, and returns how long that took.
    fn says(&mut self, line: &str) -> Duration {
        let begun = Instant::now();
        while !self.log().lines().any(|said| said == line) {
            let is_over = begun.elapsed() > LIMIT || self.launcher.code().is_some();
            // The job may have printed the line and ended.
            assert!(!is_over || self.log().lines().any(|said| said == line), "{line:?} is missing: {}", self.all());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        begun.elapsed()
    }

    /// Lets the program make steps up to this one, and waits until it has made them.
    fn go_to(&mut self, step: u32) {
        write(&self.job, "limit", &step.to_string());
        self.says(&format!("holds at {step}"));
    }

    /// Waits for the line of a generation that goes on after this step, without a step lost or done twice.
    fn goes_on(&mut self, generation: u32, ranks: usize, step: u32) -> Duration {
        let total = step * (step + 1) / 2;
        let took = self.says(&format!("generation {generation} ranks {ranks} step {step} total {total}"));
        println!("generation {generation}: {ranks} ranks, {:.1} s", took.as_secs_f64());
        took
    }

    /// Lets the job end after this step. The job must leave nothing in memory, and no two generations may
    /// have run at the same time.
    fn ends(mut self, step: u32, last: u32) {
        // The order matters: a program that sees the end at its old limit ends there.
        write(&self.job, "limit", &step.to_string());
        write(&self.job, "end", "");
        assert_eq!(self.launcher.ends_within(LIMIT), Some(0), "{}", self.all());
        self.says(&format!("ends at {step} total {}", step * (step + 1) / 2));
        for worker in &self.job.workers {
            assert!(worker.list("/run/snapshots").is_empty(), "{}", self.all());
        }
        let log = self.log();
        for generation in 1..=last {
            let begins = log.lines().filter_map(|line| line.strip_prefix(&format!("begins {generation} rank ")));
            let begins = begins.map(|rest| rest.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
            let first = begins.fold(f64::INFINITY, f64::min);
            let lived = self.lived(generation - 1);
            assert!(lived < first, "{generation} began at {first}, the one before lived at {lived}: {}", self.all());
        }
    }

    /// The last time at which a rank of the generation was alive.
    fn lived(&self, generation: u32) -> f64 {
        let beats = std::fs::read_dir(self.path("beat")).unwrap().map(Result::unwrap);
        let own = beats.filter(|file| file.file_name().to_str().unwrap().starts_with(&format!("{generation}-")));
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        own.map(|file| seconds(file.metadata().unwrap().modified().unwrap())).fold(0.0, f64::max)
    }
}

fn write(job: &Job, name: &str, text: &str) {
    let volume = job.network.volume();
    std::fs::write(volume.join("new"), text).unwrap();
    std::fs::rename(volume.join("new"), volume.join(name)).unwrap();
}

/// The launcher is lost with its node, and its ranks go on. The next launcher ends them and goes on from
/// their last commit.
#[test]
fn a_launcher_that_takes_the_place_of_a_lost_one_goes_on_from_the_workers_memory() {
    let Some(mut counting) = Counting::start("ea", 2, &["--min-workers", "1"]) else { return };
    counting.says("holds at 20");
    // The checkpoint is older than the last commit.
    counting.go_to(23);
    counting.job.network.cut(counting.job.launcher_address());
    counting.launcher.kill();
    let alive = counting.lived(0);
    let begun = Instant::now();
    while counting.lived(0) <= alive {
        assert!(begun.elapsed() < Duration::from_secs(10), "its ranks have ended by themselves: {}", counting.all());
        std::thread::park_timeout(Duration::from_millis(10));
    }
    counting.launcher = counting.job.start_launcher(true);
    counting.goes_on(1, 2, 23);
    let said = "job sim goes on after generation 0, whose launcher is gone, from commit 23 of generation 0";
    assert!(counting.launcher.text().contains(said), "{}", counting.all());
    counting.ends(30, 1);
}

/// The launcher's pod gets SIGTERM, as when its node is drained. The commits stay for the next launcher.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_launcher_that_is_drained_leaves_the_commits_for_the_next_one() {
    let Some(mut counting) = Counting::start("eb", 2, &["--min-workers", "1"]) else { return };
    counting.says("holds at 20");
    counting.go_to(23);
    counting.launcher.terminate();
    assert_eq!(counting.launcher.ends_within(Duration::from_secs(25)), Some(143), "{}", counting.all());
    assert!(counting.launcher.text().contains("for the next launcher of job sim"), "{}", counting.all());
    counting.launcher = counting.job.start_launcher(true);
    counting.goes_on(1, 2, 23);
    counting.ends(30, 1);
}

/// A worker is lost at once, starts again, and is drained. Other workers are added and removed by a change of
/// the replicas.
#[test]
#[ignore = "long: scripts/test --all"]
fn workers_are_lost_and_added_and_no_step_is_lost() {
    let options = ["--min-workers", "2", "--env", "RINGPULL_SILENCE=4"];
    let Some(mut counting) = Counting::start("ec", 4, &options) else { return };
    counting.says("holds at 20");
    // It is lost with its node, and the list of hosts still has it.
    counting.job.network.cut(4);
    counting.job.workers[2].kill();
    counting.goes_on(1, 3, 20);
    counting.go_to(30);
    counting.job.sync();
    counting.job.start_worker(2);
    counting.job.await_workers();
    counting.job.sync();
    counting.goes_on(2, 4, 30);
    counting.go_to(40);
    counting.job.scale(6);
    counting.job.await_workers();
    counting.job.sync();
    counting.goes_on(3, 6, 40);
    counting.go_to(50);
    counting.job.scale(3);
    counting.goes_on(4, 3, 50);
    counting.job.sync();
    counting.go_to(60);
    // Drained: it gets SIGTERM and its grace period.
    counting.job.workers[1].terminate();
    counting.goes_on(5, 2, 60);
    assert!(counting.job.workers[1].ends_within(Duration::from_secs(20)).is_some(), "{}", counting.all());
    counting.job.sync();
    counting.job.start_worker(1);
    counting.job.await_workers();
    counting.job.sync();
    counting.goes_on(6, 3, 60);
    counting.ends(70, 6);
}

/// All workers are lost, and then all pods: nothing is left in memory, and the job goes on from its
/// checkpoint.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_job_all_of_whose_pods_are_lost_goes_on_from_its_checkpoint() {
    let Some(mut counting) = Counting::start("ed", 2, &["--min-workers", "2"]) else { return };
    counting.says("holds at 20");
    counting.go_to(23);
    counting.job.workers.iter_mut().for_each(Pod::kill);
    counting.job.sync();
    let begun = Instant::now();
    while !counting.launcher.text().contains("waits for hosts: 0 slots present, at least 2 needed") {
        assert!(begun.elapsed() < LIMIT, "{}", counting.all());
        std::thread::park_timeout(Duration::from_millis(50));
    }
    counting.job.start_workers();
    counting.job.await_workers();
    counting.job.sync();
    counting.goes_on(1, 2, 20);
    let said = "no host that is left has a commit: the program begins again, from its own checkpoint";
    assert!(counting.launcher.text().contains(said), "{}", counting.all());
    counting.go_to(33);
    counting.launcher.kill();
    counting.job.workers.iter_mut().for_each(Pod::kill);
    counting.job.start_workers();
    counting.job.await_workers();
    counting.launcher = counting.job.start_launcher(true);
    counting.goes_on(0, 2, 30);
    assert!(counting.launcher.text().contains("job sim: no host has a commit of it"), "{}", counting.all());
    counting.ends(40, 0);
}
