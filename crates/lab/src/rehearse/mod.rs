//! `ringpull rehearse`: runs a command as a job, once undisturbed and once for each fault, and reports the
//! outcome of each.
//!
//! - [`fault`]: kinds of faults, and their moments; [`random`]: faults drawn from a seed;
//! - [`shape`]: the exit code that has to follow;
//! - [`job`]: one job and its fault; `folders`: its files; `processes`: finds its processes;
//! - `said`: the lines in which the job reports the fault.

pub mod fault;
mod folders;
pub mod job;
mod processes;
pub mod random;
mod said;
pub mod shape;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use ringpull_base::config::{Config, Role};
use ringpull_base::{Error, Result};

use self::fault::{ExpectedEnd, Fault, FaultKind, USUAL};
use self::job::{End, JobOutcome, Rehearsal};
pub use self::said::JobReport;
use self::shape::JobShape;
use ringpull_harness::interrupt::Interrupt;
use ringpull_harness::progress::Progress;
use ringpull_harness::text::{format_seconds, grid};

/// Jobs that were run, with the fault of each; the first has none.
#[derive(Debug, Serialize)]
pub struct RehearsalResult {
    jobs: Vec<FaultRow>,
    /// The signal that has ended the rehearsal before its last job.
    #[serde(skip)]
    pub interrupted: Option<i32>,
}

#[derive(Debug, Serialize)]
struct FaultRow {
    /// The fault in words, or `nothing`.
    fault: String,
    /// The reason why the job's end is wrong, if it is wrong.
    wrong: Option<String>,
    #[serde(flatten)]
    outcome: JobOutcome,
}

/// An undisturbed job that takes longer has hung.
const LONGEST: Duration = Duration::from_secs(3600);
/// The most time that a job needs for its end beyond the limits of silence. It covers the grace period of
/// processes.
const SLACK: Duration = Duration::from_secs(60);

/// Runs the job without a fault, and then once for each of `faults`, or once for all of them `together`. A
/// job has hung if it takes longer than three times the undisturbed job, plus the time of its faults, plus a
/// minute.
pub fn rehearse(rehearsal: &Rehearsal<'_>, faults: &[Fault], together: bool) -> Result<RehearsalResult> {
    let ends = |fault: &&Fault| fault.what.is_from_the_start() || fault.expect == Some(ExpectedEnd::Ends);
    if let Some(fault) = faults.iter().find(ends).filter(|_| together) {
        return Err(Error::argument(
            format!("\"{fault}\" ends the job or is there from its start, so no other fault can follow"),
            "leave out --together, or that fault",
        ));
    }

    let (interrupt, silence) = (Interrupt::watch()?, Config::from_env()?.silence());
    let progress = Progress::start("the job without a fault");
    let first = rehearsal.run(0, &[], (USUAL, LONGEST), &interrupt)?;
    if !matches!(first.end, End::WentOn | End::Interrupted) {
        return Err(Error::argument(
            format!("without any fault the job {}: {}", words(&first.end), first.said.error.unwrap_or_default()),
            format!("make it run to its end first; its output is in {}", first.log.display()),
        ));
    }
    let usual = Duration::from_secs_f64(first.seconds);
    let mut rehearsed = RehearsalResult { interrupted: interrupt.signal(), jobs: Vec::new() };
    rehearsed.jobs.push(FaultRow { fault: "nothing".to_owned(), wrong: None, outcome: first });
    let of_each = if together { faults.len().max(1) } else { 1 };
    for (at, of_job) in faults.chunks(of_each).enumerate() {
        if rehearsed.interrupted.is_some() {
            break;
        }
        let names = words_of(of_job);
        progress.part(at, faults.len() / of_each, names.clone());
        let limit = 3 * usual + of_job.iter().map(Fault::time).sum::<Duration>() + SLACK + 3 * silence;
        let outcome = rehearsal.run(at + 1, of_job, (USUAL.min(usual / 2), limit), &interrupt)?;
        rehearsed.interrupted = interrupt.signal();
        let mut judged = of_job[of_job.len() - 1].clone();
        if together {
            judged.expect = Some(ExpectedEnd::GoesOn);
        }
        let wrong = wrong(&judged, &rehearsal.shape, &outcome);
        rehearsed.jobs.push(FaultRow { fault: names, wrong, outcome });
    }
    Ok(rehearsed)
}

/// The faults of a job in words. Of many faults, only the first ones.
fn words_of(faults: &[Fault]) -> String {
    const SHOWN: usize = 3;
    let words: Vec<String> = faults.iter().take(SHOWN).map(Fault::to_string).collect();
    let more = faults.len() - words.len();
    words.join("; ") + &if more == 0 { String::new() } else { format!("; and {more} more") }
}

/// Returns the reason why the end of a disturbed job is wrong, if it is wrong.
fn wrong(fault: &Fault, shape: &JobShape, outcome: &JobOutcome) -> Option<String> {
    let ends_a_rank =
        matches!(fault.what, FaultKind::Kill(who) | FaultKind::Terminate(who, _) if who.role == Role::Worker);
    // A random fault may come before the program has begun, or after it has finished.
    let is_random = matches!(fault.expect, Some(ExpectedEnd::Codes(_)));
    let has_survivors = !is_random && !fault.what.is_from_the_start() && (shape.workers > 1 || !ends_a_rank);
    let says_why = has_survivors && shape.may_say_why(&fault.what);
    let unexpected = |text: &str| Some(format!("expected that it {text}"));
    let code = match outcome.end {
        End::WentOn => Some(0),
        End::Ended(code) => Some(code),
        _ => None,
    };
    match (&outcome.end, &fault.expect) {
        (End::Hung, _) => Some("it did not end in its time".to_owned()),
        (End::Early(_), _) => Some("it ended before the fault: let it come earlier".to_owned()),
        (_, Some(ExpectedEnd::Codes(Some(codes)))) if code.is_some_and(|code| !codes.contains(&code)) => {
            let codes: BTreeSet<i32> = codes.iter().copied().collect();
            unexpected(&format!("ends with one of {codes:?}"))
        }
        (End::WentOn, Some(ExpectedEnd::Ends)) => unexpected("ends with an error"),
        (End::Ended(_), Some(ExpectedEnd::GoesOn)) => unexpected("goes on"),
        (End::Ended(_), _) if outcome.said.ranks == 0 && says_why => Some("no rank reported an error".to_owned()),
        _ => match outcome.left {
            0 => outcome.harm.clone(),
            1 => Some("1 process is left".to_owned()),
            left => Some(format!("{left} processes are left")),
        },
    }
}

fn words(end: &End) -> String {
    match end {
        End::WentOn => "went on".to_owned(),
        End::Ended(code) => format!("ended with {code}"),
        End::Hung => "hung".to_owned(),
        End::Early(code) => format!("ended early with {code}"),
        End::Interrupted => "was interrupted".to_owned(),
    }
}

impl RehearsalResult {
    /// Returns true if every job ended in an allowed way.
    pub fn is_well(&self) -> bool {
        self.jobs.iter().all(|row| row.wrong.is_none())
    }

    /// The table for a terminal. Below it are the wrong ends, and the messages of each failed job.
    pub fn table(&self, ranks: usize) -> String {
        let usual = self.jobs.first().map_or(0.0, |row| row.outcome.seconds);
        let cells = self.jobs.iter().map(|row| {
            let JobOutcome { end, seconds, after_fault_s, step, said, .. } = &row.outcome;
            let longer =
                if row.fault == "nothing" { "-".to_owned() } else { format_seconds((seconds - usual).max(0.0)) };
            let went_on = *end == End::WentOn;
            vec![
                row.fault.clone(),
                words(end),
                step.map_or("-".to_owned(), |step| step.to_string()),
                after_fault_s.filter(|_| !went_on).map_or("-".to_owned(), format_seconds),
                if went_on { longer } else { "-".to_owned() },
                if went_on { "-".to_owned() } else { format!("{} of {ranks}", said.ranks) },
            ]
        });
        let head = ["fault", "the job", "at step", "ended after", "longer by", "ranks with an error"];
        let mut text = grid(head, cells.collect(), 2) + "\n";
        for row in self.jobs.iter().filter(|row| row.wrong.is_some() || row.outcome.end != End::WentOn) {
            let said = row.outcome.said.error.as_deref().unwrap_or("it said nothing");
            let mut lines = vec![String::new(), format!("{}: {said}", row.fault)];
            lines.extend(row.outcome.said.hint.as_ref().map(|hint| format!("  hint: {hint}")));
            lines.extend(row.wrong.as_ref().map(|wrong| format!("  WRONG: {wrong}")));
            lines.push(format!("  output: {}\n", row.outcome.log.display()));
            text += &lines.join("\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::fault::{Member, Moment};
    use super::*;

    /// A job in which no rank wrote an error: `mpirun` ends a job if `mpirun` itself has lost a connection.
    #[test]
    fn ranks_have_to_say_why_their_job_ends_unless_their_mpirun_has_lost_a_connection() {
        let outcome = JobOutcome {
            end: End::Ended(143),
            seconds: 1.0,
            after_fault_s: Some(1.0),
            step: None,
            left: 0,
            harm: None,
            said: JobReport::default(),
            log: "log".into(),
        };
        let ranks = JobShape { workers: 3, hosts: 2, ..JobShape::default() };
        let servers = JobShape { servers: 1, ..ranks.clone() };
        let hybrid = JobShape { is_hybrid: true, ..servers.clone() };
        let silent = Some("no rank reported an error".to_owned());
        for (what, expected) in [
            (FaultKind::Reset(1), [None, silent.clone(), None]),
            (FaultKind::Cut(1, None), [silent.clone(), silent.clone(), silent.clone()]),
            (FaultKind::Kill(Member { role: Role::Worker, index: 0 }), [silent.clone(), silent.clone(), silent]),
        ] {
            let fault = Fault { what, at: Moment::Usual, expect: None };
            let found = [&ranks, &servers, &hybrid].map(|shape| wrong(&fault, shape, &outcome));
            assert_eq!(found, expected, "{fault}");
        }
        let limit = FaultKind::Limit(Member { role: Role::Scheduler, index: 0 }, Duration::ZERO);
        let random = Fault { what: limit, at: Moment::Usual, expect: Some(ExpectedEnd::Codes(None)) };
        assert_eq!(wrong(&random, &servers, &outcome), None, "the program may not have begun");
        let left = JobOutcome { left: 2, ..outcome };
        let fault = Fault { what: FaultKind::Reset(1), at: Moment::Usual, expect: None };
        assert_eq!(wrong(&fault, &ranks, &left).as_deref(), Some("2 processes are left"));
    }
}
