//! The store of `dist_sync` and `dist_async`, with values on parameter servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use ringpull_base::config::{Config, Dmlc};
use ringpull_base::{Buffer, Error, Key, Kind, Result, Tensor, TensorMut, waits};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, State};
use ringpull_ps::coded::KeyCodes;
use ringpull_ps::message::PullTarget;
use ringpull_ps::shard::{Batch, Layout};
use ringpull_ps::worker::{Bytes, Command, ServerAnswer, Task, Worker, WorkersChanged};

use crate::backlog::{self, Backlog, PUSHES};
use crate::compressed::{Coding, Compressor};
use crate::contract::Change;
use crate::update::{self, no_optimizer};
use crate::{Backend, Contribution, Entry, MergedRows, SavedStates, Updater, contribution};

/// A worker's end of a job with parameter servers.
///
/// Dropping it reports the worker's end. The servers and the scheduler end after the last worker. If a worker
/// exits without dropping its store, the others treat it as lost.
pub struct Servers {
    kind: Kind,
    worker: Arc<Worker>,
    calls: Mutex<WorkerCalls>,
    compressor: Compressor,
    backlog: Backlog,
    /// True if this worker, which has come later, takes part in the job. Locked while it waits for the others
    /// to let it take part.
    entered: Mutex<bool>,
}

/// The counts of this worker's calls, from which rounds and versions follow.
#[derive(Default)]
struct WorkerCalls {
    keys: BTreeMap<Key, KeyCalls>,
    optimizer: Option<Optimizer>,
    version: u64,
    /// The others' pushes of keys that this worker has not initialised, at the time when it began to take
    /// part.
    pushes: BTreeMap<Key, u64>,
}

struct KeyCalls {
    layout: Arc<Layout>,
    pushes: u64,
    /// The number of pushes that were done at the last `wait_all`.
    awaited: u64,
    /// The number of pushes that are known to be done, from an answer to one of them or to a later call.
    applied: Arc<AtomicU64>,
    len_bytes: u64,
    /// The request for a push for which the caller has waited in vain.
    asked: Option<ConfirmationRequest>,
}

impl KeyCalls {
    fn unfinished(&self) -> u64 {
        self.pushes.saturating_sub(self.applied.load(Ordering::Relaxed))
    }
}

/// The round of a push.
struct RoundCalls {
    number: u64,
    optimizer: u64,
    applied: Arc<AtomicU64>,
}

impl RoundCalls {
    fn push(self, gradient: Bytes, outs: Vec<TensorMut>) -> Task {
        Task::Push { gradient, outs, round: self.number, optimizer: self.optimizer, applied: self.applied }
    }
}

/// A request to the servers to confirm when this number of rounds is done.
struct ConfirmationRequest {
    rounds: u64,
    /// The number of answers that have not come. There is one for each segment.
    left: usize,
    answers: Receiver<Result<ServerAnswer>>,
}

impl Servers {
    /// Joins the job that `dmlc` describes, as a worker. Returns when every node has joined.
    pub fn connect(kind: Kind, config: &Config, dmlc: &Dmlc) -> Result<Self> {
        let worker = Arc::new(Worker::join(kind, config, dmlc)?);
        Ok(Servers {
            kind,
            entered: Mutex::new(worker.job().incarnation == 0),
            worker,
            calls: Mutex::default(),
            compressor: Compressor::default(),
            backlog: Backlog::default(),
        })
    }

    /// The nodes of the job, as text: `4 workers and 2 servers on 3 hosts`.
    pub fn description(&self) -> String {
        self.worker.job().description()
    }

    /// Returns a function that ends this worker's part of the job with a fault from outside.
    pub(crate) fn fail_with(&self) -> ringpull_base::OnFault {
        self.worker.fail_with()
    }

    /// Calls `hook` with the first fault.
    pub(crate) fn on_fault(&self, hook: ringpull_base::OnFault) {
        self.worker.on_fault(hook);
    }

    /// Returns the connection to the servers.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Begins to take part in rounds and barriers, if this worker has come later and does not take part yet.
    /// Returns true if it began now. Blocks until the others have come to a barrier. With asynchronous
    /// servers it does not block for long.
    fn enter(&self) -> Result<bool> {
        let mut entered = self.entered.lock();
        if *entered {
            return Ok(false);
        }
        let (done, answers) = channel();
        self.worker.submit(Command::Enter { done })?;
        let told = self.worker.wait(&answers)?;
        *entered = true;
        let mut calls = self.calls.lock();
        // Rounds are the same for all workers. With asynchronous servers each worker counts its own pushes.
        let pushes = if self.is_async() { BTreeMap::new() } else { told.pushes };
        for (key, pushes) in pushes {
            match calls.keys.get_mut(&key) {
                Some(known) => {
                    (known.pushes, known.awaited) = (pushes, pushes);
                    known.applied.fetch_max(pushes, Ordering::Relaxed);
                }
                None => drop(calls.pushes.insert(key, pushes)),
            }
        }
        (calls.version, calls.optimizer) = told.optimizer.map_or((0, None), |(version, known)| (version, Some(known)));
        if let Some(optimizer) = &calls.optimizer {
            self.worker.submit(Command::SetOptimizer { version: calls.version, optimizer: optimizer.clone() })?;
        }
        Ok(true)
    }

    fn is_async(&self) -> bool {
        self.kind.is_async()
    }

    fn run(&self, entry: &Entry, layout: &Arc<Layout>, priority: i32, task: Task) -> Result<()> {
        self.worker.submit(Command::Run { key: entry.key.clone(), layout: Arc::clone(layout), priority, task })
    }

    /// Returns the key's layout, and the number of pushes made.
    fn layout(&self, key: &Key) -> Result<(Arc<Layout>, u64)> {
        let calls = self.calls.lock();
        let found = calls.keys.get(key).ok_or_else(|| not_initialized(key, self.rank()))?;
        Ok((Arc::clone(&found.layout), found.pushes))
    }

    /// Waits for at most `limit`. Returns true if there is room for one more push of the key. Asks the
    /// servers for the state of calls that no answer has reported.
    fn has_room_within(&self, entry: &Entry, priority: i32, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let mut calls = self.calls.lock();
            let bytes = || calls.keys.values().map(|key| key.unfinished() * key.len_bytes).sum();
            let Some(found) = calls.keys.get(&entry.key) else { return Ok(true) };
            if !backlog::is_full(found.unfinished(), bytes, entry.len_bytes()) {
                return Ok(true);
            }
            if limit.is_zero() {
                return Ok(false);
            }
            let Some(found) = calls.keys.get_mut(&entry.key) else { return Ok(true) };
            let (asked, layout, applied) = (found.asked.take(), Arc::clone(&found.layout), Arc::clone(&found.applied));
            // At the limit some pushes may stay unconfirmed, so that not every push needs a request.
            let rounds = if found.unfinished() < PUSHES { found.pushes } else { found.pushes - PUSHES / 2 };
            drop(calls);
            let mut asked = match asked {
                Some(asked) => asked,
                None => self.ask_for(entry, &layout, rounds, priority)?,
            };
            while asked.left > 0 {
                let left = deadline.saturating_duration_since(Instant::now());
                if self.worker.wait_within(&asked.answers, left)?.is_none() {
                    if let Some(found) = self.calls.lock().keys.get_mut(&entry.key) {
                        found.asked = Some(asked);
                    }
                    return Ok(false);
                }
                asked.left -= 1;
            }
            applied.fetch_max(asked.rounds, Ordering::Relaxed);
        }
    }

    /// Requests a confirmation for when `rounds` of this worker's pushes of the key are done.
    fn ask_for(&self, entry: &Entry, layout: &Arc<Layout>, rounds: u64, priority: i32) -> Result<ConfirmationRequest> {
        let (sender, answers) = channel();
        let task = Task::Pull { rounds, want: PullTarget::Word, units: Vec::new(), answers: sender };
        self.run(entry, layout, priority, task)?;
        Ok(ConfirmationRequest { rounds, left: layout.batches(&[], true).len(), answers })
    }

    /// Records that `rounds` pushes of the key are done.
    fn note_applied(&self, key: &Key, rounds: u64) {
        if let Some(found) = self.calls.lock().keys.get(key) {
            found.applied.fetch_max(rounds, Ordering::Relaxed);
        }
    }

    /// Submits a push in the order in which rounds are counted.
    fn push_task(&self, entry: &Entry, priority: i32, task: impl FnOnce(&Layout, RoundCalls) -> Task) -> Result<()> {
        let mut calls = self.calls.lock();
        if self.is_async() && calls.optimizer.is_none() {
            return Err(Error::argument(
                format!("push of key {} on rank {}: {} has no optimizer", entry.key, self.rank(), self.kind),
                "call set_optimizer before the first push, on every rank: servers that merge nothing need one",
            ));
        }
        if let Some(optimizer) = &calls.optimizer {
            update::check(optimizer, entry)?;
        }
        let version = calls.version;
        let found = calls.keys.get_mut(&entry.key).ok_or_else(|| not_initialized(&entry.key, self.rank()))?;
        found.pushes += 1;
        let layout = Arc::clone(&found.layout);
        let round = RoundCalls { number: found.pushes, optimizer: version, applied: Arc::clone(&found.applied) };
        let task = task(&layout, round);
        self.run(entry, &layout, priority, task)
    }

    fn unsupported(&self, operation: &str, reason: &str) -> Error {
        Error::Unsupported { kind: self.kind.to_string(), operation: operation.to_owned(), reason: reason.to_owned() }
    }
}

impl Backend for Servers {
    fn rank(&self) -> usize {
        self.worker.rank()
    }

    fn num_workers(&self) -> usize {
        self.worker.num_workers()
    }

    fn generation(&self) -> u64 {
        self.worker.generation()
    }

    fn changes(&self, seen: usize) -> Vec<Change> {
        let changes = self.worker.changes(seen).into_iter();
        changes
            .map(|change| {
                let WorkersChanged { generation, rank, num_workers, lost } = change;
                Change { generation, rank, num_workers, lost }
            })
            .collect()
    }

    fn fault(&self) -> Option<Error> {
        self.worker.fault()
    }

    fn failing(&self, why: Option<&str>) {
        self.worker.failing(why);
    }

    fn init(&self, entry: &Entry, value: &Tensor) -> Result<()> {
        let job = self.worker.job();
        let size = entry.dtype.size_bytes();
        let cut = if entry.is_row_sparse { Layout::by_rows } else { Layout::new };
        let layout = Arc::new(cut(&entry.key, &entry.shape, size, job.servers.len(), job.bigarray_bound));
        // In an elastic job rank 0 may be lost before its value has come.
        let value =
            if job.rank == 0 || job.is_elastic { Bytes::Shared(value.read()?.snapshot()) } else { Bytes::Nothing };
        let shape = entry.shape.iter().map(|len| *len as u64).collect();
        let mut calls = self.calls.lock();
        self.run(entry, &layout, 0, Task::Init { dtype: entry.dtype, shape, value })?;
        let pushes = calls.pushes.remove(&entry.key).unwrap_or(0);
        let known = KeyCalls {
            layout,
            pushes,
            awaited: pushes,
            applied: Arc::new(pushes.into()),
            len_bytes: entry.len_bytes() as u64,
            asked: None,
        };
        calls.keys.insert(entry.key.clone(), known);
        Ok(())
    }

    fn make_room(&self, entry: &Entry, priority: i32) -> Result<()> {
        self.enter()?;
        self.backlog.wait(&entry.key, |limit| {
            let room = |piece: Option<Duration>| {
                Ok(self.has_room_within(entry, priority, piece.unwrap_or(limit))?.then_some(()))
            };
            Ok(waits::in_pieces(Some(limit), room)?.is_some())
        })
    }

    fn push(&self, entry: &Entry, gradient: Vec<Contribution>, outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let gradient = contribution::only(gradient);
        if let Some(Coding { compression, feedback }) = self.compressor.coding(entry, self.rank())? {
            // The gradient is encoded in the order in which rounds are counted.
            return self.push_task(entry, priority, |layout, round| {
                let elements = bytemuck::cast_slice(gradient.bytes(&outs));
                round.push(Bytes::Coded(KeyCodes::new(compression, elements, &mut feedback.lock(), layout)), outs)
            });
        }
        let gradient = match gradient {
            Contribution::Held(tensor) => Bytes::Held(tensor),
            Contribution::Summed(buffer) => Bytes::Owned(buffer),
            Contribution::InPlace(index) => Bytes::InPlace(index),
        };
        self.push_task(entry, priority, |_, round| round.push(gradient, outs))
    }

    fn push_rows(&self, entry: &Entry, gradient: MergedRows, priority: i32) -> Result<()> {
        let MergedRows { ids, rows } = gradient;
        self.push_task(entry, priority, |layout, round| {
            let units = layout.units_of_rows(&ids);
            Task::PushRows { units, rows, round: round.number, optimizer: round.optimizer }
        })
    }

    fn value(&self, entry: &Entry, _operation: &str, priority: i32) -> Result<Arc<Buffer>> {
        let value = Tensor::zeros(entry.dtype, &entry.shape);
        self.pull(entry, vec![value.write()], priority)?;
        Ok(value.read()?.snapshot())
    }

    fn pull(&self, entry: &Entry, mut outs: Vec<TensorMut>, priority: i32) -> Result<()> {
        let (layout, rounds) = self.layout(&entry.key)?;
        let task = |answers| Task::Pull { rounds, want: PullTarget::Value, units: Vec::new(), answers };
        self.worker.ask(
            &entry.key,
            &layout,
            priority,
            layout.segments.len(),
            task,
            |ServerAnswer { segment, payload, .. }| {
                for out in &mut outs {
                    out.bytes_mut()[layout.bytes_of(segment)].copy_from_slice(&payload);
                }
                Ok(())
            },
        )?;
        self.note_applied(&entry.key, rounds);
        Ok(())
    }

    fn pull_rows(&self, entry: &Entry, ids: &[i64], priority: i32) -> Result<Vec<u8>> {
        let (layout, rounds) = self.layout(&entry.key)?;
        let units = layout.units_of_rows(ids);
        let batches = layout.batches(&units, false);
        let size = layout.unit_bytes;
        let mut rows = vec![0; units.len() * size];
        let task = |answers| Task::Pull { rounds, want: PullTarget::Rows, units, answers };
        self.worker.ask(
            &entry.key,
            &layout,
            priority,
            batches.len(),
            task,
            |ServerAnswer { segment, payload, .. }| {
                if let Some(Batch { positions, .. }) = batches.iter().find(|batch| batch.segments[0] == segment) {
                    rows[positions.start * size..positions.end * size].copy_from_slice(&payload);
                }
                Ok(())
            },
        )?;
        if batches.iter().map(|batch| batch.segments.len()).sum::<usize>() == layout.segments.len() {
            self.note_applied(&entry.key, rounds);
        }
        Ok(rows)
    }

    fn set_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        let has_entered = *self.entered.lock();
        let mut calls = self.calls.lock();
        calls.optimizer = Some(optimizer.clone());
        if !has_entered {
            // The job's setting counts. This worker learns it when it begins to take part.
            return Ok(());
        }
        calls.version += 1;
        self.worker.submit(Command::SetOptimizer { version: calls.version, optimizer: optimizer.clone() })
    }

    fn set_updater(&self, _updater: Updater) -> Result<()> {
        Err(self.unsupported("set_updater", "code is never sent to a server; use set_optimizer, or dist_sync_mpi"))
    }

    fn set_compression(&self, compression: Option<&Compression>) -> Result<()> {
        self.compressor.set(compression);
        Ok(())
    }

    fn states(&self) -> Result<SavedStates> {
        let (keys, optimizer) = {
            let calls = self.calls.lock();
            let keys: Vec<_> =
                calls.keys.iter().map(|(key, k)| (key.clone(), Arc::clone(&k.layout), k.pushes)).collect();
            let optimizer = calls.optimizer.clone().ok_or_else(|| no_optimizer("save_optimizer_states"))?;
            (keys, optimizer)
        };
        let mut saved = SavedStates { optimizer: Some(optimizer), states: BTreeMap::new() };
        for (key, layout, rounds) in keys {
            let mut parts = vec![State::default(); layout.segments.len()];
            let task = |answers| Task::Pull { rounds, want: PullTarget::State, units: Vec::new(), answers };
            self.worker.ask(
                &key,
                &layout,
                0,
                layout.segments.len(),
                task,
                |ServerAnswer { segment, state, .. }| {
                    parts[segment] = state.unwrap_or_default();
                    Ok(())
                },
            )?;
            saved.states.insert(key, join(&layout, &parts));
        }
        Ok(saved)
    }

    fn set_states(&self, states: SavedStates) -> Result<()> {
        if self.enter()? {
            // The servers already have the states of the job to which this worker has come.
            return Ok(());
        }
        // Gradients pushed before the load must not be applied with the loaded states.
        self.wait_all()?;
        self.barrier()?;
        self.compressor.forget();
        if let Some(optimizer) = &states.optimizer {
            self.set_optimizer(optimizer)?;
        }
        if self.calls.lock().optimizer.is_none() {
            return Err(no_optimizer("load_optimizer_states"));
        }
        for (key, state) in &states.states {
            let (layout, _) = self.layout(key)?;
            let optimizer = self.calls.lock().version;
            let parts = split(key, &layout, state)?;
            // Only rank 0's states are sent, because the servers have one state for each key.
            if self.rank() == 0 {
                let task = |answers| Task::SetState { optimizer, states: parts, answers };
                self.worker.ask(key, &layout, 0, layout.segments.len(), task, |_| Ok(()))?;
            }
        }
        self.barrier()
    }

    fn barrier(&self) -> Result<()> {
        if self.enter()? {
            return Ok(());
        }
        let (done, answers) = channel();
        self.worker.submit(Command::Barrier { done })?;
        self.worker.wait(&answers)
    }

    fn join(&self) -> Result<usize> {
        let reason =
            "a server counts the pushes of every worker: give each the same number of batches, or use dist_sync_mpi";
        Err(self.unsupported("join", reason))
    }

    fn wait_all(&self) -> Result<()> {
        let keys: Vec<_> = {
            let mut calls = self.calls.lock();
            let open = calls.keys.iter_mut().filter(|(_, calls)| calls.awaited < calls.pushes);
            open.map(|(key, calls)| {
                calls.awaited = calls.pushes;
                (key.clone(), Arc::clone(&calls.layout), calls.pushes)
            })
            .collect()
        };
        for (key, layout, rounds) in keys {
            let task = |answers| Task::Pull { rounds, want: PullTarget::Word, units: Vec::new(), answers };
            self.worker.ask(&key, &layout, i32::MIN, layout.batches(&[], true).len(), task, |_| Ok(()))?;
            self.note_applied(&key, rounds);
        }
        self.fault().map_or(Ok(()), Err)
    }

    fn leave(&self) {
        self.worker.leave();
    }

    fn traffic(&self) -> (u64, u64, u64) {
        let shared = self.worker.shared();
        [&shared.sent, &shared.received, &shared.control].map(|count| count.load(Ordering::Relaxed)).into()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Another thread may hold this backend, because it asks for the job's status.
        self.worker.leave();
    }
}

fn not_initialized(key: &Key, rank: usize) -> Error {
    Error::NotInitialized { key: key.clone(), operation: "a call".to_owned(), rank }
}

/// Returns the segments in the order of the key's elements.
fn in_order(layout: &Layout) -> Vec<usize> {
    let mut order: Vec<usize> = (0..layout.segments.len()).collect();
    order.sort_by_key(|index| layout.segments[*index].units.start);
    order
}

/// Joins the segments' states into one state.
fn join(layout: &Layout, parts: &[State]) -> State {
    let updates = parts.iter().map(|part| part.updates).max().unwrap_or(0);
    let count = parts.iter().map(|part| part.slots.len()).max().unwrap_or(0);
    let per_unit = parts.iter().enumerate().find_map(|(index, part)| {
        let units = layout.segments[index].units.len();
        (units > 0 && !part.slots.is_empty()).then(|| part.slots[0].len() / units)
    });
    let slot = |slot: usize| {
        let bytes = in_order(layout).into_iter().flat_map(|index| match parts[index].slots.get(slot) {
            Some(bytes) => bytes.clone(),
            // No row-sparse push has touched this segment yet.
            None => vec![0; layout.segments[index].units.len() * per_unit.unwrap_or(0)],
        });
        bytes.collect()
    };
    State { updates, slots: (0..count).map(slot).collect() }
}

/// Splits one state into the segments' states.
fn split(key: &Key, layout: &Layout, state: &State) -> Result<Vec<State>> {
    let units: usize = layout.segments.iter().map(|segment| segment.units.len()).sum();
    let fits = |slot: &Vec<u8>| if units == 0 { slot.is_empty() } else { slot.len().is_multiple_of(units) };
    if !state.slots.iter().all(fits) {
        return Err(Error::argument(
            format!("the saved state of key {key} does not fit its shape"),
            "load the states that were saved for this model",
        ));
    }
    let part = |units_of: &std::ops::Range<usize>, slot: &[u8]| {
        let size = slot.len().checked_div(units).unwrap_or(0);
        slot[units_of.start * size..units_of.end * size].to_vec()
    };
    let parts = layout.segments.iter().map(|segment| State {
        updates: state.updates,
        slots: state.slots.iter().map(|slot| part(&segment.units, slot)).collect(),
    });
    Ok(parts.collect())
}
