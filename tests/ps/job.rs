//! Jobs of real processes on loopback. Each node is a new process of this test binary.

use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) use ringpull_processes::LIMIT;
pub(crate) use ringpull_processes::free_port;
use ringpull_processes::{Processes, Written, own_path};

/// The processes of a job's nodes. Dropping the job kills the processes that still run.
pub(crate) struct Job {
    pub(crate) port: u16,
    processes: Processes,
    names: Vec<String>,
    /// The `RINGPULL_SECRET` of nodes that are added later.
    pub(crate) secret: Option<&'static str>,
    is_elastic: bool,
}

/// End of a node.
pub(crate) struct End {
    pub(crate) name: String,
    pub(crate) code: Option<i32>,
    pub(crate) written: Written,
}

impl Job {
    /// Starts a scheduler, servers, and workers that run `case`.
    pub(crate) fn start(case: &str, workers: usize, servers: usize) -> Self {
        let mut job = Job::empty(free_port());
        job.add_all(case, workers, servers);
        job
    }

    /// Starts an elastic job, which goes on without lost workers.
    pub(crate) fn start_elastic(case: &str, workers: usize, servers: usize) -> Self {
        let mut job = Job { is_elastic: true, ..Job::empty(free_port()) };
        job.add_all(case, workers, servers);
        job
    }

    /// A job of which nothing runs yet.
    pub(crate) fn empty(port: u16) -> Self {
        Job { port, processes: Processes::new(), names: Vec::new(), secret: None, is_elastic: false }
    }

    fn add_all(&mut self, case: &str, workers: usize, servers: usize) {
        self.add(case, "scheduler", None, workers, servers);
        for server in 0..servers {
            self.add(case, "server", Some(server), workers, servers);
        }
        for worker in 0..workers {
            self.add(case, "worker", Some(worker), workers, servers);
        }
    }

    pub(crate) fn add(&mut self, case: &str, role: &str, rank: Option<usize>, workers: usize, servers: usize) {
        let mut command = Command::new(own_path());
        command
            .args(["--exact", "one_node_of_a_job", "--nocapture", "--test-threads=1"])
            .env("RINGPULL_TEST_CASE", case)
            .env("RUST_BACKTRACE", "0");
        let limits = [("RINGPULL_TIMEOUT", "3"), ("PS_HEARTBEAT_INTERVAL", "0.3"), ("PS_HEARTBEAT_TIMEOUT", "4")];
        for (name, value) in limits {
            // A deadlock, and the end of a worker, are found whatever the limits.
            if ["deadlock", "ends_early", "ends_with_a_push"].contains(&case) {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        if self.is_elastic {
            command.env("RINGPULL_ELASTIC", "1");
        }
        command.env_remove("RINGPULL_SECRET_FILE").env_remove("RINGPULL_SECRET");
        if let Some(secret) = self.secret {
            command.env("RINGPULL_SECRET", secret);
        }
        let name = self.processes.start_node(&mut command, (role, rank), self.port, (workers, servers));
        self.names.push(name);
    }

    /// Waits until the node has written `text`.
    pub(crate) fn wait_for(&self, name: &str, text: &str) {
        self.processes.wait_for(name, text, 1, LIMIT);
    }

    /// Sends a node this signal.
    pub(crate) fn signal(&mut self, name: &str, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.processes.child(name));
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) {
        self.processes.child(name).kill().unwrap();
    }

    /// Returns how every node ended. All nodes must end within `limit`.
    pub(crate) fn ends(mut self, limit: Duration) -> Vec<End> {
        let deadline = Instant::now() + limit;
        loop {
            let running = self.processes.running();
            if running.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{running:?} still run after {limit:?}\n{}", self.processes);
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let ends = self.names.into_iter().map(|name| End {
            code: self.processes.child(&name).wait().unwrap().code(),
            written: self.processes.written(&name),
            name,
        });
        ends.collect()
    }

    /// Checks that every node ends with success.
    pub(crate) fn succeeds(self) -> Vec<End> {
        let ends = self.ends(LIMIT);
        for end in &ends {
            assert_eq!(end.code, Some(0), "{}:\n{}", end.name, end.written);
        }
        ends
    }

    /// Checks that every node ends with an error that contains `words`, after the start-up limit.
    pub(crate) fn fails_slowly(self, words: &[&str]) {
        for end in self.ends(LIMIT) {
            assert!(end.code.is_some_and(|code| code != 0), "{} ended with {:?}:\n{}", end.name, end.code, end.written);
            assert!(words.iter().all(|word| end.written.contains(word)), "{}:\n{}", end.name, end.written);
        }
    }

    /// Checks that every node except `but` ends with an error in time, and that every worker's error contains
    /// each of `words`.
    pub(crate) fn fails(self, but: &[&str], words: &[&str]) {
        for end in self.ends(LIMIT) {
            if but.contains(&end.name.as_str()) {
                continue;
            }
            assert!(end.code.is_some_and(|code| code != 0), "{} ended with {:?}:\n{}", end.name, end.code, end.written);
            if end.name.starts_with("worker") {
                for word in words {
                    assert!(end.written.contains(word), "{} does not say {word:?}:\n{}", end.name, end.written);
                }
            }
        }
    }
}
