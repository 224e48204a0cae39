//! What `RINGPULL_RECORD` says of a job: its keys, a worker's calls with their times, and its steps.
//!
//! A step begins with each push of the first key that is pushed again. Between two calls a worker computes,
//! but for the time in which it waits in calls. Where that was between two calls is not recorded: a replay
//! waits first.

use std::collections::BTreeSet;
use std::path::Path;

use ringpull_base::recording::{CallTime, RecordedLine, lines_of};
use ringpull_base::{DType, Error, Key, Kind, Result};

use ringpull_harness::statistics::Summary;
use ringpull_harness::train::BACKWARD;

/// Waits that are shorter are those of locks, and not for other workers.
const WAIT_S: f64 = 1e-4;
/// Steps at the beginning that do not count: memory is new, and connections are.
const WARMUP: usize = 2;

/// One worker's recording.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedJob {
    pub kind: Kind,
    pub workers: usize,
    pub keys: Vec<RecordedKey>,
    pub calls: Vec<TimedCall>,
    /// The number of keys that are left out, because gradients of some rows were pushed, and which is not
    /// recorded.
    pub by_rows: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RecordedKey {
    pub key: Key,
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// A call, and what the worker did since the one before.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedCall {
    /// Of which key, by its place among the keys.
    pub key: usize,
    pub what: RecordedCall,
    pub priority: i32,
    pub compute_s: f64,
    pub waited_s: f64,
    pub begins_step: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedCall {
    /// True if the new value goes into an output.
    Push {
        pulls: bool,
    },
    Pull,
}

/// A step, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    pub seconds: f64,
    pub compute_s: f64,
}

impl TimedCall {
    fn pushes(&self) -> bool {
        matches!(self.what, RecordedCall::Push { .. })
    }

    /// Returns true if the worker waited for values before it.
    pub fn waits(&self) -> bool {
        self.waited_s > WAIT_S
    }
}

impl RecordedJob {
    /// The recording in `folder` of the worker that `rank` of a job of any size replays.
    pub fn read(folder: &Path, rank: usize) -> Result<Self> {
        let first = read_worker(folder, 0)?;
        match rank % first.workers {
            0 => Ok(first),
            worker => read_worker(folder, worker),
        }
    }

    /// The error of a job without a [`step`](Self::step).
    pub fn too_short() -> Error {
        Error::argument(
            "the recording has fewer than two steps: a step begins with each push of the first key that is pushed again",
            "record a job of several steps",
        )
    }

    /// The sum of the keys' lengths.
    pub fn bytes(&self) -> usize {
        let len = |key: &RecordedKey| key.shape.iter().product::<usize>() * key.dtype.size_bytes();
        self.keys.iter().map(len).sum()
    }

    /// The job as the text of a model's file ([`layers`](ringpull_harness::layers)), in which a step computes for
    /// `compute_s`: a line for each key that is pushed, in the order of the forward pass, which is the
    /// reverse of the pushes'. The third column is what was computed before the push. Before a step's first
    /// push also the forward pass was: that layer has what the others lack of a backward pass.
    pub fn as_model(&self, compute_s: f64) -> String {
        let (mut pushed, mut steps): (Vec<(usize, f64)>, usize) = (Vec::new(), 0);
        let of_steps = self.calls.iter().skip_while(|call| !call.begins_step);
        for call in of_steps.filter(|call| call.pushes()) {
            steps += usize::from(call.begins_step);
            let before_s = if call.begins_step { 0.0 } else { call.compute_s };
            match pushed.iter_mut().find(|(key, _)| *key == call.key) {
                Some((_, seconds)) => *seconds += before_s,
                None => pushed.push((call.key, before_s)),
            }
        }
        let seen: f64 = pushed.iter().map(|(_, seconds)| seconds).sum::<f64>() / steps.max(1) as f64;
        let first = (BACKWARD * compute_s - seen).max(0.0);
        let line = |(place, (key, seconds)): (usize, &(usize, f64))| {
            let RecordedKey { key, dtype, shape } = &self.keys[*key];
            let len = shape.iter().product::<usize>() * dtype.size_bytes() / 4;
            let part = if place == 0 { first } else { seconds / steps.max(1) as f64 };
            let name = match key {
                Key::Str(name) => name.replace(char::is_whitespace, "_"),
                Key::Int(number) => number.to_string(),
            };
            format!("{name} {} {part:e}\n", len.max(1))
        };
        pushed.iter().enumerate().rev().map(line).collect()
    }

    /// The median step as recorded, without the first ones and what comes after the last has begun.
    pub fn step(&self) -> Option<StepTime> {
        let mut steps: Vec<StepTime> = Vec::new();
        for call in &self.calls {
            if let Some(step) = steps.last_mut() {
                step.compute_s += call.compute_s;
                step.seconds += call.compute_s + call.waited_s;
            }
            if call.begins_step {
                steps.push(StepTime { seconds: 0.0, compute_s: 0.0 });
            }
        }
        steps.pop();
        typical(&steps)
    }
}

/// The median of steps of which the first do not count, if others are left.
pub fn typical(steps: &[StepTime]) -> Option<StepTime> {
    let counted = &steps[WARMUP.min(steps.len() / 2)..];
    let median = |of: fn(&StepTime) -> f64| Summary::of(&counted.iter().map(of).collect::<Vec<_>>());
    Some(StepTime { seconds: median(|step| step.seconds)?.median, compute_s: median(|step| step.compute_s)?.median })
}

fn read_worker(folder: &Path, rank: usize) -> Result<RecordedJob> {
    let path = lines_of(folder, rank);
    let failed = |cause: std::io::Error| Error::io("read the recording", path.display(), &cause);
    let text = std::fs::read_to_string(&path).map_err(|_| {
        Error::argument(
            format!("{} has no recording of worker {rank}", folder.display()),
            "give the folder that RINGPULL_RECORD named when the job ran",
        )
    })?;
    parse(&text, &failed)
}

/// The job of a worker's file with this text.
pub fn parse(text: &str, failed: &impl Fn(std::io::Error) -> Error) -> Result<RecordedJob> {
    let lines = text.lines().map(|line| serde_json::from_str(line).map_err(|cause| failed(cause.into())));
    job(lines).and_then(|job| job.ok_or_else(|| failed(std::io::Error::other("it has no push of any key"))))
}

/// The job that the lines tell of; none if nothing was pushed.
fn job(lines: impl Iterator<Item = Result<RecordedLine>>) -> Result<Option<RecordedJob>> {
    let lines = lines.collect::<Result<Vec<RecordedLine>>>()?;
    let by_rows = |line: &RecordedLine| match line {
        RecordedLine::Push { key, rows: Some(_), .. } => Some(key.clone()),
        _ => None,
    };
    let by_rows: BTreeSet<Key> = lines.iter().filter_map(by_rows).collect();
    let mut job =
        RecordedJob { kind: Kind::Local, workers: 1, keys: Vec::new(), calls: Vec::new(), by_rows: by_rows.len() };
    let mut before = None;
    for line in lines {
        let (key, what, priority, when) = match line {
            RecordedLine::Store { kind, workers, .. } => {
                (job.kind, job.workers) = (kind, workers.max(1));
                continue;
            }
            RecordedLine::Init { key, .. } if by_rows.contains(&key) => continue,
            RecordedLine::Init { key, dtype, shape, .. } => {
                dtype.len_bytes(&shape)?;
                job.keys.push(RecordedKey { key, dtype, shape });
                continue;
            }
            RecordedLine::Push { key, pulls, priority, when, .. } => {
                (key, RecordedCall::Push { pulls }, priority, when)
            }
            RecordedLine::Pull { key, priority, when } => (key, RecordedCall::Pull, priority, when),
            RecordedLine::Updates | RecordedLine::Value { .. } => continue,
        };
        let Some(key) = job.keys.iter().position(|known| known.key == key) else { continue };
        let CallTime { at_s, waited_s } =
            before.replace(when).map_or(CallTime { at_s: 0.0, waited_s: 0.0 }, |before: CallTime| {
                // Several threads may have waited at a time.
                let passed = (when.at_s - before.at_s).max(0.0);
                CallTime { at_s: passed, waited_s: (when.waited_s - before.waited_s).clamp(0.0, passed) }
            });
        job.calls.push(TimedCall { key, what, priority, compute_s: at_s - waited_s, waited_s, begins_step: false });
    }
    let pushed: Vec<usize> = job.calls.iter().filter(|call| call.pushes()).map(|call| call.key).collect();
    // A key that is pushed once was pushed before the first step.
    let mut times = vec![0_usize; job.keys.len()];
    pushed.iter().for_each(|key| times[*key] += 1);
    let Some(&first) = pushed.iter().find(|key| times[**key] > 1).or(pushed.first()) else { return Ok(None) };
    for call in &mut job.calls {
        call.begins_step = call.pushes() && call.key == first;
    }
    Ok(Some(job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(key: &str, at_s: f64, waited_s: f64) -> RecordedLine {
        let (key, when) = (key.into(), CallTime { at_s, waited_s });
        RecordedLine::Push { key, update: 1, pulls: true, priority: 0, rows: None, hash: None, when }
    }

    fn init(key: &str) -> RecordedLine {
        let when = CallTime { at_s: 0.0, waited_s: 0.0 };
        RecordedLine::Init { key: key.into(), dtype: DType::F32, shape: vec![2, 3], when }
    }

    fn lines(calls: impl IntoIterator<Item = RecordedLine>) -> impl Iterator<Item = Result<RecordedLine>> {
        let store = RecordedLine::Store { kind: Kind::DistSync, rank: 0, workers: 4 };
        [store, init("a"), init("b")].into_iter().chain(calls).map(Ok).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_shape_that_cannot_be_counted_is_an_error() {
        let when = CallTime { at_s: 0.0, waited_s: 0.0 };
        let init = RecordedLine::Init { key: "a".into(), dtype: DType::F32, shape: vec![1 << 40, 1 << 40], when };
        assert!(job(lines([init, push("a", 0.0, 0.0)])).is_err());
    }

    #[test]
    fn what_passes_between_two_calls_is_computing_but_for_the_waits() {
        // Two warm-up steps, then three that take 3 s, of which 1 s is waiting.
        let steps = (0..6).flat_map(|step| {
            let (at_s, waited_s) = (3.0 * f64::from(step), f64::from(step));
            [push("b", at_s, waited_s), push("a", at_s + 0.5, waited_s)]
        });
        let job = job(lines(steps)).unwrap().unwrap();
        assert_eq!((job.kind, job.workers, job.bytes()), (Kind::DistSync, 4, 48));
        let step = job.step().unwrap();
        assert!((step.seconds - 3.0).abs() < 1e-9 && (step.compute_s - 2.0).abs() < 1e-9, "{step:?}");
        let begins: Vec<bool> = job.calls.iter().map(|call| call.begins_step).collect();
        assert_eq!(begins[..4], [true, false, true, false]);
        assert!(!job.calls[1].waits() && job.calls[2].waits());
    }

    #[test]
    fn a_recording_is_a_model_whose_layers_have_what_was_computed_before_their_pushes() {
        // A step computes for 2 s: 1.5 s before the push of b, which is first, and 0.5 s before that of a.
        let steps = (0..4)
            .flat_map(|step| [push("b", 2.0 * f64::from(step), 0.0), push("a", 2.0 * f64::from(step) + 0.5, 0.0)]);
        // Before the first step.
        let steps = [init("once"), push("once", 0.0, 0.0)].into_iter().chain(steps);
        let job = job(lines(steps)).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model");
        std::fs::write(&file, job.as_model(job.step().unwrap().compute_s)).unwrap();
        let network = ringpull_harness::layers::load(file.to_str().unwrap(), 1.0).unwrap();
        let found: Vec<(&str, usize)> = network.keys.iter().map(|key| (key.name.as_str(), key.len())).collect();
        assert_eq!(found, [("a", 6), ("b", 6)]);
        let parts: Vec<f64> = network.layers.iter().map(|layer| layer.part).collect();
        // Two thirds of 2 s are the backward pass.
        assert!((parts[0] - 0.5 / (4.0 / 3.0)).abs() < 1e-9 && (parts[1] - (1.0 - parts[0])).abs() < 1e-9, "{parts:?}");
    }

    #[test]
    fn a_recording_without_pushes_is_none_to_replay_and_keys_pushed_by_rows_are_left_out() {
        assert_eq!(job(lines([])).unwrap(), None);
        let RecordedLine::Push { key, update, pulls, priority, hash, when, .. } = push("a", 0.0, 0.0) else {
            unreachable!("it is a push")
        };
        let rows = RecordedLine::Push { key, update, pulls, priority, rows: Some(2), hash, when };
        let job = job(lines([push("b", 0.0, 0.0), rows, push("b", 1.0, 0.0)])).unwrap().unwrap();
        assert_eq!((job.keys.len(), job.calls.len(), job.by_rows), (1, 2, 1));
    }
}
