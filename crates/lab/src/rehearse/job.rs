//! One job and its faults, which come one after another. The job is started, disturbed, watched to its end
//! and judged.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::Serialize;

use ringpull_base::config::{Config, Role};
use ringpull_base::{Error, Result};

use super::fault::{FAILED, Fault, FaultKind, Member, Moment};
use super::folders::{JobFolders, SmallDisk};
use super::processes;
use super::said::JobReport;
use super::shape::JobShape;
use crate::ends::code_of;
use crate::hosts::Lab;
use crate::status_client::step_of;
use ringpull_harness::interrupt::Interrupt;

/// The command of all jobs, and the hosts on which it runs.
#[derive(Debug)]
pub struct Rehearsal<'a> {
    /// The options of `ringpull launch`.
    pub options: Vec<OsString>,
    pub command: Vec<OsString>,
    /// The emulated hosts, if the job runs on some.
    pub lab: Option<&'a Lab>,
    /// The folder of the jobs' output.
    pub out: &'a Path,
    pub shape: JobShape,
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// With exit code 0.
    WentOn,
    /// With another exit code.
    Ended(i32),
    /// The job did not end within its time, and was killed.
    Hung,
    /// Before the fault came.
    Early(i32),
    /// With an interrupt of this command.
    Interrupted,
}

/// The outcome of a job.
#[derive(Debug, Clone, Serialize)]
pub struct JobOutcome {
    pub end: End,
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Seconds from the fault to the job's end.
    pub after_fault_s: Option<f64>,
    /// The step of rank 0 at the fault, if it has a store of `dist_sync_mpi`.
    pub step: Option<u64>,
    /// Processes that were left when the job had ended.
    pub left: usize,
    /// The wrong that the job has done to files, if any.
    pub harm: Option<String>,
    pub said: JobReport,
    /// The file of its output.
    pub log: PathBuf,
}

const LOOK: Duration = Duration::from_millis(20);
/// The time that processes may take to vanish after the launcher has ended.
const VANISH: Duration = Duration::from_secs(5);

impl Rehearsal<'_> {
    /// Runs job number `number`, for at most `limit`. A fault without a moment comes after `usual` if the
    /// job's steps cannot be counted. If there are several faults, each comes after the previous fault is
    /// over, and its time counts from then.
    pub fn run(
        &self,
        number: usize,
        faults: &[Fault],
        (usual, limit): (Duration, Duration),
        interrupt: &Interrupt,
    ) -> Result<JobOutcome> {
        let log = self.out.join(format!("job{number}.log"));
        let mark = format!("{}-{number}", std::process::id());
        let folders = JobFolders::prepare(faults)?;
        let begun = Instant::now();
        let mut child = self.start(&mark, &log, faults.first().map(|fault| &fault.what), folders.own())?;
        let state = match faults.first() {
            Some(fault) if fault.what.is_from_the_start() => FaultState::Over { at: begun, step: None },
            _ => FaultState::Before,
        };
        let (lab, workers) = (self.lab, self.shape.workers);
        let mut course =
            FaultProgress { mark: &mark, faults, lab, folders: &folders, workers, usual, first: None, state };
        let (mut hung, waited) =
            (false, |child: &mut Child| child.try_wait().map_err(|cause| Error::io("wait for", "the job", &cause)));
        let status = loop {
            if let Some(status) = waited(&mut child)? {
                break status;
            }
            hung = begun.elapsed() > limit;
            if hung || interrupt.count() > 0 {
                break end(&mut child, &mark)?;
            }
            if let Err(cause) = course.look() {
                end(&mut child, &mark)?;
                course.undo()?;
                return Err(cause);
            }
            std::thread::sleep(LOOK);
        };
        let ended = Instant::now();
        let (at, step) = match course.state {
            FaultState::Before => (None, None),
            FaultState::Under { at, step, .. } | FaultState::Over { at, step } => (Some(at), step),
        };
        course.undo()?;
        let left = Self::wait_for_nobody(&mark, Config::from_env()?.silence());
        processes::kill_all(&mark);
        let harm = folders.wrong();
        let code = code_of(status);
        let end = match (interrupt.count() > 0, hung, code) {
            (true, ..) => End::Interrupted,
            (_, true, _) => End::Hung,
            (.., code) if course.faults.len() > 1 || !faults.is_empty() && at.is_none() => End::Early(code),
            (.., 0) => End::WentOn,
            (.., code) => End::Ended(code),
        };
        let text = std::fs::read(&log).map_err(|cause| Error::io("read", log.display(), &cause))?;
        let said = JobReport::of(&String::from_utf8_lossy(&text));
        let seconds = |from: Instant| (ended - from).as_secs_f64();
        Ok(JobOutcome { end, seconds: seconds(begun), after_fault_s: at.map(seconds), step, left, harm, said, log })
    }

    fn start(&self, mark: &str, log: &Path, fault: Option<&FaultKind>, temporary: &Path) -> Result<Child> {
        let failed = |cause: std::io::Error| Error::io("write", log.display(), &cause);
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
        let mut command = Command::new(program);
        command.arg("launch").arg("--env").arg(format!("{}={mark}", processes::MARK)).args(&self.options);
        if self.shape.has_snapshots() {
            command.arg("--snapshots").arg(temporary);
            // Another user can know a file's name only if the job has a name.
            let path = if let Some(FaultKind::Plant(path, _)) = fault { path.file_name() } else { None };
            let job = path.and_then(|name| name.to_str()?.strip_prefix("ringpull-elastic-"));
            job.map(|job| command.args(["--job", job]));
        }
        command.arg("--").args(fault.into_iter().flat_map(|fault| self.gate(fault, temporary))).args(&self.command);
        command.env(processes::MARK, mark).env("TMPDIR", temporary).env_remove("XDG_RUNTIME_DIR");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.spawn().map_err(|cause| Error::io("run", "ringpull launch", &cause))
    }

    /// The words before those of the program, if the fault is that a process fails or is late at its start.
    /// The fault happens once, also in a job that is started again.
    fn gate(&self, fault: &FaultKind, temporary: &Path) -> Vec<OsString> {
        let (who, then) = match fault {
            FaultKind::Fail(who) => (who, format!("exit {FAILED}")),
            FaultKind::Delay(who, time) => (who, format!("sleep {}", time.as_secs_f64())),
            _ => return Vec::new(),
        };
        let number = "${DMLC_WORKER_ID:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}";
        let is_it = match who.role {
            Role::Scheduler => "[ \"$DMLC_ROLE\" = scheduler ]".to_owned(),
            Role::Server => format!("[ \"$DMLC_ROLE $DMLC_SERVER_ID\" = \"server {}\" ]", who.index),
            Role::Worker => format!("[ \"${{DMLC_ROLE:-worker}} {number}\" = \"worker {}\" ]", who.index),
            Role::Helper => format!("[ \"{number}\" = {} ]", self.shape.workers + who.index),
        };
        let script = format!("if {is_it} && mkdir \"$0\" 2>/dev/null; then {then}; fi; exec \"$@\"");
        vec!["sh".into(), "-c".into(), script.into(), temporary.join("met").into()]
    }

    /// Waits for the job's processes to vanish, and returns the number of those that have not. Processes on a
    /// host that was cut off may take the limit of silence to notice the cut.
    fn wait_for_nobody(mark: &str, silence: Duration) -> usize {
        let begun = Instant::now();
        loop {
            let left = processes::count(mark);
            if left == 0 || begun.elapsed() > VANISH + silence {
                return left;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Ends a job that does not end by itself.
fn end(child: &mut Child, mark: &str) -> Result<std::process::ExitStatus> {
    processes::signal(Pid::from_child(child), Signal::TERM);
    let (begun, failed) = (Instant::now(), |cause: std::io::Error| Error::io("wait for", "the job", &cause));
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if begun.elapsed() > VANISH {
            processes::kill_all(mark);
        }
        std::thread::sleep(LOOK);
    }
}

/// The progress of a job's faults.
struct FaultProgress<'a> {
    mark: &'a str,
    /// The fault that is under way, over or next, followed by the later faults.
    faults: &'a [Fault],
    lab: Option<&'a Lab>,
    folders: &'a JobFolders,
    workers: usize,
    usual: Duration,
    first: Option<FirstSeen>,
    state: FaultState,
}

/// The process of rank 0.
#[derive(Clone, Copy)]
struct FirstSeen {
    pid: Pid,
    at: Instant,
    is_of_mpi: bool,
    /// The time at which the process first reported its step.
    answered: Option<Instant>,
}

/// Returns true if a fault comes now. The first process exists for the time `since`. Its present step is
/// `present`, if steps are counted, and has been known for the time `known`. By default a fault comes at the
/// second step. A program whose collectives have no names makes no steps: its fault comes half of `usual`
/// after its start is over.
fn is_time(
    at: Moment,
    is_of_mpi: bool,
    (since, usual): (Duration, Duration),
    (present, known): (Option<u64>, Option<Duration>),
) -> bool {
    let has_no_steps = present == Some(0) && known.is_some_and(|known| known >= usual / 2);
    match at {
        Moment::Usual if is_of_mpi => has_no_steps || present >= Some(2),
        Moment::Usual => since >= usual,
        Moment::After(time) => since >= time,
        Moment::Step(wanted) => present >= Some(wanted),
    }
}

enum FaultState {
    Before,
    Under { at: Instant, step: Option<u64>, pid: Option<Pid> },
    Over { at: Instant, step: Option<u64> },
}

impl FaultProgress<'_> {
    /// Lets a fault begin or end, if it is time.
    fn look(&mut self) -> Result<()> {
        let Some((fault, rest)) = self.faults.split_first() else { return Ok(()) };
        match self.state {
            FaultState::Before => {
                // A process that has ended was a helper process that ran before the program.
                let first = self.first.filter(|first| processes::is_alive(first.pid)).or_else(|| {
                    let (pid, is_of_mpi) =
                        processes::find(self.mark, Member { role: Role::Worker, index: 0 }, self.workers)?;
                    Some(FirstSeen { pid, at: Instant::now(), is_of_mpi, answered: None })
                });
                let Some(mut first) = first else { return Ok(()) };
                let is_by_time = !first.is_of_mpi || matches!(fault.at, Moment::After(_));
                let present = if is_by_time { None } else { step_of(first.pid, self.folders.own()) };
                first.answered = first.answered.or(present.map(|_| Instant::now()));
                self.first = Some(first);
                let (since, known) = (first.at.elapsed(), first.answered.map(|answered| answered.elapsed()));
                if !is_time(fault.at, first.is_of_mpi, (since, self.usual), (present, known)) {
                    return Ok(());
                }
                let who = fault.what.member();
                let pid = who.and_then(|who| processes::find(self.mark, who, self.workers)).map(|(pid, _)| pid);
                if who.is_some() && pid.is_none() {
                    return Ok(());
                }
                let step = present.or_else(|| step_of(first.pid, self.folders.own()));
                self.begin(&fault.what, pid)?;
                self.state = FaultState::Under { at: Instant::now(), step, pid };
            }
            FaultState::Under { at, .. } if at.elapsed() >= fault.delay() && fault.delay() > Duration::ZERO => {
                self.undo()?;
            }
            FaultState::Over { .. } if !rest.is_empty() => {
                self.faults = rest;
                self.state = FaultState::Before;
                self.first.iter_mut().for_each(|first| first.at = Instant::now());
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&self, what: &FaultKind, pid: Option<Pid>) -> Result<()> {
        let send = |signal| pid.map_or((), |pid| processes::signal(pid, signal));
        match (what, self.lab) {
            (FaultKind::Kill(_), _) => send(Signal::KILL),
            (FaultKind::Stop(..), _) => send(Signal::STOP),
            (FaultKind::Terminate(..), _) => send(Signal::TERM),
            (FaultKind::Limit(..), _) => pid.map_or((), |pid| processes::limit(pid, true)),
            (FaultKind::Cut(host, _), Some(lab)) => lab.switch_link(*host, false)?,
            (FaultKind::Block(host, _), Some(lab)) => lab.block(*host, true)?,
            (FaultKind::Reset(host), Some(lab)) => lab.reset(*host)?,
            (FaultKind::Slow(host, rate, _), Some(lab)) => lab.reshape(*host, Some(*rate))?,
            (FaultKind::Fill(..), _) => self.folders.disk().map_or(Ok(()), SmallDisk::fill)?,
            // Faults of hosts are refused if there are no hosts; the other faults have begun already.
            _ => {}
        }
        Ok(())
    }

    /// Ends the fault's effect, if the fault is under way.
    fn undo(&mut self) -> Result<()> {
        let FaultState::Under { at, step, pid } = self.state else { return Ok(()) };
        self.state = FaultState::Over { at, step };
        let send = |signal| pid.map_or((), |pid| processes::signal(pid, signal));
        match (self.faults.first().map(|fault| &fault.what), self.lab) {
            (Some(FaultKind::Stop(..)), _) => send(Signal::CONT),
            (Some(FaultKind::Terminate(_, grace)), _) if at.elapsed() >= *grace => send(Signal::KILL),
            (Some(FaultKind::Limit(..)), _) => pid.map_or((), |pid| processes::limit(pid, false)),
            (Some(FaultKind::Cut(host, _)), Some(lab)) => lab.switch_link(*host, true)?,
            (Some(FaultKind::Block(host, _)), Some(lab)) => lab.block(*host, false)?,
            (Some(FaultKind::Slow(host, ..)), Some(lab)) => lab.reshape(*host, None)?,
            (Some(FaultKind::Fill(..)), _) => self.folders.disk().map_or(Ok(()), SmallDisk::empty)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_at_the_second_step_or_while_a_program_without_steps_runs() {
        let ms = Duration::from_millis;
        let usual = |since, step| is_time(Moment::Usual, true, (ms(since), ms(2000)), step);
        assert!(!usual(9000, (None, None)), "it has not started");
        assert!(!usual(9000, (Some(0), Some(ms(900)))) && !usual(9000, (Some(1), Some(ms(3000)))));
        assert!(usual(100, (Some(2), Some(ms(0)))) && usual(100, (Some(7), Some(ms(50)))));
        assert!(usual(9000, (Some(0), Some(ms(1000)))), "its collectives have no names");
        let of_servers = |since| is_time(Moment::Usual, false, (ms(since), ms(2000)), (None, None));
        assert!(!of_servers(1900) && of_servers(2000));
        let at = |moment, since, step| is_time(moment, true, (ms(since), ms(2000)), (step, step.map(|_| ms(5000))));
        assert!(!at(Moment::Step(5), 9000, Some(0)) && !at(Moment::Step(5), 9000, Some(4)));
        assert!(at(Moment::Step(5), 0, Some(5)) && !at(Moment::After(ms(500)), 400, None));
        assert!(at(Moment::After(ms(500)), 500, None));
    }
}
