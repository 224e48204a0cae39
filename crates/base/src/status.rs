//! The activity of the ranks of a job: the output of `ringpull top`, of a scrape of metrics and of SIGUSR1.
//!
//! Rank 0 asks every process only on request, so a job that nobody watches has no cost. Counters only grow.
//! For rates, take two statuses.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::Role;
use crate::topology::Peer;
use crate::waits;

/// A job, as its rank 0 sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The number of ranks and their hosts: `4 ranks on 1 host, shared memory`.
    pub placement: String,
    /// The MPI library, or `parameter servers`.
    pub library: String,
    /// The first fault, if the job has failed.
    pub fault: Option<String>,
    /// The status of each rank, in order, or `None` if the rank did not answer in time.
    pub ranks: Vec<Option<RankStatus>>,
    /// The status of each helper, in the same way.
    #[serde(default)]
    pub helpers: Vec<Option<RankStatus>>,
    /// The status of each server, in the same way.
    #[serde(default)]
    pub servers: Vec<Option<RankStatus>>,
    /// The ranks for which others wait, if there are any.
    pub late: Option<LateRanks>,
}

/// The work of a rank, a helper or a server since its start, and its current activity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its rank, host and process.
    pub peer: Peer,
    /// Seconds since it created its first store.
    pub seconds: f64,
    /// The number of pushes of the key that it has pushed most often. For a server, the number of rounds of
    /// the segment with the most rounds.
    pub steps: u64,
    /// The number of operations called, without those of process sets. For a server, the number of requests
    /// taken.
    pub calls: u64,
    /// Seconds in which its program waited in a call of ours, over all of its threads.
    pub waited_s: f64,
    /// Seconds in which some operation was under way, whether or not the program waited for it.
    pub moving_s: f64,
    /// Payload sent to other ranks.
    pub sent_bytes: u64,
    /// Payload received from other ranks.
    pub received_bytes: u64,
    /// Control messages about operations that it has sent.
    pub control_messages: u64,
    /// Resident memory of its process.
    pub memory_bytes: u64,
    /// The operation that is under way, or that this rank has called and others have not.
    pub doing: Option<String>,
    /// True if `doing` is an operation of a process set.
    pub is_of_set: bool,
    /// The seconds for which its program has been waiting in a call, if it waits.
    pub waits_s: Option<f64>,
    /// The current line of its program, if the package of its language can find it.
    pub site: Option<String>,
}

/// Ranks for which others wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LateRanks {
    /// The late ranks.
    pub ranks: Vec<usize>,
    /// The operation that they have not called, with its key.
    pub operation: String,
    /// A rank that waits.
    pub waiting: usize,
    /// The seconds for which the rank has waited.
    pub waited_s: f64,
}

impl JobStatus {
    /// Every process of the job, by role and rank.
    pub fn processes(&self) -> impl Iterator<Item = (Role, usize, Option<&RankStatus>)> {
        [(Role::Worker, &self.ranks), (Role::Helper, &self.helpers), (Role::Server, &self.servers)]
            .into_iter()
            .flat_map(|(role, all)| all.iter().enumerate().map(move |(rank, status)| (role, rank, status.as_ref())))
    }

    /// Returns the answer of `ask`. A process that has not looked up the place of its program lately does so
    /// when it is asked, and reports the place with its next answer. So if all have answered and a rank's
    /// place is missing, this asks once more. Blocks.
    pub fn ask(mut ask: impl FnMut() -> JobStatus) -> JobStatus {
        /// The time to wait for another thread to look up the place.
        const LOOK: Duration = Duration::from_millis(50);
        let first = ask();
        let is_whole = first.processes().all(|(_, _, answer)| answer.is_some());
        let has_all_sites = first.ranks.iter().flatten().all(|rank| rank.site.is_some());
        if first.fault.is_some() || !waits::has_looker() || !is_whole || has_all_sites {
            return first;
        }
        std::thread::sleep(LOOK);
        ask().or(first)
    }

    /// Returns this status, with the answers of `earlier` where this one has none.
    fn or(mut self, earlier: JobStatus) -> JobStatus {
        let pairs = [
            (&mut self.ranks, earlier.ranks),
            (&mut self.helpers, earlier.helpers),
            (&mut self.servers, earlier.servers),
        ];
        for (answers, earlier) in pairs {
            answers
                .iter_mut()
                .zip(earlier)
                .filter(|(answer, _)| answer.is_none())
                .for_each(|(answer, one)| *answer = one);
        }
        self
    }

    /// Finds the late ranks from the answers, if rank 0's agreement does not know them: in a frozen cycle
    /// ranks do not announce their calls.
    pub fn find_late(&mut self) {
        /// Ranks end one sum at slightly different times, so a shorter wait means nothing.
        const SHORTEST_S: f64 = 0.1;
        if self.late.is_some() || self.fault.is_some() {
            return;
        }
        let answers = || self.ranks.iter().flatten();
        let most = answers().map(|rank| rank.calls).max().unwrap_or(0);
        // A rank that is behind, and has nothing under way, has not called what the others wait for.
        let behind = answers().filter(|rank| rank.calls < most && rank.waits_s.is_none() && rank.doing.is_none());
        let ranks: Vec<usize> = behind.map(|rank| rank.peer.rank).collect();
        let waiting = answers().filter(|rank| rank.calls == most && rank.doing.is_some() && !rank.is_of_set);
        let waiting = waiting.filter_map(|rank| Some((rank, rank.waits_s.filter(|waits_s| *waits_s >= SHORTEST_S)?)));
        let waiting = waiting.max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((rank, waited_s)) = waiting.filter(|_| !ranks.is_empty()) {
            let operation = rank.doing.clone().unwrap_or_default();
            self.late = Some(LateRanks { ranks, operation, waiting: rank.peer.rank, waited_s });
        }
    }

    /// Returns the sentence about late ranks, if there are any. It names at most eight of them and the number
    /// of the others.
    pub fn late_line(&self) -> Option<String> {
        const NAMED: usize = 8;
        let late = self.late.as_ref()?;
        let name = |rank: &usize| match self.ranks.get(*rank).and_then(Option::as_ref) {
            None => format!("rank {rank}, which does not answer"),
            Some(RankStatus { peer, site, .. }) => {
                site.as_ref().map_or_else(|| peer.to_string(), |site| format!("{peer} at {site}"))
            }
        };
        let named: Vec<String> = late.ranks.iter().take(NAMED).map(name).collect();
        let more = match late.ranks.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let LateRanks { operation, waiting, waited_s, .. } = late;
        Some(format!(
            "rank {waiting} has waited {waited_s:.1} s for {operation}, which {}{more} has not called",
            named.join(", ")
        ))
    }

    /// Returns the status as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a status is plain data")
    }

    /// Returns a line for each rank, and then the late ranks, for a log. The last line has no line feed.
    pub fn lines(&self) -> String {
        let line = |(role, rank, status): (Role, usize, Option<&RankStatus>)| {
            status.map_or_else(|| format!("{} {rank} does not answer", role.label()), RankStatus::line)
        };
        let lines = self.processes().map(line).chain(self.late_line()).chain(self.fault.clone());
        lines.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }

    /// The status in Prometheus' text format (version 0.0.4), a sample of each metric for each rank.
    pub fn metrics(&self) -> String {
        type Metric = (&'static str, &'static str, &'static str, fn(&RankStatus) -> f64);
        const METRICS: [Metric; 10] = [
            ("steps_total", "counter", "Pushes of the key that the rank has pushed most often.", |r| r.steps as f64),
            ("calls_total", "counter", "Operations called.", |r| r.calls as f64),
            ("running_seconds_total", "counter", "Seconds since the rank created its first store.", |r| r.seconds),
            ("waited_seconds_total", "counter", "Seconds in which the program waited in a call.", |r| r.waited_s),
            ("moving_seconds_total", "counter", "Seconds in which an operation was under way.", |r| r.moving_s),
            ("sent_bytes_total", "counter", "Payload sent to other ranks.", |r| r.sent_bytes as f64),
            ("received_bytes_total", "counter", "Payload received from other ranks.", |r| r.received_bytes as f64),
            ("control_messages_total", "counter", "Control messages about operations.", |r| r.control_messages as f64),
            ("memory_bytes", "gauge", "Resident memory of the process.", |r| r.memory_bytes as f64),
            ("waiting_seconds", "gauge", "How long the program has been waiting in a call; 0 if it does not.", |r| {
                r.waits_s.unwrap_or(0.0)
            }),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in METRICS {
            let _ = writeln!(text, "# HELP ringpull_{name} {help}\n# TYPE ringpull_{name} {kind}");
            for (role, number, status) in self.processes() {
                let Some(status) = status else { continue };
                let host = status.peer.host.replace('\\', "\\\\").replace('"', "\\\"");
                let label = role.label();
                let _ = writeln!(text, "ringpull_{name}{{{label}=\"{number}\",host=\"{host}\"}} {}", value(status));
            }
        }
        let is_late = |rank: &usize| self.late.as_ref().is_some_and(|late| late.ranks.contains(rank));
        let up: Vec<bool> = self.ranks.iter().map(Option::is_some).collect();
        let late: Vec<bool> = (0..self.ranks.len()).map(|rank| is_late(&rank)).collect();
        for (name, help, holds) in
            [("up", "Whether the rank answers.", up), ("late", "Whether other ranks wait for this one.", late)]
        {
            let _ = writeln!(text, "# HELP ringpull_{name} {help}\n# TYPE ringpull_{name} gauge");
            for (rank, holds) in holds.into_iter().enumerate() {
                let _ = writeln!(text, "ringpull_{name}{{rank=\"{rank}\"}} {}", u8::from(holds));
            }
        }
        text
    }
}

impl RankStatus {
    /// Returns the part of this process's status that does not depend on the kind of job. The process has
    /// been `peer` since `since`. Starts to look up the place of the program, for the next question.
    pub fn of_this(peer: Peer, since: Instant) -> Self {
        /// The greatest age of a place of the program that still counts.
        const RECENT: Duration = Duration::from_millis(1500);
        let site = Instant::now().checked_sub(RECENT).and_then(waits::seen).and_then(|place| place.site);
        if waits::has_looker() {
            waits::look();
        }
        RankStatus {
            peer,
            seconds: since.elapsed().as_secs_f64(),
            steps: 0,
            calls: 0,
            waited_s: waits::waited().as_secs_f64(),
            moving_s: 0.0,
            sent_bytes: 0,
            received_bytes: 0,
            control_messages: 0,
            memory_bytes: resident_bytes(),
            doing: None,
            is_of_set: false,
            waits_s: waits::longest().map(|wait| wait.as_secs_f64()),
            site,
        }
    }

    /// Describes the current activity in a few words.
    pub fn now(&self) -> String {
        let doing = self.doing.as_deref();
        match self.peer.role {
            Role::Helper => return if doing.is_some() { "reduces" } else { "has nothing to reduce" }.to_owned(),
            Role::Server => return doing.unwrap_or("has no open round").to_owned(),
            Role::Worker | Role::Scheduler => {}
        }
        match (self.waits_s, doing) {
            (Some(waits_s), Some(doing)) => format!("waits {waits_s:.1} s for {doing}"),
            (Some(waits_s), None) => format!("waits {waits_s:.1} s"),
            (None, _) => self.site.as_ref().map_or_else(|| "computes".to_owned(), |site| format!("at {site}")),
        }
    }

    fn line(&self) -> String {
        if self.peer.role != Role::Worker {
            return format!("{}: {}", self.peer, self.now());
        }
        let site = self.site.as_ref().filter(|_| self.waits_s.is_some());
        let site = site.map_or_else(String::new, |site| format!(" at {site}"));
        let RankStatus { peer, steps, calls, .. } = self;
        format!("{peer}: step {steps}, {calls} calls, {}{site}", self.now())
    }
}

/// Returns the folder of the sockets for the status of this user's jobs on this host. There is one socket for
/// each rank 0, named by its process. If `XDG_RUNTIME_DIR` is set, the folder is in there.
pub fn folder() -> PathBuf {
    crate::config::text("XDG_RUNTIME_DIR")
        .filter(|folder| std::path::Path::new(folder).is_dir())
        .map_or_else(|| folder_in(&std::env::temp_dir()), |folder| PathBuf::from(folder).join("ringpull"))
}

/// The folder of the sockets of jobs without `XDG_RUNTIME_DIR` whose temporary files are here.
pub fn folder_in(temporary: &std::path::Path) -> PathBuf {
    temporary.join(format!("ringpull-{}", rustix::process::getuid().as_raw()))
}

/// The total time for which something has been under way.
#[derive(Debug, Default)]
pub struct Stopwatch {
    since: Option<Instant>,
    before: Duration,
}

impl Stopwatch {
    /// Starts the watch if `is_under_way`, and stops it otherwise.
    pub fn run(&mut self, is_under_way: bool) {
        match self.since {
            None if is_under_way => self.since = Some(Instant::now()),
            Some(since) if !is_under_way => {
                self.before += since.elapsed();
                self.since = None;
            }
            _ => {}
        }
    }

    /// Returns the total time.
    pub fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The resident memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize, calls: u64, waits_s: Option<f64>) -> RankStatus {
        let doing = waits_s.map(|_| "push of key w7".to_owned());
        let site = waits_s.is_none().then(|| "train.py:41 in evaluate".to_owned());
        RankStatus {
            peer: Peer { rank, role: Role::Worker, host: "h\"1".to_owned(), pid: 10 + rank as u32 },
            seconds: 9.0,
            steps: calls / 2,
            calls,
            waited_s: 1.5,
            moving_s: 2.0,
            sent_bytes: 100,
            received_bytes: 200,
            control_messages: 3,
            memory_bytes: 4096,
            doing,
            is_of_set: false,
            waits_s,
            site,
        }
    }

    fn all(ranks: impl IntoIterator<Item = RankStatus>) -> Vec<Option<RankStatus>> {
        ranks.into_iter().map(Some).collect()
    }

    fn job(ranks: Vec<Option<RankStatus>>) -> JobStatus {
        JobStatus {
            placement: "3 ranks".to_owned(),
            library: "MPI".to_owned(),
            fault: None,
            ranks,
            helpers: Vec::new(),
            servers: Vec::new(),
            late: None,
        }
    }

    #[test]
    fn the_rank_that_has_called_less_and_does_not_wait_is_late() {
        let mut job_of_three = job(all([rank(0, 8, Some(0.4)), rank(1, 7, None), rank(2, 8, Some(1.25))]));
        job_of_three.find_late();
        let late = job_of_three.late.clone().unwrap();
        assert_eq!((late.ranks, late.waiting), (vec![1], 2));
        let line = job_of_three.late_line().unwrap();
        assert_eq!(
            line,
            "rank 2 has waited 1.2 s for push of key w7, which rank 1 (pid 11 on h\"1) at train.py:41 in evaluate has not called"
        );
        assert!(
            job_of_three.lines().contains("rank 0 (pid 10 on h\"1): step 4, 8 calls, waits 0.4 s for push of key w7")
        );
        // Cases without a late rank: all compute, all wait for data, a wait is short, the other rank also has
        // an operation under way, or it is not in the process set.
        let busy = RankStatus { doing: Some("push of key w6".to_owned()), ..rank(1, 7, None) };
        let of_set = RankStatus { is_of_set: true, ..rank(0, 8, Some(3.0)) };
        for ranks in [
            [rank(0, 8, None), rank(1, 7, None)],
            [rank(0, 8, Some(0.2)), rank(1, 8, Some(0.2))],
            [rank(0, 8, Some(0.05)), rank(1, 7, None)],
            [rank(0, 8, Some(3.0)), busy],
            [of_set, rank(1, 7, None)],
        ] {
            let mut job = job(all(ranks));
            job.find_late();
            assert_eq!(job.late, None);
        }
    }

    #[test]
    fn many_late_ranks_are_counted_and_a_silent_one_is_called_so() {
        let mut large = job(all(std::iter::once(rank(0, 2, Some(3.0))).chain((1..20).map(|r| rank(r, 1, None)))));
        large.ranks[1] = None;
        large.late =
            Some(LateRanks { ranks: (1..20).collect(), operation: "barrier".to_owned(), waiting: 0, waited_s: 3.0 });
        let line = large.late_line().unwrap();
        assert!(line.contains("rank 1, which does not answer") && line.contains(" and 11 more"), "{line}");
        assert!(large.lines().contains("rank 1 does not answer"));
        assert!(!large.lines().ends_with('\n'));
    }

    #[test]
    fn metrics_have_a_type_and_a_sample_for_each_rank() {
        let mut job = job(vec![Some(rank(0, 8, Some(0.4))), Some(rank(1, 7, None)), None]);
        job.find_late();
        let text = job.metrics();
        for line in [
            "# TYPE ringpull_steps_total counter",
            "ringpull_steps_total{rank=\"0\",host=\"h\\\"1\"} 4",
            "ringpull_waiting_seconds{rank=\"0\",host=\"h\\\"1\"} 0.4",
            "ringpull_up{rank=\"2\"} 0",
            "ringpull_late{rank=\"1\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let dashboard = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/grafana.json");
        let dashboard = std::fs::read_to_string(dashboard).unwrap();
        let shown: Vec<&str> = dashboard
            .split("ringpull_")
            .skip(1)
            .map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap()])
            .collect();
        assert!(
            shown.len() > 6 && shown.iter().all(|name| text.contains(&format!("# TYPE ringpull_{name} "))),
            "{shown:?}"
        );
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 10 * 2 + 2 * 3);
    }
}
