//! The kind of a rehearsed job, and the exit code that the launcher's table ([`ends`](crate::ends))
//! requires when one of its processes ends; pure.

use ringpull_base::config::Role;

use super::fault::{FAILED, FaultKind, Member};
use crate::ends::{EndEffect, EndOfProcess, JobState, MpirunEnd, is_of_signal, meaning, of_mpirun};

/// The processes of a job.
#[derive(Debug, Clone, Default)]
pub struct JobShape {
    pub workers: usize,
    pub servers: usize,
    pub helpers: usize,
    /// The emulated hosts.
    pub hosts: usize,
    /// True if the workers of a job with servers are ranks of MPI.
    pub is_hybrid: bool,
    /// The fewest workers with which an elastic job goes on.
    pub least: Option<usize>,
}

const KILLED: i32 = 128 + 9;
const TERMINATED: i32 = 128 + 15;
/// The exit code of a program that an error ends, such as the loss of another process.
const ERROR: i32 = 1;

impl JobShape {
    /// Returns true if the job's processes keep snapshots in a folder.
    pub fn has_snapshots(&self) -> bool {
        self.least.is_some() && self.servers == 0
    }

    /// Returns true if the job needs MPI.
    fn has_ranks(&self) -> bool {
        self.servers == 0 || self.is_hybrid
    }

    /// Every process.
    pub fn members(&self) -> Vec<Member> {
        let of = |role, count| (0..count).map(move |index| Member { role, index });
        let roles = [
            (Role::Worker, self.workers),
            (Role::Server, self.servers),
            (Role::Scheduler, self.servers.min(1)),
            (Role::Helper, self.helpers),
        ];
        roles.into_iter().flat_map(|(role, count)| of(role, count)).collect()
    }

    /// The exit codes with which the job may end after a fault. `None` if any code is allowed. `is_lost` is
    /// true if a process that stops for the fault's time is lost to the others.
    pub fn codes(&self, fault: &FaultKind, is_lost: bool) -> Option<Vec<i32>> {
        let of = |who: &Member, code| Some(vec![self.code_after(*who, code)]);
        match fault {
            FaultKind::Kill(who) => of(who, KILLED),
            FaultKind::Fail(who) => of(who, FAILED),
            // A program may handle the signal and end by itself.
            FaultKind::Terminate(who, _) => of(who, TERMINATED),
            FaultKind::Stop(who, _) if is_lost && who.role == Role::Worker && self.least.is_none() => of(who, ERROR),
            // The job goes on without the worker, and the launcher kills the worker.
            FaultKind::Stop(who, _) if is_lost && who.role == Role::Worker => of(who, KILLED),
            // The rest of the workers' work may need neither the scheduler nor helpers.
            FaultKind::Stop(who, _) if is_lost && [Role::Scheduler, Role::Helper].contains(&who.role) => {
                Some(vec![0, ERROR])
            }
            FaultKind::Stop(..) if is_lost => Some(vec![ERROR]),
            // The program gets an error, or needs no more memory.
            FaultKind::Limit(who, _) => Some(vec![0, self.code_after(*who, ERROR)]),
            FaultKind::Cut(_, time) | FaultKind::Block(_, time) if time.is_none() => None,
            // Each of these faults may make MPI end the job.
            FaultKind::Reset(_) | FaultKind::Forbid(_) if self.has_ranks() => None,
            FaultKind::Fill(..) if self.has_ranks() => Some(vec![0, ERROR]),
            // The folder of snapshots is the only folder that a job cannot do without.
            FaultKind::Plant(path, _) => {
                let is_needed = self.has_snapshots() && path.to_string_lossy().contains("ringpull-elastic-");
                Some(vec![if is_needed { ERROR } else { 0 }])
            }
            // The fault only costs time.
            FaultKind::Stop(..)
            | FaultKind::Delay(..)
            | FaultKind::Cut(..)
            | FaultKind::Block(..)
            | FaultKind::Slow(..)
            | FaultKind::Reset(_)
            | FaultKind::Forbid(_)
            | FaultKind::Fill(..) => Some(vec![0]),
        }
    }

    /// Returns true if ranks have the time to report why the job ends. `mpirun` ends a job at once when
    /// `mpirun` itself has lost a connection.
    pub fn may_say_why(&self, fault: &FaultKind) -> bool {
        !self.has_ranks() || !matches!(fault, FaultKind::Reset(_))
    }

    /// The exit code of the job if this process is the first to end, in the middle of the job, with `code`.
    fn code_after(&self, who: Member, code: i32) -> i32 {
        if self.servers == 0 && self.least.is_some() {
            // The job starts again, or goes on without a restart.
            return 0;
        }
        if self.servers == 0 || (self.is_hybrid && who.role == Role::Worker) {
            let end = MpirunEnd {
                code: Some(code),
                interrupted: None,
                was_ended: false,
                have_all_ended: true,
                have_workers_succeeded: false,
                first_failure: Some(code),
            };
            return of_mpirun(end).unwrap_or(ERROR);
        }
        let end = if is_of_signal(code) { EndOfProcess::Lost } else { EndOfProcess::Failed };
        let state = JobState {
            has_failed: false,
            has_succeeded: false,
            workers: self.workers - usize::from(who.role == Role::Worker),
            is_surplus: false,
            may_restart: true,
        };
        match meaning(self.least, who.role, end, state) {
            EndEffect::Failure => code,
            EndEffect::Nothing | EndEffect::Unneeded | EndEffect::Without | EndEffect::Replaced => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rehearse::fault::PlantedFile;

    /// The exit codes of a job for each of its processes and each way in which the process may be lost.
    #[test]
    fn the_table_of_ends_says_how_a_job_ends() {
        let plain = JobShape { workers: 2, servers: 1, ..JobShape::default() };
        let ranks = JobShape { workers: 2, helpers: 1, ..JobShape::default() };
        let hybrid = JobShape { is_hybrid: true, ..plain.clone() };
        let elastic = JobShape { least: Some(1), ..plain.clone() };
        let alone = JobShape { least: Some(2), ..plain.clone() };
        let restarted = JobShape { least: Some(1), helpers: 0, ..ranks.clone() };
        let mut table = String::new();
        for (kind, shape) in [
            ("ranks", &ranks),
            ("servers", &plain),
            ("hybrid", &hybrid),
            ("elastic", &elastic),
            ("alone", &alone),
            ("restarted", &restarted),
        ] {
            for who in shape.members().into_iter().filter(|who| who.index == 0) {
                let time = Duration::ZERO;
                let faults = [
                    (FaultKind::Kill(who), false),
                    (FaultKind::Fail(who), false),
                    (FaultKind::Stop(who, time), true),
                    (FaultKind::Stop(who, time), false),
                    (FaultKind::Limit(who, time), false),
                ];
                let codes = faults.map(|(fault, is_lost)| format!("{:?}", shape.codes(&fault, is_lost).unwrap()));
                table.extend([format!("{kind} {who}: {}\n", codes.join(" "))]);
            }
        }
        // The columns: killed, failed, stopped for long, stopped for a moment, without memory.
        let expected = "\
ranks rank 0: [137] [3] [1] [0] [0, 1]
ranks helper 0: [137] [3] [0, 1] [0] [0, 1]
servers rank 0: [137] [3] [1] [0] [0, 1]
servers server 0: [137] [3] [1] [0] [0, 1]
servers scheduler: [137] [3] [0, 1] [0] [0, 1]
hybrid rank 0: [137] [3] [1] [0] [0, 1]
hybrid server 0: [137] [3] [1] [0] [0, 1]
hybrid scheduler: [137] [3] [0, 1] [0] [0, 1]
elastic rank 0: [0] [3] [0] [0] [0, 1]
elastic server 0: [137] [3] [1] [0] [0, 1]
elastic scheduler: [137] [3] [0, 1] [0] [0, 1]
alone rank 0: [137] [3] [137] [0] [0, 1]
alone server 0: [137] [3] [1] [0] [0, 1]
alone scheduler: [137] [3] [0, 1] [0] [0, 1]
restarted rank 0: [0] [0] [0] [0] [0, 0]
";
        assert_eq!(table, expected, "{table}");
    }

    #[test]
    fn only_a_folder_that_the_job_needs_ends_it_when_somebody_else_has_it() {
        let of = |shape: &JobShape, name: &str| shape.codes(&FaultKind::Plant(name.into(), PlantedFile::Link), false);
        let ranks = JobShape { workers: 2, ..JobShape::default() };
        let elastic = JobShape { least: Some(1), ..ranks.clone() };
        assert_eq!(of(&ranks, "TMPDIR/ringpull-elastic-x"), Some(vec![0]));
        assert_eq!((of(&elastic, "TMPDIR/ringpull-elastic-x"), of(&elastic, "x")), (Some(vec![1]), Some(vec![0])));
    }
}
