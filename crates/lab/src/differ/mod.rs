//! `ringpull differ`: runs one command with two kinds of store, and compares their values.
//!
//! Both jobs record the hash of every gradient and value (`ringpull_base::recording`). `read` reads the
//! recordings; `judge` finds their first difference. If a sum differs, jobs of allreduce run once more with
//! the algorithm `ordered`, which adds in the order of the ranks, as servers do. If the values are then the
//! same, only the order of addition differed.

mod judge;
mod read;

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Serialize;

use ringpull_base::config::{RECORD, RECORD_VALUES};
use ringpull_base::{AlgorithmChoice, Error, Kind, Result};

use self::judge::{FirstDifference, Judgement, judge};
use self::read::JobRecording;
pub use self::read::WorkerRecording;
use crate::ends::code_of;
use crate::rehearse::JobReport;
use ringpull_harness::interrupt::Interrupt;
use ringpull_harness::progress::Progress;
use ringpull_harness::text::{format_seconds, grid, several};

/// The place of the kind in the command.
pub const KIND: &str = "{kind}";

/// The jobs to run.
#[derive(Debug)]
pub struct DifferPlan {
    pub kinds: [Kind; 2],
    pub workers: usize,
    pub servers: usize,
    /// The number of bytes of values that each worker may write.
    pub value_bytes: u64,
    /// The folder of the jobs' outputs and recordings.
    pub out: PathBuf,
    /// The command, with [`KIND`] in the place of the kind.
    pub command: Vec<String>,
}

/// The reason why the values of two jobs differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The values do not differ.
    Same,
    /// The values differ, but no gradient does: with one kind the store updates the weights, with the other
    /// kind the program does.
    OtherValues,
    /// With sums in the order of the ranks, the values have the same bits.
    OrderOfAddition,
    /// All gradients and values that both jobs have are the same, but one job has gradients or values that
    /// the other lacks.
    OtherCalls,
    /// The program: it gave different first values, or pushed a different gradient while all values were the
    /// same.
    Program,
    /// Something else.
    Unexplained,
}

/// The outcome of a job.
#[derive(Debug, Serialize)]
struct JobRow {
    /// The kind, and the algorithm if one was requested.
    job: String,
    seconds: f64,
    updates: u64,
    keys: usize,
    #[serde(skip)]
    recording: JobRecording,
}

/// The comparison.
#[derive(Debug, Serialize)]
pub struct DifferResult {
    jobs: Vec<JobRow>,
    /// The judgement with the kinds' own order of addition.
    judgement: Judgement,
    /// The judgement with sums in the order of the ranks, if that was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered: Option<Judgement>,
    pub cause: Cause,
}

/// Runs the command with both kinds, and once more with sums in the order of the ranks if sums differ.
/// Returns `None` if an interrupt has ended a job.
pub fn differ(plan: &DifferPlan, interrupt: &Interrupt) -> Result<Option<DifferResult>> {
    let progress = Progress::start("the first job");
    let run = |at: usize, kind: Kind, ordered: bool| {
        progress.part(at, at.max(2) + 1, format!("{kind}{}", if ordered { " in the order of the ranks" } else { "" }));
        plan.run(at, kind, ordered, interrupt)
    };
    let mut jobs = Vec::new();
    for (at, kind) in plan.kinds.into_iter().enumerate() {
        let Some(job) = run(at, kind, false)? else { return Ok(None) };
        jobs.push(job);
    }
    let judgement = judge(&jobs[0].recording, &jobs[1].recording)?;
    if judgement.gradients + judgement.values == 0 {
        return Err(Error::argument(
            "the jobs have no gradient and no value in common, so nothing can be compared",
            "let both push and pull the same keys",
        ));
    }
    let mut ordered = None;
    let cause = match &judgement.first {
        None if judgement.unpaired > 0 => Cause::OtherCalls,
        None => Cause::Same,
        Some(FirstDifference::Gradient { .. } | FirstDifference::Value { update: 0, .. }) => Cause::Program,
        Some(FirstDifference::Value { .. }) if judgement.is_of_other_values() => Cause::OtherValues,
        Some(FirstDifference::Value { .. }) => {
            // Servers always add in the order of the ranks, so their jobs need no second run.
            let mut sides = [0, 1];
            for (side, kind) in plan.kinds.into_iter().enumerate().filter(|(_, kind)| *kind == Kind::DistSyncMpi) {
                let Some(job) = run(jobs.len(), kind, true)? else { return Ok(None) };
                jobs.push(job);
                sides[side] = jobs.len() - 1;
            }
            let again = judge(&jobs[sides[0]].recording, &jobs[sides[1]].recording)?;
            let is_same = (again.first.is_none() || again.is_of_other_values()) && sides != [0, 1];
            ordered = (sides != [0, 1]).then_some(again);
            if is_same { Cause::OrderOfAddition } else { Cause::Unexplained }
        }
    };
    Ok(Some(DifferResult { jobs, judgement, ordered, cause }))
}

impl DifferPlan {
    /// Runs job number `at` to its end, and reads its recording.
    fn run(&self, at: usize, kind: Kind, ordered: bool, interrupt: &Interrupt) -> Result<Option<JobRow>> {
        const LOOK: Duration = Duration::from_millis(20);
        let name = format!("job{at}-{kind}{}", if ordered { "-ordered" } else { "" });
        let (folder, log) = (self.out.join(&name), self.out.join(name + ".log"));
        let begun = Instant::now();
        let mut child = self.start(kind, ordered, &folder, &log)?;
        let mut forward = interrupt.forward_to(Pid::from_child(&child));
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|cause| Error::io("wait for", "the job", &cause))? {
                break status;
            }
            forward();
            std::thread::sleep(LOOK);
        };
        if interrupt.count() > 0 {
            return Ok(None);
        }
        let (code, seconds) = (code_of(status), begun.elapsed().as_secs_f64());
        if code != 0 {
            let text = std::fs::read(&log).map_err(|cause| Error::io("read", log.display(), &cause))?;
            let said = JobReport::of(&String::from_utf8_lossy(&text)).error.unwrap_or_default();
            return Err(Error::argument(
                format!("the job with {kind} ended with exit code {code}: {said}"),
                format!("make it run to its end with each kind first; its output is in {}", log.display()),
            ));
        }
        let recording = JobRecording::read(&folder, kind)?;
        let keys = recording.workers.first().map_or(0, |worker| worker.keys.len());
        let job = if ordered { format!("{kind}, RINGPULL_ALGORITHM=ordered") } else { kind.to_string() };
        Ok(Some(JobRow { job, seconds, updates: recording.updates(), keys, recording }))
    }

    fn start(&self, kind: Kind, ordered: bool, folder: &Path, log: &Path) -> Result<Child> {
        let failed = |cause: std::io::Error| Error::io("write", log.display(), &cause);
        // Files of an earlier job in the folder do not belong to this job.
        match std::fs::remove_dir_all(folder) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("empty", folder.display(), &cause));
            }
            _ => {}
        }
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let program = std::env::current_exe().map_err(|cause| Error::io("find", "this program", &cause))?;
        let servers = if kind.has_servers() { self.servers } else { 0 };
        let mut variables =
            vec![format!("{RECORD}={}", folder.display()), format!("{RECORD_VALUES}={}", self.value_bytes)];
        if ordered {
            variables.push(format!("RINGPULL_ALGORITHM={}", AlgorithmChoice::Ordered));
        }
        let mut words: Vec<OsString> = ["launch", "-n"].map(OsString::from).to_vec();
        words.extend([self.workers.to_string().into(), "-s".into(), servers.to_string().into()]);
        words.extend(variables.into_iter().flat_map(|set| ["--env".into(), set.into()]));
        words.push("--".into());
        words.extend(self.command.iter().map(|word| word.replace(KIND, kind.name()).into()));
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(out).stderr(err);
        command.spawn().map_err(|cause| Error::io("run", "ringpull launch", &cause))
    }
}

impl DifferResult {
    /// The result for a terminal: the jobs, the first difference, the growth of the differences, and their
    /// cause.
    pub fn table(&self) -> String {
        let jobs = self.jobs.iter().map(|job| {
            vec![job.job.clone(), format_seconds(job.seconds), job.updates.to_string(), job.keys.to_string()]
        });
        let mut parts = vec![grid(["job", "time", "updates", "keys"], jobs.collect(), 1)];
        if let Some(first) = &self.judgement.first {
            parts.push(format!("First difference: {}.", first.words()));
            let judgements = self.ordered.iter().chain([&self.judgement]);
            let means_something = !judgements.into_iter().any(Judgement::is_of_other_values);
            if means_something && self.judgement.updates.iter().any(|row| row.differ > 0) {
                parts.push(self.growth());
            }
        }
        parts.push(self.verdict());
        let unpaired = self.judgement.unpaired;
        if unpaired > 0 {
            parts.push(format!(
                "warning: only one of the jobs has {unpaired} of the gradients and values, as they made other calls"
            ));
        }
        parts.join("\n\n") + "\n"
    }

    /// The values that differ, for the first updates and then for fewer and fewer of the later ones.
    fn growth(&self) -> String {
        const FIRST: usize = 5;
        let rows = &self.judgement.updates;
        let is_shown = |at: usize| at < FIRST || at.is_power_of_two() || at + 1 == rows.len();
        let cells = rows.iter().enumerate().filter(|(at, _)| is_shown(*at)).map(|(_, row)| {
            let relative = row.relative.map_or("-".to_owned(), |relative| format!("{relative:.1e}"));
            vec![row.update.to_string(), format!("{} of {}", row.differ, row.of), relative]
        });
        grid(["update", "values that differ", "largest difference / largest element"], cells.collect(), 0)
    }

    fn verdict(&self) -> String {
        let (values, ordered) = (self.judgement.values, self.ordered.as_ref());
        match self.cause {
            Cause::Same => format!("The same bits in all {values} values that were compared."),
            Cause::OtherCalls => format!(
                "The same bits in all {values} values that both jobs have, but one has more of them.\n  \
                 hint: let both make the same calls, with as many steps and the same keys"
            ),
            Cause::OtherValues => format!(
                "The weights are the same: none of {} gradients differs. With one kind the store updates them, and with\n\
                 the other the program does (update_on_kvstore), so what is pulled is not the same thing.",
                self.judgement.gradients
            ),
            Cause::OrderOfAddition => {
                let same = match ordered {
                    Some(ordered) if ordered.first.is_none() => format!("all {} values", ordered.values),
                    ordered => {
                        format!("all {} gradients, and so the weights,", ordered.map_or(0, |ordered| ordered.gradients))
                    }
                };
                format!(
                    "The order of addition explains it: with RINGPULL_ALGORITHM=ordered, which adds in the order of the\n\
                     ranks as servers do, {same} have the same bits."
                )
            }
            Cause::Program => "The program explains it: no value that was summed had differed before.\n  \
                 hint: fix the seeds and the order of the data; to see whether it then does the same in every run,\n  \
                 compare a kind with itself, as in --kinds dist_sync_mpi,dist_sync_mpi"
                .to_owned(),
            Cause::Unexplained => match ordered.and_then(|judgement| judgement.first.as_ref()) {
                Some(first) => format!(
                    "The order of addition does not explain it: with RINGPULL_ALGORITHM=ordered the first difference is\n\
                     {}.",
                    first.words()
                ),
                None => "The order of addition does not explain it: servers always add in the order of the ranks."
                    .to_owned(),
            },
        }
    }
}

impl FirstDifference {
    fn words(&self) -> String {
        match self {
            FirstDifference::Gradient { update, key, rank } => {
                format!("gradient {update} of key {key} on rank {rank}")
            }
            FirstDifference::Value { update: 0, key, size } => {
                format!("the first value of key {key}{}", words(size.as_ref()))
            }
            FirstDifference::Value { update, key, size } => {
                format!("the value of key {key} after update {update}{}", words(size.as_ref()))
            }
        }
    }
}

fn words(size: Option<&judge::DifferenceSize>) -> String {
    size.map_or_else(String::new, |size| {
        format!(
            ", in {} of {}, at most {:.1e}, which is {:.1e} of the largest element",
            size.elements,
            several(size.of, "element"),
            size.largest,
            size.relative
        )
    })
}
