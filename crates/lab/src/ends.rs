//! The table of ends: the effect of each process's end on its job. These are pure functions of the launcher's
//! knowledge, without a clock or a process.
//!
//! [`meaning`] decides on a process that the launcher has started itself. [`awaited`] returns how long the
//! launcher waits for the other processes. [`of_mpirun`] is for a job of MPI ranks, whose processes `mpirun`
//! ends together. [`beside_ranks`] is for a job with servers beside MPI ranks. The tests below hold the whole
//! table.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use ringpull_base::config::Role;

/// The exit code of a process; 128 plus the signal's number if a signal ended it.
pub fn code_of(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Returns true if a process with this exit code was ended by a signal. Signals have numbers from 1 to 64.
pub fn is_of_signal(code: i32) -> bool {
    (129..=192).contains(&code)
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfProcess {
    /// With exit code 0.
    Well,
    /// With another exit code of its own.
    Failed,
    /// By a signal, with its host, or after the job had gone on without this process.
    Lost,
}

/// The state of the other processes when one process has ended, as far as the launcher knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of the table")]
pub struct JobState {
    /// True if a process has failed before, or the job was interrupted.
    pub has_failed: bool,
    /// True if a worker has ended well.
    pub has_succeeded: bool,
    /// The number of running workers that still belong to the job. An elastic job may have gone on without
    /// some.
    pub workers: usize,
    /// True if the process was started in the place of another one, or if the job has gone on without it.
    pub is_surplus: bool,
    /// True if another process may still be started in its place.
    pub may_restart: bool,
}

/// The effect of a process's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndEffect {
    /// Nothing.
    Nothing,
    /// The job no longer needs the process, so the way in which it ended changes nothing.
    Unneeded,
    /// The job goes on without it.
    Without,
    /// The job goes on, and another process is started in its place.
    Replaced,
    /// The job fails with the exit code of this process, and the others end.
    Failure,
}

/// Decides the effect of a process's end on its job. `least` is given for an elastic job: it goes on without
/// lost workers if at least `least` workers are left.
pub fn meaning(least: Option<usize>, role: Role, end: EndOfProcess, state: JobState) -> EndEffect {
    use EndEffect::{Failure, Nothing, Replaced, Unneeded, Without};
    let JobState { has_failed, has_succeeded, workers, is_surplus, may_restart } = state;
    match (role, end, least) {
        (_, EndOfProcess::Well, _) => Nothing,
        // The first failure is the job's failure, and the other processes end because of it.
        _ if has_failed => Nothing,
        // The workers have finished their work.
        (Role::Server | Role::Scheduler, ..) if workers == 0 && has_succeeded => Unneeded,
        // The worker started or woke up too late: the job is finished.
        (Role::Worker, _, Some(_)) if is_surplus && has_succeeded => Unneeded,
        (Role::Worker, EndOfProcess::Lost, Some(least)) if workers >= least.max(1) => {
            if may_restart && !has_succeeded {
                Replaced
            } else {
                Without
            }
        }
        (_, EndOfProcess::Failed | EndOfProcess::Lost, _) => Failure,
    }
}

/// The time for which the remaining processes may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingTime {
    /// As long as they like.
    Unlimited,
    /// For the job's grace period, because the processes have nothing left to do.
    Grace,
    /// For the time that they need to report which process they lost.
    LastWords,
    /// For the time that a replacement worker may need to learn that the job is over.
    Latecomer,
    /// Not at all.
    Ends,
}

/// Returns the time for which the remaining processes may run. `only_surplus` is true if neither the
/// scheduler nor a worker from the job's start runs.
pub fn awaited(is_interrupted: bool, state: JobState, only_surplus: bool) -> RemainingTime {
    match state {
        JobState { workers: 0, has_failed: true, .. } if is_interrupted => RemainingTime::Ends,
        JobState { workers: 0, has_failed: true, .. } => RemainingTime::LastWords,
        JobState { workers: 0, .. } => RemainingTime::Grace,
        JobState { has_succeeded: true, .. } if only_surplus => RemainingTime::Latecomer,
        _ => RemainingTime::Unlimited,
    }
}

/// The end of an `mpirun`, and the reports of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpirunEnd {
    /// The exit code of `mpirun`; `None` if it hung and was killed.
    pub code: Option<i32>,
    /// The signal that has interrupted the launcher.
    pub interrupted: Option<i32>,
    /// True if the launcher has ended the job because of a rank.
    pub was_ended: bool,
    /// True if all ranks have ended.
    pub have_all_ended: bool,
    /// True if all workers have ended well.
    pub have_workers_succeeded: bool,
    /// The exit code of the first rank that has failed.
    pub first_failure: Option<i32>,
}

/// The exit code of a job of MPI ranks; `None` if it is not known.
pub fn of_mpirun(end: MpirunEnd) -> Option<i32> {
    match end {
        MpirunEnd { interrupted: Some(signal), .. } => Some(128 + signal),
        // Errors of `mpirun`, servers or helpers do not count after the last worker has ended well.
        MpirunEnd { have_workers_succeeded: true, .. } => Some(0),
        MpirunEnd { was_ended: true, first_failure, .. } => Some(first_failure.unwrap_or(1)),
        MpirunEnd { code: None, have_all_ended, first_failure, .. } => first_failure.filter(|_| have_all_ended),
        MpirunEnd { code: Some(0), .. } => Some(0),
        // MPICH's `mpiexec` ends with the bits of all ranks' exit codes together.
        MpirunEnd { code: Some(code), first_failure, .. } => Some(first_failure.unwrap_or(code)),
    }
}

/// The exit codes of a process that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCodes {
    /// The code that is reported for the process; for an `mpirun` it is that of its ranks.
    pub own: i32,
    /// The code of the job, if the job fails with it.
    pub of_job: i32,
}

impl ExitCodes {
    /// The codes of a process whose own exit code is also that of the job.
    pub fn of(code: i32) -> Self {
        ExitCodes { own: code, of_job: code }
    }
}

/// Returns the exit codes of one process in a job in which the workers are the ranks of an `mpirun`. The
/// process is a server, the scheduler, or the `mpirun` itself in the role of a worker. `ranks` is the end of
/// the `mpirun`.
pub fn beside_ranks(role: Role, code: i32, ranks: MpirunEnd) -> ExitCodes {
    match role {
        Role::Worker => ExitCodes::of(of_mpirun(ranks).unwrap_or(code)),
        _ if code == 0 => ExitCodes::of(0),
        // A rank that failed before is the cause of the other failures.
        _ => ExitCodes { own: code, of_job: ranks.first_failure.unwrap_or(code) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: [Role; 3] = [Role::Scheduler, Role::Server, Role::Worker];
    const ENDS: [EndOfProcess; 3] = [EndOfProcess::Well, EndOfProcess::Failed, EndOfProcess::Lost];
    const KINDS: [Option<usize>; 3] = [None, Some(1), Some(2)];

    fn states() -> impl Iterator<Item = JobState> {
        (0..1 << 4).flat_map(|bits| (0..3).map(move |workers| (bits, workers))).map(|(bits, workers)| JobState {
            has_failed: bits & 1 > 0,
            has_succeeded: bits & 2 > 0,
            is_surplus: bits & 4 > 0,
            may_restart: bits & 8 > 0,
            workers,
        })
    }

    fn every(mut check: impl FnMut(Option<usize>, Role, EndOfProcess, JobState, EndEffect)) {
        let mut count = 0;
        for least in KINDS {
            for role in ROLES {
                for end in ENDS {
                    for state in states() {
                        count += 1;
                        check(least, role, end, state, meaning(least, role, end, state));
                    }
                }
            }
        }
        assert_eq!(count, 3 * 3 * 3 * 16 * 3);
    }

    #[test]
    fn an_exit_code_beyond_the_signals_is_the_programs_own() {
        assert_eq!([1, 128, 129, 137, 192, 193, 255].map(is_of_signal), [false, false, true, true, true, false, false]);
    }

    #[test]
    fn every_end_in_every_kind_of_job_keeps_the_promises() {
        every(|least, role, end, state, found| {
            let words = format!("{least:?} {role:?} {end:?} {state:?}: {found:?}");
            let is_worker = role == Role::Worker;
            let is_done = state.has_succeeded && state.workers == 0;
            // A successful end, or an end after a failure, changes nothing. Every other end has an effect.
            assert_eq!(found == EndEffect::Nothing, end == EndOfProcess::Well || state.has_failed, "{words}");
            if found == EndEffect::Nothing {
                return;
            }
            // If the workers have finished their work, the job's exit code is 0.
            assert!(is_worker || !is_done || found == EndEffect::Unneeded, "{words}");
            // A worker's own error is the job's error, unless the job has finished without this worker.
            if is_worker && end == EndOfProcess::Failed && !(state.is_surplus && state.has_succeeded) {
                assert_eq!(found, EndEffect::Failure, "{words}");
            }
            // A plain job ends with the first process that it still needs.
            if least.is_none() {
                assert_eq!(found == EndEffect::Failure, is_worker || !is_done, "{words}");
            }
            // No process is started for a finished job, beyond the allowed number of restarts, or if no
            // worker is left.
            if found == EndEffect::Replaced {
                assert!(state.may_restart && state.workers > 0 && end == EndOfProcess::Lost, "{words}");
                assert!(is_worker && !state.has_succeeded, "{words}");
            }
            // A job never goes on without enough workers, or without a server or the scheduler.
            if matches!(found, EndEffect::Without | EndEffect::Replaced) {
                assert!(is_worker && least.is_some_and(|least| state.workers >= least), "{words}");
            }
        });
    }

    /// The effect of each end in the middle of a job, and after its workers have ended well.
    #[test]
    fn the_table() {
        let running =
            JobState { has_failed: false, has_succeeded: false, workers: 2, is_surplus: false, may_restart: true };
        let too_few = JobState { workers: 1, ..running };
        let tried_enough = JobState { may_restart: false, ..running };
        let ending = JobState { has_succeeded: true, ..running };
        let late = JobState { has_succeeded: true, workers: 0, is_surplus: true, ..running };
        let done = JobState { has_succeeded: true, workers: 0, ..running };
        let mut table = String::new();
        for least in [None, Some(2)] {
            for role in ROLES {
                for end in [EndOfProcess::Failed, EndOfProcess::Lost] {
                    let cells = [running, too_few, tried_enough, ending, late, done]
                        .map(|state| format!("{:?}", meaning(least, role, end, state)));
                    let kind = if least.is_some() { "elastic" } else { "plain" };
                    table += format!(
                        "{kind:<8}{:<10}{:<7}{}\n",
                        role.to_string(),
                        format!("{end:?}"),
                        cells.map(|cell| format!("{cell:<9}")).concat()
                    )
                    .replace("  \n", "\n")
                    .trim_end();
                    table += "\n";
                }
            }
        }
        let expected = "\
plain   scheduler Failed Failure  Failure  Failure  Failure  Unneeded Unneeded
plain   scheduler Lost   Failure  Failure  Failure  Failure  Unneeded Unneeded
plain   server    Failed Failure  Failure  Failure  Failure  Unneeded Unneeded
plain   server    Lost   Failure  Failure  Failure  Failure  Unneeded Unneeded
plain   worker    Failed Failure  Failure  Failure  Failure  Failure  Failure
plain   worker    Lost   Failure  Failure  Failure  Failure  Failure  Failure
elastic scheduler Failed Failure  Failure  Failure  Failure  Unneeded Unneeded
elastic scheduler Lost   Failure  Failure  Failure  Failure  Unneeded Unneeded
elastic server    Failed Failure  Failure  Failure  Failure  Unneeded Unneeded
elastic server    Lost   Failure  Failure  Failure  Failure  Unneeded Unneeded
elastic worker    Failed Failure  Failure  Failure  Failure  Unneeded Failure
elastic worker    Lost   Replaced Failure  Without  Without  Unneeded Failure
";
        assert_eq!(table, expected, "columns: running, too few, tried enough, ending, late, done\n{table}");
    }

    #[test]
    fn those_that_are_left_are_waited_for_only_while_they_may_have_something_to_do() {
        for state in states() {
            for bits in 0..4 {
                let (is_interrupted, only_surplus) = (bits & 1 > 0, bits & 2 > 0);
                let found = awaited(is_interrupted, state, only_surplus);
                let words = format!("{is_interrupted} {only_surplus} {state:?}: {found:?}");
                // A job that has no worker left ends, and one with a worker of its own goes on.
                assert!(found != RemainingTime::Unlimited || state.workers > 0, "{words}");
                assert!(found == RemainingTime::Unlimited || state.workers == 0 || only_surplus, "{words}");
                assert_eq!(found == RemainingTime::Grace, state.workers == 0 && !state.has_failed, "{words}");
            }
        }
    }

    /// The end of each process of a hybrid job: in the middle of the job, and after its ranks have ended.
    #[test]
    fn a_job_beside_ranks_ends_with_the_code_of_the_rank_that_failed_first_and_a_server_has_its_own() {
        let mut count = 0;
        for role in ROLES {
            for code in [0, 1, 3, 137, 143] {
                for bits in 0..1 << 3 {
                    let [has_hung, have_succeeded, has_failed] = [0, 1, 2].map(|at| bits >> at & 1 > 0);
                    let ranks = MpirunEnd {
                        code: (!has_hung).then_some(code),
                        interrupted: None,
                        was_ended: false,
                        have_all_ended: true,
                        have_workers_succeeded: have_succeeded,
                        first_failure: has_failed.then_some(9),
                    };
                    let found = beside_ranks(role, code, ranks);
                    let words = format!("{role:?} {code} {ranks:?}");
                    let is_well =
                        if role == Role::Worker { have_succeeded || code == 0 && !has_hung } else { code == 0 };
                    let of_job = match has_failed {
                        _ if is_well => 0,
                        true => 9,
                        false => code,
                    };
                    let own = if role == Role::Worker { of_job } else { code };
                    assert_eq!(found, ExitCodes { own, of_job }, "{words}");
                    count += 1;
                }
            }
        }
        assert_eq!(count, 3 * 5 * 8);
    }

    #[test]
    fn the_exit_code_of_a_job_of_ranks_is_that_of_its_ranks() {
        let some = |bits: u32, at: u32, value| (bits >> at & 1 > 0).then_some(value);
        for (code, bits) in
            [None, Some(0), Some(9)].into_iter().flat_map(|code| (0..1 << 5).map(move |bits| (code, bits)))
        {
            let end = MpirunEnd {
                code,
                interrupted: some(bits, 0, 15),
                was_ended: bits & 2 > 0,
                have_all_ended: bits & 4 > 0,
                have_workers_succeeded: bits & 8 > 0,
                first_failure: some(bits, 4, 3),
            };
            let found = of_mpirun(end);
            match end {
                MpirunEnd { interrupted: Some(_), .. } => assert_eq!(found, Some(143), "{end:?}"),
                MpirunEnd { have_workers_succeeded: true, .. } => assert_eq!(found, Some(0), "{end:?}"),
                // A job that the launcher has ended has failed. A rank's own exit code is the job's.
                MpirunEnd { was_ended: true, first_failure: None, .. } => assert_eq!(found, Some(1), "{end:?}"),
                MpirunEnd { was_ended: true, .. } => assert_eq!(found, Some(3), "{end:?}"),
                MpirunEnd { code: Some(0), .. } => assert_eq!(found, Some(0), "{end:?}"),
                MpirunEnd { code: Some(_), first_failure, .. } => {
                    assert_eq!(found, first_failure.or(Some(9)), "{end:?}");
                }
                // If some ranks have not reported their end, the job's code is not known.
                MpirunEnd { have_all_ended: false, .. } => assert_eq!(found, None, "{end:?}"),
                MpirunEnd { first_failure, .. } => assert_eq!(found, first_failure, "{end:?}"),
            }
        }
    }
}
