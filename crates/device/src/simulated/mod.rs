//! Devices that are threads: every stream is a queue with its own thread, so unordered work runs in any
//! order.
//!
//! Work is checked when it is queued (`races`), run by the reference, and can be made to fail at any step. A
//! step is a call of the platform that could fail on real devices. `ranks` joins devices of several ranks.

mod counts;
mod health;
mod ranks;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use parking_lot::{Mutex, RwLock};

use ringpull_base::{Buffer, DType, Error, Result};

use self::counts::Counts;
use self::health::Health;
use self::ranks::Link;
use self::stream::{Bytes, Rendezvous, Task, serve};
use super::handle::{Event, Home, Slice, Stream};
use super::loan::{self, Loan};
use super::races::{ByteRange, Clock, HOST, Races};
use super::work::{Collective, CollectiveKind, Work};
use super::{GoOn, Meeting, PinnedHost, Platform, Turn, UniqueId, failed};

/// A step that goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFault {
    /// The number of the step, from 0.
    pub step: u64,
    /// The manner of the fault.
    pub manner: Manner,
}

/// The manner of a step's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The call returns an error, and nothing else has happened.
    Returned,
    /// The call succeeds. The work fails when it runs, and the device fails with it.
    Later,
    /// The call succeeds. The work never ends, unless it is aborted.
    Never,
}

#[derive(Default)]
struct DeviceState {
    memory: BTreeMap<u64, PinnedHost>,
    streams: BTreeMap<u64, Sender<Task>>,
    joined: BTreeMap<u64, Vec<Arc<Link>>>,
    events: BTreeMap<u64, (Arc<AtomicBool>, Clock)>,
    races: Races,
}

/// A platform of simulated devices.
pub struct Simulated {
    count: usize,
    health: Arc<Health>,
    state: Mutex<DeviceState>,
    next: AtomicU64,
    fault: Option<DeviceFault>,
    turn: Mutex<()>,
    counts: Counts,
}

impl Simulated {
    /// Returns `count` devices without faults.
    pub fn new(count: usize) -> Arc<Self> {
        Self::faulty(count, None)
    }

    /// Returns `count` devices on which one step goes wrong.
    pub fn faulty(count: usize, fault: Option<DeviceFault>) -> Arc<Self> {
        let (health, next, counts) = (Arc::default(), AtomicU64::new(1), Counts::default());
        Arc::new(Simulated { count, health, state: Mutex::default(), next, fault, turn: Mutex::default(), counts })
    }

    fn close_links(&self) {
        self.state.lock().joined.values().flatten().for_each(|link| link.close());
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a step. Returns the task that fails later, or the error now. A step with `now` can only fail
    /// now.
    fn step(&self, call: &str, now: bool) -> Result<Option<Task>> {
        self.health.fault().map_or(Ok(()), Err)?;
        let number = self.counts.steps.fetch_add(1, Ordering::Relaxed);
        let Some(fault) = self.fault.filter(|fault| fault.step == number) else { return Ok(None) };
        let error = failed("sim", call, 700, format!("the fault injected at step {number}"));
        match fault.manner {
            Manner::Later if !now => Ok(Some(Task::Fail(error))),
            Manner::Never if !now => Ok(Some(Task::Stand)),
            _ => Err(error),
        }
    }

    /// Keeps `memory` under a new address.
    fn keep(&self, memory: Buffer) -> (u64, PinnedHost) {
        // Addresses differ by more than any length, so that an address within an allocation identifies it in
        // messages.
        let (address, pinned) = (self.id() << 32, Arc::new(RwLock::new(memory)));
        self.state.lock().memory.insert(address, Arc::clone(&pinned));
        (address, pinned)
    }

    fn remove(&self, address: u64) {
        let mut state = self.state.lock();
        state.memory.remove(&address);
        state.races.forget(address);
    }

    fn check_turn(&self, what: &str) -> Result<()> {
        let held = self.turn.is_locked();
        held.then_some(()).ok_or_else(|| race(format!("{what} by somebody whose turn it is not")))
    }
}

impl DeviceState {
    fn bytes_of(&self, slices: &[Slice]) -> Vec<Bytes> {
        let bytes = |slice: &Slice| {
            let pinned = match slice.memory().home() {
                Home::Host(pinned) => Arc::clone(pinned),
                Home::Device(_) => Arc::clone(&self.memory[&slice.memory().address()]),
            };
            (pinned, slice.range())
        };
        slices.iter().map(bytes).collect()
    }

    fn put(&self, stream: &Stream, task: Task) {
        // A thread that has ended has failed, which the next call reports.
        drop(self.streams[&stream.id()].send(task));
    }
}

fn spans(slices: &[Slice]) -> Vec<ByteRange> {
    slices.iter().map(|slice| (slice.memory().address(), slice.range())).collect()
}

fn race(text: String) -> Error {
    failed("sim", "order of streams", 701, text)
}

impl Platform for Simulated {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn count(&self) -> usize {
        self.count
    }

    fn describe(&self, device: usize) -> String {
        format!("simulated device {device}")
    }

    fn has_collectives(&self) -> bool {
        true
    }

    fn allocate(&self, _device: usize, len_bytes: usize) -> Result<u64> {
        self.step("allocate", true)?;
        self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        let mut memory = Buffer::zeroed(len_bytes);
        memory.bytes_mut().fill(0xa5);
        Ok(self.keep(memory).0)
    }

    fn free(&self, _device: usize, address: u64) {
        self.remove(address);
    }

    fn dlpack_name(&self, device: usize) -> (i32, i32) {
        (loan::EXTENSION, device as i32)
    }

    fn device_of(&self, address: u64) -> Result<usize> {
        Err(Error::argument(
            format!("memory at {address:#x} for simulated devices, which have no addresses of their own"),
            "give a tensor with __dlpack_device__",
        ))
    }

    fn adopt(&self, _device: usize, loan: &Loan) -> Result<u64> {
        self.step("adopt memory", true)?;
        let (address, _) = self.keep(loan.as_host());
        // The lender has written the memory, and has ordered its work before this call.
        let all = (address, 0..loan.len_bytes());
        self.state.lock().races.step(HOST, &[], &[all]).map_err(race)?;
        Ok(address)
    }

    fn disown(&self, address: u64) {
        self.remove(address);
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Result<(u64, PinnedHost)> {
        self.step("allocate pinned", true)?;
        self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(self.keep(Buffer::zeroed(len_bytes)))
    }

    fn free_pinned(&self, address: u64) {
        self.remove(address);
    }

    fn create_stream(&self, device: usize) -> Result<u64> {
        self.step("create a stream", true)?;
        let (id, (tasks, inbox)) = (self.id(), channel());
        let health = Arc::clone(&self.health);
        let builder = std::thread::Builder::new().name(format!("ringpull-sim{device}"));
        builder
            .spawn(move || serve(id, &inbox, &health))
            .map_err(|cause| Error::io("start", format!("the thread of simulated stream {id}"), &cause))?;
        self.state.lock().streams.insert(id, tasks);
        Ok(id)
    }

    fn destroy_stream(&self, _device: usize, stream: u64) {
        self.state.lock().streams.remove(&stream);
    }

    fn record(&self, stream: &Stream) -> Result<u64> {
        let later = self.step("record an event", false)?;
        let (id, flag) = (self.id(), Arc::new(AtomicBool::new(false)));
        let mut state = self.state.lock();
        let clock = state.races.clock(stream.id());
        later.into_iter().for_each(|task| state.put(stream, task));
        state.put(stream, Task::Raise(Arc::clone(&flag)));
        state.events.insert(id, (flag, clock));
        Ok(id)
    }

    fn destroy_event(&self, _device: usize, event: u64) {
        self.state.lock().events.remove(&event);
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        let later = self.step("wait for an event", false)?;
        let mut state = self.state.lock();
        let (flag, clock) = state.events[&event.id()].clone();
        state.races.learn(stream.id(), &clock);
        later.into_iter().for_each(|task| state.put(stream, task));
        state.put(stream, Task::Wait(flag));
        Ok(())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        self.check()?;
        let mut state = self.state.lock();
        let (flag, clock) = state.events[&event.id()].clone();
        let done = flag.load(Ordering::Acquire);
        if done {
            state.races.learn(HOST, &clock);
        }
        drop(state);
        // The work before the event may have failed meanwhile.
        self.check().map(|()| done)
    }

    fn enqueue(&self, stream: &Stream, work: &Work) -> Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        work.check_lengths()?;
        let later = self.step("enqueue", false)?;
        let ends = work.reads.iter().zip(&work.writes);
        let crossing = ends.filter(|(from, to)| from.device().is_some() != to.device().is_some());
        let crossed_bytes: usize = crossing.map(|(_, to)| to.len_bytes()).sum();
        self.counts.crossed_bytes.fetch_add(crossed_bytes as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        let (reads, writes) = (spans(&work.reads), spans(&work.writes));
        state.races.step(stream.id(), &reads, &writes).map_err(|text| race(format!("{:?}: {text}", work.operation)))?;
        let task = || Task::Run(work.operation.clone(), state.bytes_of(&work.reads), state.bytes_of(&work.writes));
        let task = later.unwrap_or_else(task);
        state.put(stream, task);
        Ok(())
    }

    fn turn(&self) -> Turn<'_> {
        vec![self.turn.lock()]
    }

    fn collective(&self, streams: &[Arc<Stream>], calls: &[Collective]) -> Result<()> {
        let mut later = self.step("collective", false)?;
        self.check_turn("a collective is queued")?;
        let mut state = self.state.lock();
        for call in calls {
            for (device, stream) in streams.iter().enumerate() {
                let (reads, writes) = match call.kind {
                    CollectiveKind::Broadcast(root) if root != device => {
                        (vec![], spans(&call.receive[device..=device]))
                    }
                    CollectiveKind::Reduce(root) if root != device => (spans(&call.send[device..=device]), vec![]),
                    _ => (spans(&call.send[device..=device]), spans(&call.receive[device..=device])),
                };
                state
                    .races
                    .step(stream.id(), &reads, &writes)
                    .map_err(|text| race(format!("{:?}: {text}", call.kind)))?;
            }
            if !matches!(call.kind, CollectiveKind::Broadcast(_) | CollectiveKind::Reduce(_)) {
                let clocks: Vec<Clock> = streams.iter().map(|stream| state.races.clock(stream.id())).collect();
                for (stream, clock) in streams.iter().flat_map(|stream| clocks.iter().map(move |clock| (stream, clock)))
                {
                    state.races.learn(stream.id(), clock);
                }
            }
        }
        let prepared =
            calls.iter().map(|call| (call.kind, call.dtype, state.bytes_of(&call.send), state.bytes_of(&call.receive)));
        let meeting = Arc::new(Rendezvous {
            calls: prepared.collect(),
            size: streams.len(),
            arrived: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        });
        for stream in streams {
            state.put(stream, later.take().unwrap_or_else(|| Task::Meet(Arc::clone(&meeting))));
        }
        Ok(())
    }

    fn can_join(&self) -> bool {
        true
    }

    fn unique_id(&self) -> Result<UniqueId> {
        self.step("unique id", true)?;
        ranks::host(&self.health)
    }

    fn join(&self, meeting: &Meeting, go_on: GoOn<'_>) -> Result<u64> {
        self.step("join", true)?;
        let join = |id| Link::join(id, meeting.rank, meeting.size, go_on);
        let links = meeting.ids.iter().map(join).collect::<Result<Vec<_>>>()?;
        let id = self.id();
        self.state.lock().joined.insert(id, links);
        Ok(id)
    }

    fn leave(&self, joined: u64) {
        let links = self.state.lock().joined.remove(&joined);
        links.iter().flatten().for_each(|link| link.close());
    }

    fn sum_joined(
        &self,
        joined: u64,
        streams: &[Arc<Stream>],
        dtype: DType,
        parts: &[Slice],
        _go_on: GoOn<'_>,
    ) -> Result<()> {
        let mut later = self.step("sum over ranks", false)?;
        self.check_turn("a sum over ranks is queued")?;
        let mut state = self.state.lock();
        let links = state.joined.get(&joined).cloned();
        let links = links.ok_or_else(|| failed("sim", "sum over ranks", -1, "the ranks have parted"))?;
        for ((stream, part), link) in streams.iter().zip(parts).zip(links) {
            let span = spans(std::slice::from_ref(part));
            state.races.step(stream.id(), &span, &span).map_err(|text| race(format!("a sum over ranks: {text}")))?;
            let bytes = state.bytes_of(std::slice::from_ref(part)).remove(0);
            state.put(stream, later.take().unwrap_or(Task::SumJoined(link, dtype, bytes)));
        }
        self.counts.sums_over_ranks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.health.fault().map_or(Ok(()), Err)
    }

    fn abort(&self) {
        self.health.fail(failed("sim", "abort", 702, "the devices were aborted"));
        self.health.raise(&self.health.aborted);
        self.close_links();
    }

    fn host_access(&self, slice: &Slice, writes: bool) -> Result<()> {
        self.check()?;
        let span = vec![(slice.memory().address(), slice.range())];
        let (reads, writes) = if writes { (vec![], span) } else { (span, vec![]) };
        self.state.lock().races.step(HOST, &reads, &writes).map_err(race)
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        // Threads that stand still wait for this flag. Threads that wait for other ranks wait for the end of
        // their links.
        self.health.raise(&self.health.aborted);
        self.close_links();
    }
}
