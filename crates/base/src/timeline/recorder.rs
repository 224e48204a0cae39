//! The spans of this process, thread by thread, until they are written.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::trace::{self, About, Thread};
use super::{Name, OpenSpan, Phase, Span};
use crate::config::Role;
use crate::forked::Process;
use crate::topology::host_name;

/// The greatest number of spans of one thread. Later spans are only counted.
const MOST_A_THREAD: usize = 1 << 20;

static ON: AtomicBool = AtomicBool::new(false);
static RECORDER: OnceLock<Recorder> = OnceLock::new();

struct Recorder {
    /// The process that records. A forked child records nothing, because the file is its parent's.
    process: Process,
    pattern: String,
    zero: Instant,
    about: Mutex<About>,
    lanes: Mutex<Vec<Arc<ThreadSpans>>>,
    writing: Mutex<()>,
}

/// One thread's spans. Only this thread adds to them, so the lock is free except while the file is written.
struct ThreadSpans {
    name: String,
    events: Mutex<Vec<Event>>,
    left_out: AtomicU64,
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) phase: Phase,
    pub(super) name: Name,
    pub(super) since_ns: u64,
    pub(super) length_ns: u64,
    pub(super) bytes: u64,
}

thread_local! {
    static LANE: OnceCell<Arc<ThreadSpans>> = const { OnceCell::new() };
}

/// Switches the recorder on for the rest of the process, if there is a file to write to. Later calls change
/// nothing.
pub fn start(file: Option<String>) {
    let Some(pattern) = file else { return };
    let folder = trace::folder(&pattern).to_owned();
    let mut first = false;
    RECORDER.get_or_init(|| {
        first = true;
        let about = About::new(host_name(), system_ns());
        Recorder {
            process: Process::this(),
            pattern,
            zero: Instant::now(),
            about: Mutex::new(about),
            lanes: Mutex::default(),
            writing: Mutex::default(),
        }
    });
    if first {
        if let Err(cause) = trace::try_folder(&folder) {
            crate::notice(&format!("warning: no timeline will be written: {cause}"));
        }
        ON.store(true, Ordering::Relaxed);
        // SAFETY: `write_at_exit` is a plain function, and may run on the thread that exits.
        if unsafe { libc::atexit(write_at_exit) } != 0 {
            tracing::warn!("the timeline is written only if the process ends normally: atexit is full");
        }
    }
}

/// Records for `file` from now on, even after [`stop`]. Returns false if the process already has another
/// file.
pub fn resume(file: &str) -> bool {
    start(Some(file.to_owned()));
    let is_this = recorder().is_some_and(|recorder| recorder.pattern == file);
    if is_this {
        ON.store(true, Ordering::Relaxed);
    }
    is_this
}

/// Writes the recorded spans, and records nothing more.
pub fn stop() {
    ON.store(false, Ordering::Relaxed);
    flush();
}

/// Returns the recorder, if it belongs to this process.
fn recorder() -> Option<&'static Recorder> {
    RECORDER.get().filter(|recorder| recorder.process.is_here())
}

/// Returns true if spans are recorded.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Sets the role of this process in its job. The first call counts.
pub fn introduce(role: Role, rank: usize, size: usize) {
    if let Some(recorder) = recorder() {
        let mut about = recorder.about.lock();
        if about.rank.is_none() {
            (about.role, about.rank, about.size) = (role, Some(rank), size);
        }
    }
}

/// Sets the lead of this process's clock over rank 0's, as measured with messages that took `round_trip_ns`.
pub fn set_clock(ahead_ns: i64, round_trip_ns: u64) {
    if let Some(recorder) = recorder() {
        let mut about = recorder.about.lock();
        (about.ahead_ns, about.round_trip_ns) = (ahead_ns, Some(round_trip_ns));
    }
}

/// Returns the nanoseconds since the recorder was switched on, or 0 while it is off.
#[inline]
pub fn now_ns() -> u64 {
    if is_on() { RECORDER.get().map_or(0, |recorder| recorder.zero.elapsed().as_nanos() as u64) } else { 0 }
}

/// Returns the nanoseconds since 1970, by the recorder's clock if it exists, because that clock is never
/// adjusted while it runs.
pub fn clock_ns() -> u64 {
    recorder().map_or_else(system_ns, |recorder| {
        let zero_ns = recorder.about.lock().zero_unix_ns;
        zero_ns + recorder.zero.elapsed().as_nanos() as u64
    })
}

fn system_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Begins a span of this thread.
#[inline]
pub fn span<N: Into<Name>>(phase: Phase, name: impl FnOnce() -> N) -> Span {
    if !is_on() {
        return Span(None);
    }
    Span(Some(OpenSpan { phase, name: name().into(), since_ns: now_ns(), bytes: 0 }))
}

/// Records a span that began at `since_ns`, by [`now_ns`], and ends now.
#[inline]
pub fn record<N: Into<Name>>(phase: Phase, name: impl FnOnce() -> N, since_ns: u64, bytes: u64) {
    if is_on() {
        let length_ns = now_ns().saturating_sub(since_ns);
        keep(Event { phase, name: name().into(), since_ns, length_ns, bytes });
    }
}

fn keep(event: Event) {
    let Some(recorder) = recorder() else { return };
    let kept = LANE.try_with(|lane| {
        let lane = lane.get_or_init(|| recorder.new_lane());
        let mut events = lane.events.lock();
        if events.len() < MOST_A_THREAD {
            events.push(event);
        } else {
            lane.left_out.fetch_add(1, Ordering::Relaxed);
        }
    });
    if kept.is_err() {
        tracing::trace!("a thread that is ending has no place for spans any more");
    }
}

/// Writes everything recorded so far to this process's file.
pub fn flush() {
    let Some(recorder) = recorder() else { return };
    let _one_at_a_time = recorder.writing.lock();
    let mut about = recorder.about.lock().clone();
    let lanes = recorder.lanes.lock().clone();
    about.left_out = lanes.iter().map(|lane| lane.left_out.load(Ordering::Relaxed)).sum();
    let threads: Vec<Thread> =
        lanes.iter().map(|lane| Thread { name: lane.name.clone(), events: lane.events.lock().clone() }).collect();
    let path = PathBuf::from(trace::file_name(&recorder.pattern, &about));
    if let Err(cause) = trace::write(&path, about, &threads) {
        // The process is about to end, and its own outcome matters more.
        crate::notice(&format!("ringpull: the timeline was not written: {cause}"));
    }
}

extern "C" fn write_at_exit() {
    flush();
}

impl Recorder {
    fn new_lane(&self) -> Arc<ThreadSpans> {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("caller").to_owned();
        let lane = Arc::new(ThreadSpans { name, events: Mutex::default(), left_out: AtomicU64::new(0) });
        self.lanes.lock().push(Arc::clone(&lane));
        lane
    }
}
