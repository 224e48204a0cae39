//! The decisions of an elastic job, as pure functions: without a clock, a process or a host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A host: its name and the number of ranks that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) slots: usize,
}

/// Returns the index of each rank's host: each host once for each of its slots, round robin, at most `most`
/// ranks.
pub(super) fn choose(present: &[Offer], most: usize) -> Vec<usize> {
    let turns = present.iter().map(|offer| offer.slots).max().unwrap_or(0);
    let slots = (0..turns).flat_map(|turn| (0..present.len()).filter(move |at| present[*at].slots > turn));
    slots.take(most).collect()
}

/// Returns the number of workers that a job would have if it were started again on the hosts that are present
/// now. `running` has the name of each rank's host. Returns `None` if the job should go on: it would not have
/// more workers and all of its hosts are still offered, or it would have too few workers.
pub(super) fn change(running: &[String], present: &[Offer], least: usize, most: usize) -> Option<usize> {
    let wanted = choose(present, most).len();
    let uses = |name: &str| running.iter().filter(|host| *host == name).count();
    let offered =
        |name: &str| present.iter().filter(|offer| offer.name == name).map(|offer| offer.slots).sum::<usize>();
    let loses_one = running.iter().any(|name| uses(name) > offered(name));
    (wanted >= least && (wanted > running.len() || loses_one)).then_some(wanted)
}

/// The times for which a host is left out after repeated failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cooldown {
    /// The time after the host's second failure. It doubles with each further failure.
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Default for Cooldown {
    fn default() -> Self {
        Cooldown { first: Duration::from_secs(10), longest: Duration::from_secs(600) }
    }
}

/// The time after which the next failure counts as the first one. It counts from the last failure, or from
/// the return of a host that was left out.
const FORGIVEN: Duration = Duration::from_secs(600);

/// The hosts that have failed. Times count from the job's start.
#[derive(Debug, Clone, Default)]
pub(super) struct Suspects {
    hosts: BTreeMap<String, Suspect>,
    cooldown: Cooldown,
}

#[derive(Debug, Clone)]
struct Suspect {
    failures: u32,
    /// The time of the host's last failure, or of its return after this failure.
    since: Duration,
}

impl Suspects {
    /// Counts a failure of the host. If the host has failed before or has never run well, returns the time
    /// for which it is left out.
    fn blame(&mut self, host: &str, is_new: bool, now: Duration) -> Option<Duration> {
        let Cooldown { first, longest } = self.cooldown;
        let suspect = self.hosts.entry(host.to_owned()).or_insert(Suspect { failures: 0, since: now });
        if now >= suspect.since + FORGIVEN {
            suspect.failures = 0;
        }
        suspect.failures += if is_new && suspect.failures == 0 { 2 } else { 1 };
        let out = if suspect.failures < 2 {
            Duration::ZERO
        } else {
            first.saturating_mul(1 << (suspect.failures - 2).min(16)).min(longest)
        };
        suspect.since = now + out;
        (out > Duration::ZERO).then_some(out)
    }

    pub(super) fn is_left_out(&self, host: &str, now: Duration) -> bool {
        self.hosts.get(host).is_some_and(|suspect| suspect.since > now)
    }

    /// The hosts that are left out, each with the seconds until its return.
    pub(super) fn left_out(&self, now: Duration) -> Vec<String> {
        let out = self.hosts.iter().filter(|(_, suspect)| suspect.since > now);
        out.map(|(host, suspect)| format!("{host} ({} s more)", suspect.since.saturating_sub(now).as_secs() + 1))
            .collect()
    }
}

/// The failure of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: i32,
    /// The hosts that were lost or have lost a rank.
    pub(super) hosts: Vec<String>,
    /// True if a rank ended by itself, on the host in `hosts`. The program or this host is the cause.
    pub(super) is_exit: bool,
}

impl Failure {
    /// Returns true if this is the same failure as the other one. A program's error may occur on any host.
    fn is_like(&self, other: &Failure) -> bool {
        self.code == other.code && self.is_exit == other.is_exit && (self.is_exit || self.hosts == other.hosts)
    }
}

/// A job's history of its generations.
#[derive(Debug, Default)]
pub(super) struct GenerationHistory {
    pub(super) suspects: Suspects,
    repeats: Repeats,
    /// Hosts of generations that have made a snapshot.
    proven: BTreeSet<String>,
}

/// The consequence of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Consequence {
    /// The hosts that are left out from now on, each with the time.
    pub(super) left_out: Vec<(String, Duration)>,
    /// The number of failures since the last snapshot, if another restart would not help.
    pub(super) hopeless: Option<u32>,
}

impl GenerationHistory {
    pub(super) fn new(cooldown: Cooldown) -> Self {
        GenerationHistory { suspects: Suspects { cooldown, ..Suspects::default() }, ..GenerationHistory::default() }
    }

    /// Records that a generation went on in place after it had lost ranks on these hosts at these times.
    pub(super) fn lose_in_place(
        &mut self,
        losses: impl Iterator<Item = (String, Duration)>,
    ) -> Vec<(String, Duration)> {
        losses.filter_map(|(host, when)| self.suspects.blame(&host, false, when).map(|out| (host, out))).collect()
    }

    /// Records that a generation cannot begin on these hosts. Returns the time for which each is left out.
    pub(super) fn leave_out(&mut self, hosts: impl Iterator<Item = String>, now: Duration) -> Vec<(String, Duration)> {
        hosts.filter_map(|host| self.suspects.blame(&host, true, now).map(|out| (host, out))).collect()
    }

    /// Records the end of a generation on these hosts, with its failure if it has failed. If it made no
    /// snapshot, and no host with an earlier snapshot was lost, the hosts without an earlier snapshot are the
    /// cause: a host may lack the program.
    pub(super) fn add(
        &mut self,
        hosts: &BTreeSet<String>,
        failure: Option<Failure>,
        has_progressed: bool,
        now: Duration,
    ) -> Consequence {
        if has_progressed {
            self.proven.extend(hosts.iter().cloned());
            // Also if it ended without a failure, because hosts had changed.
            self.repeats = Repeats::default();
        }
        let Some(mut failure) = failure else { return Consequence { left_out: Vec::new(), hopeless: None } };
        let new: Vec<String> = hosts.difference(&self.proven).cloned().collect();
        // If the program failed by itself, a host that has never run it is the likelier cause.
        let may_be_old = !failure.is_exit || new.is_empty();
        let is_explained = may_be_old && failure.hosts.iter().any(|host| self.proven.contains(host));
        if !has_progressed && !self.proven.is_empty() && !is_explained {
            failure.hosts = new;
        }
        let left_out = failure.hosts.iter().filter_map(|host| {
            let is_new = !self.proven.is_empty() && !self.proven.contains(host);
            Some((host.clone(), self.suspects.blame(host, is_new, now)?))
        });
        let left_out = left_out.collect();
        Consequence { left_out, hopeless: self.repeats.is_hopeless(failure, has_progressed) }
    }
}

/// After this number of equal failures in a row without a new snapshot, a restart does not help.
const HOPELESS: u32 = 3;
/// After this number of failures of any kind without a new snapshot, a restart does not help.
const AT_ALL: u32 = 10;

/// Counts equal failures in a row.
#[derive(Debug, Default)]
struct Repeats {
    last: Option<Failure>,
    times: u32,
    at_all: u32,
}

impl Repeats {
    /// Counts a failure. If a restart does not help, returns the number of failures since the last snapshot.
    fn is_hopeless(&mut self, failure: Failure, has_progressed: bool) -> Option<u32> {
        let is_same = !has_progressed && self.last.as_ref().is_some_and(|last| last.is_like(&failure));
        self.times = if is_same { self.times + 1 } else { 1 };
        self.at_all = if has_progressed { 1 } else { self.at_all + 1 };
        self.last = Some(failure);
        (self.times >= HOPELESS || self.at_all >= AT_ALL).then_some(self.at_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(text: &str) -> Vec<Offer> {
        let offer = |word: &str| {
            let (name, slots) = word.split_once(':').unwrap();
            Offer { name: name.to_owned(), slots: slots.parse().unwrap() }
        };
        text.split_whitespace().map(offer).collect()
    }

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn ranks_go_round_the_hosts_until_slots_or_workers_end() {
        assert_eq!(choose(&offers("a:2 b:1 c:3"), 99), [0, 1, 2, 0, 2, 2]);
        assert_eq!(choose(&offers("a:2 b:1 c:3"), 4), [0, 1, 2, 0]);
        assert_eq!(choose(&[], 4), [0; 0]);
    }

    #[test]
    fn a_job_is_started_again_for_more_workers_or_because_a_host_goes() {
        let of = |running, present| change(&names(running), &offers(present), 2, 4);
        assert_eq!(of("a b", "a:1 b:1"), None);
        assert_eq!(of("a b", "a:1 b:1 c:1"), Some(3));
        assert_eq!(of("a b a b", "a:3 b:3 c:3"), None, "it has as many as it may have");
        assert_eq!(of("a b c", "a:1 b:1"), Some(2));
        assert_eq!(of("a b c", "a:1 b:1 d:1"), Some(3), "one host is replaced by another");
        assert_eq!(of("a a b", "a:1 b:2"), Some(3), "one host has fewer slots");
        assert_eq!(of("a b", "a:1"), None, "too few would be left: it goes on as long as it can");
        assert_eq!(of("a b", ""), None);
    }

    #[test]
    fn a_host_that_fails_again_is_left_out_for_a_growing_time() {
        let mut suspects = Suspects::default();
        let at = Duration::from_secs;
        let longest = Cooldown::default().longest;
        assert_eq!(suspects.blame("a", false, at(5)), None);
        assert!(!suspects.is_left_out("a", at(5)));
        assert_eq!(suspects.blame("a", false, at(8)), Some(at(10)));
        assert!(suspects.is_left_out("a", at(17)) && !suspects.is_left_out("a", at(18)));
        assert!(!suspects.is_left_out("b", at(17)));
        assert_eq!(suspects.left_out(at(10)), ["a (9 s more)"]);
        assert_eq!(suspects.blame("a", false, at(20)), Some(at(20)));
        let mut now = at(40);
        for _ in 0..30 {
            let out = suspects.blame("a", false, now).unwrap();
            assert!(out <= longest);
            now += out;
        }
        assert_eq!(suspects.blame("a", false, now), Some(longest));
        assert_eq!(suspects.blame("a", false, now + longest + FORGIVEN), None, "it has run well for long");
    }

    #[test]
    fn a_host_that_has_never_run_well_is_the_cause_of_a_failure_without_a_snapshot() {
        let hosts = |text: &str| names(text).into_iter().collect::<BTreeSet<_>>();
        let failure = |hosts| Some(Failure { code: 127, hosts: names(hosts), is_exit: false });
        let out =
            |host: &str| Consequence { left_out: vec![(host.to_owned(), Cooldown::default().first)], hopeless: None };
        let nothing = Consequence { left_out: Vec::new(), hopeless: None };
        let at = Duration::from_secs;
        let mut past = GenerationHistory::default();
        assert_eq!(past.add(&hosts("a b"), failure(""), false, at(1)), nothing, "none has run well yet");
        assert_eq!(past.add(&hosts("a b"), None, true, at(2)), nothing);
        assert_eq!(past.add(&hosts("a b c"), failure(""), false, at(3)), out("c"));
        assert!(past.suspects.is_left_out("c", at(4)));
        assert_eq!(past.add(&hosts("a b"), failure("b"), true, at(5)), nothing, "the first loss of a proven host");
        assert_eq!(past.add(&hosts("a b d"), failure("b"), false, at(6)), out("b"), "the loss is known");
    }

    #[test]
    fn a_host_whose_ranks_fail_by_themselves_is_left_out_the_second_time_and_the_program_gets_a_third_try() {
        let hosts = |text: &str| names(text).into_iter().collect::<BTreeSet<_>>();
        let failure = |hosts| Some(Failure { code: 1, hosts: names(hosts), is_exit: true });
        let at = Duration::from_secs;
        let cooldown = Cooldown { first: at(2), longest: at(3) };
        let mut past = GenerationHistory::new(cooldown);
        let out = |times, hopeless| Consequence { left_out: times, hopeless };
        let all = hosts("a b");
        assert_eq!(past.add(&all, failure("a"), true, at(1)), out(Vec::new(), None));
        assert_eq!(past.add(&all, failure("a"), false, at(2)), out(vec![("a".to_owned(), at(2))], None));
        assert!(past.suspects.is_left_out("a", at(3)) && !past.suspects.is_left_out("a", at(4)));
        assert_eq!(past.add(&hosts("b"), failure("b"), false, at(3)), out(Vec::new(), Some(3)), "it is the program");
        assert_eq!(past.add(&all, failure("a"), true, at(9)), out(vec![("a".to_owned(), at(3))], None), "its third");
        // A host that has made no snapshot is the more likely cause.
        assert_eq!(past.add(&hosts("a b c"), failure("b"), false, at(20)).left_out, [("c".to_owned(), at(2))]);
    }

    #[test]
    fn a_snapshot_of_a_generation_that_ended_for_other_hosts_counts_too() {
        let hosts = |text: &str| names(text).into_iter().collect::<BTreeSet<_>>();
        let mut past = GenerationHistory::default();
        past.add(&hosts("a b"), None, true, Duration::from_secs(1));
        for turn in 1..20 {
            let failure = Some(Failure { code: 127, hosts: names("c"), is_exit: false });
            let verdict = past.add(&hosts("a b c"), failure, false, Duration::from_secs(60 * turn));
            assert_eq!(verdict.hopeless, None, "time {turn}");
            past.add(&hosts("a b"), None, true, Duration::from_secs(60 * turn + 30));
        }
    }

    #[test]
    fn the_third_equal_failure_without_a_snapshot_is_the_last() {
        let failure = |code, hosts: &str| Failure { code, hosts: names(hosts), is_exit: false };
        let mut repeats = Repeats::default();
        assert_eq!(repeats.is_hopeless(failure(1, ""), false), None);
        assert_eq!(repeats.is_hopeless(failure(1, ""), false), None);
        assert_eq!(repeats.is_hopeless(failure(1, ""), true), None, "it has made a snapshot");
        assert_eq!(repeats.is_hopeless(failure(1, ""), false), None);
        assert_eq!(repeats.is_hopeless(failure(1, "a"), false), None, "a host was lost");
        assert_eq!(repeats.is_hopeless(failure(1, "b"), false), None, "another one was lost");
        assert_eq!(repeats.is_hopeless(failure(1, "b"), false), None);
        assert_eq!(repeats.is_hopeless(failure(1, "b"), false), Some(6));
        let mut repeats = Repeats::default();
        for number in 0..9 {
            assert_eq!(repeats.is_hopeless(failure(number, ""), false), None);
        }
        assert_eq!(repeats.is_hopeless(failure(9, ""), false), Some(10));
    }
}
