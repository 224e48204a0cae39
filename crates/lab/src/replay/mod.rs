//! One rank's part in replaying a recorded job: its calls, with the computing between them, on any kind of
//! store.
//!
//! Gradients are inputs whose sums are known, so every value is checked; an optimizer of the job is not
//! applied. Filling gradients and checking values take place in the time of the computing that is replayed.

pub mod recorded_job;

use std::collections::BTreeSet;
use std::slice::from_ref;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use ringpull::KvStore;
use ringpull_base::{Kind, Result, Tensor};
use ringpull_workload::pattern::Pattern;
use ringpull_workload::sparse::adding;

use self::recorded_job::{RecordedCall, RecordedJob, StepTime, TimedCall, typical};
use ringpull_harness::compute::Compute;
use ringpull_harness::progress::Progress;
use ringpull_harness::ranks::gather;
use ringpull_harness::size::format_size;
use ringpull_harness::text::{format_seconds, grid, several};

/// A step of a job, and what of it no computing hides.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayedStep {
    pub mode: String,
    pub ranks: usize,
    pub step_s: f64,
    pub compute_s: f64,
    pub exposed_s: f64,
}

impl ReplayedStep {
    fn new(kind: Kind, ranks: usize, step: StepTime) -> Self {
        let exposed_s = (step.seconds - step.compute_s).max(0.0);
        ReplayedStep { mode: kind.to_string(), ranks, step_s: step.seconds, compute_s: step.compute_s, exposed_s }
    }
}

/// The job as it was recorded, and as it was replayed.
#[derive(Debug, Serialize)]
pub struct ReplayResult {
    pub recorded: ReplayedStep,
    pub replayed: ReplayedStep,
    pub steps: usize,
    pub keys: usize,
    pub bytes: usize,
    /// Keys that are left out, because gradients of some rows were pushed.
    pub by_rows: usize,
    pub verified: bool,
}

/// What a rank found: its steps, and the computing in each.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankSteps {
    seconds: Vec<f64>,
    compute_s: Vec<f64>,
}

/// Replays this rank's recording; rank 0 gets the result. Collective; `store` must be new.
pub fn run(store: &KvStore, job: &RecordedJob, progress: Option<&Progress>) -> Result<Option<ReplayResult>> {
    let Some(recorded) = job.step() else {
        return Err(RecordedJob::too_short());
    };
    let mut replay = CallReplay::start(store, job)?;
    store.barrier()?;
    let mut device = Compute::start();
    let mut steps = RankSteps::default();
    let mut begun = None;
    for (number, call) in job.calls.iter().enumerate() {
        if let Some(progress) = progress {
            progress.part(number, job.calls.len(), "recorded calls");
        }
        replay.before(call, &mut device)?;
        if call.begins_step {
            let now = Instant::now();
            if let Some(begun) = begun.replace(now) {
                steps.seconds.push(now.duration_since(begun).as_secs_f64());
            }
            steps.compute_s.push(0.0);
        }
        replay.call(call)?;
        if let Some(compute_s) = steps.compute_s.last_mut() {
            *compute_s += job.calls.get(number + 1).map_or(0.0, |next| next.compute_s);
        }
    }
    steps.compute_s.truncate(steps.seconds.len());
    replay.end()?;
    let ranks = gather(store, "ringpull.replay", &steps)?;
    let count = ranks.iter().map(|rank| rank.seconds.len()).min().unwrap_or(0);
    let slowest =
        |of: fn(&RankSteps) -> &Vec<f64>, at: usize| ranks.iter().map(|rank| of(rank)[at]).fold(0.0, f64::max);
    let step =
        |at| StepTime { seconds: slowest(|rank| &rank.seconds, at), compute_s: slowest(|rank| &rank.compute_s, at) };
    let all: Vec<StepTime> = (0..count).map(step).collect();
    let replayed = typical(&all).expect("a recording with two steps has one that ends");
    Ok((store.rank() == 0).then(|| ReplayResult {
        recorded: ReplayedStep::new(job.kind, job.workers, recorded),
        replayed: ReplayedStep::new(store.kind(), store.num_workers(), replayed),
        steps: count,
        keys: job.keys.len(),
        bytes: job.bytes(),
        by_rows: job.by_rows,
        verified: true,
    }))
}

/// The tensors of a key.
struct ReplayedKey {
    gradient: Tensor,
    out: Tensor,
    pattern: Pattern,
    /// The number of times that this rank has pushed it.
    pushes: usize,
    /// After which of these pushes its output was asked for, if it is still to be looked at.
    asked: Option<usize>,
}

struct CallReplay<'a> {
    store: &'a KvStore,
    job: &'a RecordedJob,
    keys: Vec<ReplayedKey>,
    /// Those whose outputs were not looked at.
    open: BTreeSet<usize>,
}

impl<'a> CallReplay<'a> {
    fn start(store: &'a KvStore, job: &'a RecordedJob) -> Result<Self> {
        if store.kind() == Kind::DistAsync {
            // Without an optimizer an asynchronous server keeps the last push; with this one it adds them up.
            store.set_optimizer(&adding())?;
        }
        let key = |recorded: &recorded_job::RecordedKey| {
            let tensor = || Tensor::zeros(recorded.dtype, &recorded.shape);
            let (gradient, out) = (tensor().unkept(), tensor());
            store.init(recorded.key.clone(), &out)?;
            let pattern = Pattern::new(store.num_workers(), recorded.dtype)?;
            Ok(ReplayedKey { gradient, out, pattern, pushes: 0, asked: None })
        };
        let keys = job.keys.iter().map(key).collect::<Result<_>>()?;
        Ok(CallReplay { store, job, keys, open: BTreeSet::new() })
    }

    /// What the worker did before a call: it waited for what it had asked for, and computed.
    fn before(&mut self, call: &TimedCall, device: &mut Compute) -> Result<()> {
        if call.waits() {
            let asked = Instant::now();
            for key in &self.open {
                drop(self.keys[*key].out.read()?);
            }
            device.idle(asked.elapsed());
            self.look()?;
        }
        if let RecordedCall::Push { .. } = call.what {
            let key = &mut self.keys[call.key];
            key.pushes += 1;
            key.pattern.fill(&key.gradient, self.store.rank(), key.pushes);
        }
        device.work(call.compute_s);
        Ok(())
    }

    fn call(&mut self, call: &TimedCall) -> Result<()> {
        let (name, key) = (self.job.keys[call.key].key.clone(), &mut self.keys[call.key]);
        let (gradient, out) = (from_ref(&key.gradient), from_ref(&key.out));
        match call.what {
            RecordedCall::Push { pulls: true } => self.store.push_pull(name, gradient, out, call.priority)?,
            RecordedCall::Push { pulls: false } => return self.store.push(name, gradient, call.priority),
            RecordedCall::Pull => self.store.pull(name, out, call.priority)?,
        }
        key.asked = Some(key.pushes);
        self.open.insert(call.key);
        Ok(())
    }

    /// Checks the values that were asked for.
    fn look(&mut self) -> Result<()> {
        for at in std::mem::take(&mut self.open) {
            let key = &mut self.keys[at];
            // A server that adds pushes up as they come has any part of them.
            if let Some(push) = key.asked.take().filter(|push| *push > 0 && self.store.kind() != Kind::DistAsync) {
                let name = self.job.keys[at].key.to_string();
                key.pattern.check(&key.out, &name, self.store.rank(), push..=push)?;
            }
        }
        Ok(())
    }

    /// Waits for everything, and checks what each key holds in the end.
    fn end(&mut self) -> Result<()> {
        self.store.wait_all()?;
        self.look()?;
        self.store.barrier()?;
        for (recorded, key) in self.job.keys.iter().zip(&self.keys).filter(|(_, key)| key.pushes > 0) {
            self.store.pull(recorded.key.clone(), from_ref(&key.out), 0)?;
            let first = if self.store.kind() == Kind::DistAsync { 1 } else { key.pushes };
            key.pattern.check(&key.out, &recorded.key.to_string(), self.store.rank(), first..=key.pushes)?;
        }
        Ok(())
    }
}

impl ReplayResult {
    /// For a terminal.
    pub fn table(&self) -> String {
        let row = |what: &str, step: &ReplayedStep| {
            vec![
                what.to_owned(),
                step.mode.clone(),
                step.ranks.to_string(),
                format_seconds(step.step_s),
                format_seconds(step.compute_s),
                format_seconds(step.exposed_s),
            ]
        };
        let rows = vec![row("recorded", &self.recorded), row("replayed", &self.replayed)];
        let (steps, keys, bytes) = (self.steps, self.keys, format_size(self.bytes as f64));
        let left_out = match self.by_rows {
            0 => String::new(),
            count => format!("left out: {}, pushed by rows\n", several(count, "key")),
        };
        format!(
            "{}\nmedian of {steps} steps of {keys} keys, {bytes}, without the first; every sum was checked; times are the \
             slowest rank's, as recorded those of worker 0; exposed: what of a step is not computing\n{left_out}",
            grid("job,mode,ranks,step,compute,exposed".split(','), rows, 2)
        )
    }
}
