//! The ranks and hosts that a job has lost, read from messages of Open MPI's `mpirun` and of the ranks.
//! MPICH's `mpiexec` prints such messages to stdout, among the output of ranks, where they are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ringpull_lab::ends::is_of_signal;

/// The losses reported so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Ranks that a signal has ended, as `mpirun` reports, with the signal.
    killed: Vec<(usize, String)>,
    /// Ranks that have ended by themselves, with their exit codes.
    failed: Vec<(usize, String)>,
    /// Hosts that `mpirun` has lost.
    hosts: BTreeSet<String>,
    /// Ranks that other ranks have lost.
    missed: BTreeSet<usize>,
    /// Ranks without which the others go on, with the time of this message.
    in_place: BTreeMap<usize, Instant>,
    /// The rank of a report that is not complete: Open MPI gives its exit code in the next line.
    reported: Option<usize>,
    /// True if the next line has the signal of the last rank in `killed`, as with Open MPI 5.
    is_signal_next: bool,
}

impl Lost {
    /// Takes a line of the job's stderr.
    pub(super) fn read(&mut self, line: &str) {
        let text = line.trim();
        if let Some(missed) = missed(text) {
            self.missed.insert(self.started(missed));
        }
        for rank in in_place(text) {
            self.in_place.entry(rank).or_insert_with(Instant::now);
        }
        if text.starts_with('[') {
            return;
        }
        if let Some((_, rest)) = text.split_once("noticed that process rank ") {
            // Open MPI: "mpirun noticed that process rank 2 with PID 0 on node h3 exited on signal 9
            // (Killed)."
            let how = rest.split_once("exited on").map_or("", |(_, how)| how.split(" (").next().unwrap_or(how).trim());
            if let Some(rank) = number(rest) {
                self.is_signal_next = how.is_empty();
                self.killed.push((rank, how.trim_end_matches('.').to_owned()));
            }
        } else if std::mem::take(&mut self.is_signal_next) {
            let how = text.split(" (").next().unwrap_or(text).trim_end_matches('.');
            if let Some((_, by)) = self.killed.last_mut().filter(|_| how.starts_with("signal ")) {
                how.clone_into(by);
            }
        } else if let Some(name) = text.strip_prefix("Process name: [[") {
            // Open MPI: "Process name: [[23000,1],1]", and then "Exit code:    3".
            self.reported = name.rsplit_once("],").and_then(|(_, rank)| number(rank));
        } else if let Some(code) = text.strip_prefix("Exit code:") {
            if let Some(rank) = self.reported.take() {
                self.failed.push((rank, code.trim().to_owned()));
            }
        } else if let Some((_, on)) =
            text.split_once("Remote daemon:").and_then(|(_, rest)| rest.split_once("on node "))
        {
            // Open MPI: "Remote daemon: [[23000,0],1] on node h2".
            self.hosts.insert(on.trim().to_owned());
        }
    }

    /// Records the end of a rank by its name and exit code, as its wrapper has reported them to the launcher.
    pub(super) fn end(&mut self, name: &str, code: Option<i32>) {
        let Some(rank) = name.strip_prefix("rank ").and_then(number) else { return };
        match code.filter(|code| !is_of_signal(*code)) {
            Some(code) => self.failed.push((rank, code.to_string())),
            None => self.killed.push((rank, code.map_or_else(String::new, |code| format!("signal {}", code - 128)))),
        }
    }

    /// The ranks without which the job goes on, by their numbers at the start, with the time of the loss.
    pub(super) fn in_place(&self) -> &BTreeMap<usize, Instant> {
        &self.in_place
    }

    /// The number at the start of the rank that now has the number `rank`.
    fn started(&self, rank: usize) -> usize {
        let gone = self.in_place.keys();
        gone.fold(rank, |started, gone| if *gone <= started { started.saturating_add(1) } else { started })
    }

    /// The lost ranks: those that `mpirun` names, or else those that other ranks report as lost.
    fn ranks(&self) -> BTreeSet<usize> {
        if self.killed.is_empty() { self.missed.clone() } else { self.killed.iter().map(|(rank, _)| *rank).collect() }
    }

    /// The first rank that has ended by itself, not because it lost another rank.
    fn first_failed(&self) -> Option<&(usize, String)> {
        self.failed.iter().find(|(rank, _)| self.missed.is_empty() || self.missed.contains(rank))
    }

    /// Returns true if a rank has ended by itself, so that the others ended too.
    pub(super) fn is_exit(&self) -> bool {
        self.first_failed().is_some()
    }

    /// The names of the hosts that have failed, in a job with ranks on `running`. If a rank has ended by
    /// itself, it is only this rank's host.
    pub(super) fn hosts(&self, running: &[String]) -> BTreeSet<String> {
        if let Some((rank, _)) = self.first_failed() {
            return running.get(*rank).cloned().into_iter().collect();
        }
        let of_ranks = self.ranks().into_iter().filter_map(|rank| running.get(rank).cloned());
        // The launcher's names of the hosts: MPI may leave out the user or the domain.
        let known = self.hosts.iter().filter_map(|said| running.iter().find(|name| is_of(name, said)).cloned());
        of_ranks.chain(known).collect()
    }

    /// The loss in words, or the end of the job.
    pub(super) fn in_words(&self, running: &[String], code: i32) -> String {
        let rank = |rank: &usize| match running.get(*rank) {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank}"),
        };
        if let Some((number, code)) = self.first_failed() {
            return format!("{} failed with exit code {code}", rank(number));
        }
        let by = |by: &str| if by.is_empty() { String::new() } else { format!(" ({by})") };
        let mut lost: Vec<String> = self.killed.iter().map(|(number, how)| rank(number) + &by(how)).collect();
        if lost.is_empty() {
            lost = self.missed.iter().map(rank).collect();
        }
        if lost.is_empty() {
            lost = self.hosts(running).into_iter().collect();
        }
        if lost.is_empty() { format!("exit code {code}") } else { format!("lost {}", lost.join(", ")) }
    }
}

fn is_of(name: &str, said: &str) -> bool {
    let name = name.rsplit('@').next().unwrap_or(name);
    name == said || name.split('.').next() == said.split('.').next() && (!name.contains('.') || !said.contains('.'))
}

/// The number with which the text begins.
fn number(text: &str) -> Option<usize> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text[..digits].parse().ok()
}

/// The rank that the line of another rank names as lost: "rank 0: stopped: rank 1 (pid 7 on h2) is lost: its
/// process ended".
fn missed(text: &str) -> Option<usize> {
    let before = text.split_once(") is lost: ")?.0;
    number(before.rsplit_once("rank ")?.1)
}

/// The ranks that a rank's line names as lost in place: "[rank 0] ringpull: elastic: goes on in place without
/// rank 1, rank 3: 2 ranks are left".
fn in_place(text: &str) -> Vec<usize> {
    let ranks =
        text.split_once("ringpull: elastic: goes on in place without ").and_then(|(_, rest)| rest.split_once(':'));
    let ranks = ranks.map_or("", |(ranks, _)| ranks).split(", ");
    ranks.filter_map(|rank| rank.strip_prefix("rank ")?.parse().ok()).collect()
}

/// Reads messages of `mpirun` and of ranks, for a fuzz target.
#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    let (mut lost, running) = (Lost::default(), ["a".to_owned(), "b.c".to_owned()]);
    text.lines().for_each(|line| lost.read(line));
    assert!(lost.hosts(&running).len() <= running.len() && !lost.in_words(&running, 1).is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Lost {
        let mut lost = Lost::default();
        text.lines().for_each(|line| lost.read(line));
        lost
    }

    fn lost_at(host: &str) -> Lost {
        of(&format!("Remote daemon: [[23000,0],1] on node {host}\n"))
    }

    fn running() -> Vec<String> {
        ["h1", "h2", "h3"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_words_of_open_mpi_name_the_rank_and_how_it_ended() {
        let lost = of("[rank 2] rank 2: stopped: rank 1 (pid 7 on h2) is lost: its process ended\n\
             mpirun noticed that process rank 1 with PID 0 on node h2 exited on signal 9 (Killed).");
        assert_eq!(lost.in_words(&running(), 137), "lost rank 1 on h2 (signal 9)");
        assert_eq!(lost.hosts(&running()), BTreeSet::from(["h2".to_owned()]));
        // Open MPI 5.
        let broken = "prterun noticed that process rank 1 with PID 7 on node h2 exited on\n";
        let lost = of(&format!("{broken}signal 11 (Segmentation fault).\n"));
        assert_eq!(lost.in_words(&running(), 139), "lost rank 1 on h2 (signal 11)");
        assert_eq!(of(&format!("{broken}something else\n")).in_words(&running(), 1), "lost rank 1 on h2");
        let lost = of("  Process name: [[23000,1],2]\n  Exit code:    3\n");
        assert_eq!(lost.in_words(&running(), 3), "rank 2 on h3 failed with exit code 3");
        assert!(lost.is_exit() && lost.hosts(&running()) == BTreeSet::from(["h3".to_owned()]));
        let lost = of("ORTE has lost communication with a remote daemon.\n\
             HNP daemon   : [[23000,0],0] on node h1\n  Remote daemon: [[23000,0],1] on node h2\n");
        assert_eq!(lost.in_words(&running(), 1), "lost h2");
    }

    #[test]
    fn what_mpirun_does_not_name_is_known_by_the_others() {
        let lost = of("[rank 0] rank 0: stopped: rank 1 (pid 7 on h2) is lost: its process ended (during pull)\n");
        assert_eq!(lost.in_words(&running(), 1), "lost rank 1 on h2");
        // A rank that ends because another one is lost, before `mpirun` notices the loss.
        let said = "[rank 0] rank 0: stopped: rank 1 (pid 7 on h2) is lost: nothing heard of it\n";
        let lost = of(&format!("{said}  Process name: [[23000,1],0]\n  Exit code:    1\n"));
        assert_eq!(lost.in_words(&running(), 1), "lost rank 1 on h2");
        assert_eq!(lost.hosts(&running()), BTreeSet::from(["h2".to_owned()]));
        // The rank that the others report as lost has ended by itself.
        let lost = of(&format!("{said}  Process name: [[23000,1],1]\n  Exit code:    3\n"));
        assert_eq!(lost.in_words(&running(), 3), "rank 1 on h2 failed with exit code 3");
        assert!(lost.is_exit());
    }

    #[test]
    fn a_rank_that_its_own_side_says_has_ended_needs_no_words_of_mpirun() {
        let ended = |name, code| {
            let mut lost = Lost::default();
            lost.end(name, code);
            (lost.in_words(&running(), 1), lost.is_exit())
        };
        assert_eq!(ended("rank 1", Some(3)), ("rank 1 on h2 failed with exit code 3".to_owned(), true));
        assert_eq!(ended("rank 2", Some(137)), ("lost rank 2 on h3 (signal 9)".to_owned(), false));
        assert_eq!(ended("rank 0", None), ("lost rank 0 on h1".to_owned(), false));
        assert_eq!(ended("helper 0", Some(3)), ("exit code 1".to_owned(), false));
    }

    #[test]
    fn a_number_that_no_rank_has_is_read_at_once() {
        let lost = of(&format!("[rank 0] rank 0: stopped: rank {} (pid 7 on h2) is lost: x\n", usize::MAX));
        assert!(lost.hosts(&running()).is_empty());
    }

    #[test]
    fn after_a_loss_in_place_ranks_have_other_numbers() {
        let lost = of("[rank 2] ringpull: elastic: goes on in place without rank 0, rank 1: 1 rank is left\n");
        assert!(lost.in_place().keys().eq(&[0, 1]));
        assert!(lost.hosts(&running()).is_empty(), "the job has not failed by it");
        let lost = of("ringpull: elastic: goes on in place without rank 1: 2 ranks are left\n\
             [rank 0] rank 0: stopped: rank 1 (pid 7 on h3) is lost: nothing heard of it\n");
        assert_eq!(lost.in_words(&running(), 1), "lost rank 2 on h3");
        let started =
            |rank| of("ringpull: elastic: goes on in place without rank 0, rank 2, rank 3: x\n").started(rank);
        assert_eq!([0, 1, 2].map(started), [1, 4, 5]);
    }

    #[test]
    fn a_job_of_which_nothing_is_known_has_ended_with_its_code() {
        assert_eq!(of("[rank 0] mpirun noticed that process rank 1 x\n").in_words(&running(), 4), "exit code 4");
        assert!(of("").hosts(&running()).is_empty());
        assert_eq!(lost_at("h9").hosts(&running()), BTreeSet::new());
    }

    #[test]
    fn a_hosts_name_may_lack_its_user_or_its_domain() {
        let running = ["ann@n1.site.org".to_owned()];
        assert_eq!(lost_at("n1").hosts(&running).len(), 1);
        assert_eq!(lost_at("n1.else.org").hosts(&running).len(), 0);
    }
}
