//! Streams, each with a thread that runs what is queued, and events.
//!
//! As in CUDA, a blocking stream and the legacy default stream wait for each other.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::calls;
use crate::codes::{INVALID_CONTEXT, INVALID_HANDLE, Outcome};
use crate::findings::report;
use crate::machine;
use crate::order::{self, VectorClock, WorkStamp};
use crate::settings::{Effect, SETTINGS};

/// The handles that mean the default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

type Work = Box<dyn FnOnce(&WorkStamp) -> Result<(), c_int> + Send>;

enum Task {
    Work(WorkStamp, Work),
    /// Fails its device.
    Fail(c_int),
    Hang,
    Mark(Arc<StreamMark>),
    Wait(Arc<StreamMark>),
    End,
}

/// A position in a stream.
pub(crate) struct StreamMark {
    done: Mutex<bool>,
    changed: Condvar,
    clock: VectorClock,
}

impl StreamMark {
    fn set(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Returns true if the stream has reached the mark. From then on the host knows that.
    pub(crate) fn is_done(&self) -> bool {
        let done = *self.done.lock();
        if done {
            order::host_learns(&self.clock);
        }
        done
    }

    fn wait(&self) {
        let mut done = self.done.lock();
        while !*done {
            self.changed.wait(&mut done);
        }
    }

    /// Waits on the host's behalf.
    pub(crate) fn synchronize(&self) {
        self.wait();
        order::host_learns(&self.clock);
    }
}

pub(crate) struct Stream {
    pub(crate) id: usize,
    pub(crate) device: usize,
    kind: StreamKind,
    queue: Mutex<VecDeque<Task>>,
    queued: Condvar,
    /// The end of a stream that was destroyed. A wait for all streams may have found it before.
    end: OnceLock<Arc<StreamMark>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

impl Stream {
    fn new(id: usize, device: usize, kind: StreamKind) -> Arc<Self> {
        let stream = Arc::new(Stream {
            id,
            device,
            kind,
            queue: Mutex::default(),
            queued: Condvar::new(),
            end: OnceLock::new(),
        });
        let worker = Arc::clone(&stream);
        let named = thread::Builder::new().name(format!("fake-cuda-{device}"));
        named.spawn(move || worker.run()).expect("a thread for a stream");
        stream
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let task = loop {
                match queue.pop_front() {
                    Some(task) => break task,
                    None => self.queued.wait(&mut queue),
                }
            };
            drop(queue);
            let device = machine::known(self.device);
            match task {
                // After a fault nothing runs.
                Task::Work(stamp, work) if device.check().is_ok() => {
                    thread::sleep(SETTINGS.late);
                    if let Err(code) = work(&stamp) {
                        device.fail(code);
                    }
                }
                Task::Work(..) => {}
                Task::Fail(code) => device.fail(code),
                Task::Hang => loop {
                    thread::park();
                },
                Task::Mark(mark) => mark.set(),
                Task::Wait(mark) => mark.wait(),
                Task::End => return,
            }
        }
    }

    fn push(&self, queue: &mut MutexGuard<'_, VecDeque<Task>>, task: Task) {
        queue.push_back(task);
        self.queued.notify_one();
    }

    /// Queues work, or the fault that the environment sets for it.
    pub(crate) fn put(&self, what: &'static str, work: impl FnOnce(&WorkStamp) -> Result<(), c_int> + Send + 'static) {
        self.put_as(what, calls::later(), work);
    }

    /// Queues work, or the effect that the environment sets for its call.
    pub(crate) fn put_as(
        &self,
        what: &'static str,
        effect: Option<Effect>,
        work: impl FnOnce(&WorkStamp) -> Result<(), c_int> + Send + 'static,
    ) {
        self.follow_default();
        let mut queue = self.queue.lock();
        let task = match effect {
            Some(Effect::Fails(code)) => Task::Fail(code),
            Some(Effect::Hangs) => Task::Hang,
            _ => Task::Work(order::stamp(self.id, what), Box::new(work)),
        };
        self.push(&mut queue, task);
    }

    /// Orders this stream and the default stream of the device.
    fn follow_default(&self) {
        let others: Vec<Arc<Stream>> = match self.kind {
            StreamKind::NonBlocking => return,
            StreamKind::Legacy => {
                STREAMS.lock().values().filter(|other| other.kind == StreamKind::Blocking).map(Arc::clone).collect()
            }
            StreamKind::Blocking => DEFAULTS.lock().get(&self.device).map(Arc::clone).into_iter().collect(),
        };
        for other in others.iter().filter(|other| other.device == self.device) {
            self.wait_for(&other.mark());
        }
    }

    /// Returns true if nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let last = self.mark();
        // A mark with no work before it is set at once, but by another thread.
        for _ in 0..10 {
            if last.is_done() {
                return true;
            }
            thread::sleep(std::time::Duration::from_micros(100));
        }
        false
    }

    /// Marks the current end of the stream.
    pub(crate) fn mark(&self) -> Arc<StreamMark> {
        let mut queue = self.queue.lock();
        self.end.get().map_or_else(|| self.mark_in(&mut queue), Arc::clone)
    }

    fn mark_in(&self, queue: &mut MutexGuard<'_, VecDeque<Task>>) -> Arc<StreamMark> {
        let clock = order::known_to(self.id);
        let mark = Arc::new(StreamMark { done: Mutex::new(false), changed: Condvar::new(), clock });
        self.push(queue, Task::Mark(Arc::clone(&mark)));
        mark
    }

    /// Lets later work run after `mark`.
    pub(crate) fn wait_for(&self, mark: &Arc<StreamMark>) {
        let mut queue = self.queue.lock();
        order::learn(self.id, &mark.clock);
        self.push(&mut queue, Task::Wait(Arc::clone(mark)));
    }

    fn end(&self) {
        let mut queue = self.queue.lock();
        self.end.get_or_init(|| self.mark_in(&mut queue));
        self.push(&mut queue, Task::End);
    }
}

type Table<T> = Mutex<HashMap<usize, Arc<T>>>;
static STREAMS: LazyLock<Table<Stream>> = LazyLock::new(Mutex::default);
/// The legacy default stream of each device.
static DEFAULTS: LazyLock<Table<Stream>> = LazyLock::new(Mutex::default);
static EVENTS: LazyLock<Table<Event>> = LazyLock::new(Mutex::default);
static NEXT: AtomicUsize = AtomicUsize::new(0x57_0000);

/// Returns a handle that nothing else has.
pub(crate) fn fresh() -> usize {
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

pub(crate) fn create(device: usize, is_blocking: bool) -> usize {
    let id = fresh();
    STREAMS
        .lock()
        .insert(id, Stream::new(id, device, if is_blocking { StreamKind::Blocking } else { StreamKind::NonBlocking }));
    id
}

/// Ends a stream after its work.
pub(crate) fn destroy(id: usize) -> Outcome<()> {
    let stream = STREAMS.lock().remove(&id);
    stream.ok_or_else(|| no_handle("cuStreamDestroy", "stream", id)).map(|stream| stream.end())
}

/// The stream of a handle, for work of the current context.
pub(crate) fn of_handle(call: &str, id: usize) -> Outcome<Arc<Stream>> {
    thread_local! {
        static OWN: std::cell::RefCell<HashMap<usize, Arc<Stream>>> = std::cell::RefCell::default();
    }
    let device = machine::current(call)?;
    match id {
        0 | LEGACY => {
            let new = || Stream::new(fresh(), device, StreamKind::Legacy);
            Ok(Arc::clone(DEFAULTS.lock().entry(device).or_insert_with(new)))
        }
        PER_THREAD => Ok(OWN.with_borrow_mut(|own| {
            let new = || {
                let id = create(device, true);
                Arc::clone(&STREAMS.lock()[&id])
            };
            Arc::clone(own.entry(device).or_insert_with(new))
        })),
        _ => {
            let stream = STREAMS.lock().get(&id).map(Arc::clone).ok_or_else(|| no_handle(call, "stream", id))?;
            if stream.device == device {
                return Ok(stream);
            }
            let of = stream.device;
            report("wrong context", &format!("{call} on a stream of GPU {of} while GPU {device} is current"));
            Err(INVALID_CONTEXT)
        }
    }
}

/// Returns a stream that was created, whatever context is current.
pub(crate) fn find(id: usize) -> Option<Arc<Stream>> {
    STREAMS.lock().get(&id).map(Arc::clone)
}

pub(crate) fn no_handle(call: &str, what: &str, id: usize) -> c_int {
    report("wrong handle", &format!("{call}: {id:#x} is no {what}; was it destroyed?"));
    INVALID_HANDLE
}

/// Waits until nothing of the device's streams is under way.
pub(crate) fn drain(device: usize) {
    let own: Vec<Arc<Stream>> = STREAMS
        .lock()
        .values()
        .chain(DEFAULTS.lock().values())
        .filter(|stream| stream.device == device)
        .map(Arc::clone)
        .collect();
    let marks: Vec<Arc<StreamMark>> = own.iter().map(|stream| stream.mark()).collect();
    marks.iter().for_each(|mark| mark.synchronize());
}

pub(crate) struct Event {
    pub(crate) device: usize,
    mark: Mutex<Option<Arc<StreamMark>>>,
}

impl Event {
    pub(crate) fn record(&self, stream: &Stream) {
        *self.mark.lock() = Some(stream.mark());
    }

    /// The place that was recorded last, if one was.
    pub(crate) fn mark(&self) -> Option<Arc<StreamMark>> {
        self.mark.lock().clone()
    }
}

pub(crate) fn create_event(device: usize) -> usize {
    let id = fresh();
    EVENTS.lock().insert(id, Arc::new(Event { device, mark: Mutex::default() }));
    id
}

pub(crate) fn event(call: &str, id: usize) -> Outcome<Arc<Event>> {
    EVENTS.lock().get(&id).map(Arc::clone).ok_or_else(|| no_handle(call, "event", id))
}

pub(crate) fn destroy_event(id: usize) -> Outcome<()> {
    EVENTS.lock().remove(&id).map(drop).ok_or_else(|| no_handle("cuEventDestroy", "event", id))
}

/// Describes the streams that were not destroyed.
pub(crate) fn left() -> Vec<String> {
    let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
    [count(STREAMS.lock().len(), "streams"), count(EVENTS.lock().len(), "events")].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_stream_that_was_destroyed_meanwhile_waits_for_its_end() {
        machine::start();
        let id = create(0, false);
        let found = find(id).unwrap();
        destroy(id).unwrap();
        found.mark().synchronize();
    }
}
