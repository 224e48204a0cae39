//! The waits of this process's threads in calls of ringpull, and the place of its program.
//!
//! Two things need this: the detection of a job in which every rank waits for another, and the description of
//! a rank that others wait for. Both need the help of code that knows the program's language: the Python
//! package looks at the frames of Python's threads.

use std::cell::{Cell, OnceCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::forked::List;
use crate::{Error, Result};

/// The threads that have called a store. The list needs no lock, because a process may be forked at any time.
static CALLERS: List<Caller> = List::new();

/// A thread that has called a store, or an unused entry.
struct Caller {
    /// Linux's number of the thread, or [`FREE`] when it has ended.
    id: AtomicU32,
    /// The time since which it waits, by [`since_start_ns`], or 0 if it does not wait.
    since_ns: AtomicU64,
}

impl Caller {
    fn is_waiting(&self) -> bool {
        self.since_ns.load(Ordering::Relaxed) != 0
    }
}

const FREE: u32 = 0;
/// The number of a thread that does not know its own.
const UNKNOWN: u32 = u32::MAX;

thread_local! {
    static CALLER: OnceCell<CallerPlace> = const { OnceCell::new() };
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// The calling thread's entry among the callers, which is freed at the thread's end.
struct CallerPlace(&'static Caller);

impl CallerPlace {
    fn new() -> Self {
        let id = this_thread();
        let takes =
            |caller: &&Caller| caller.id.compare_exchange(FREE, id, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let place = CALLERS.iter().find(takes);
        CallerPlace(
            place.unwrap_or_else(|| CALLERS.push(Caller { id: AtomicU32::new(id), since_ns: AtomicU64::new(0) })),
        )
    }
}

impl Drop for CallerPlace {
    fn drop(&mut self) {
        self.0.since_ns.store(0, Ordering::Relaxed);
        self.0.id.store(FREE, Ordering::Release);
    }
}

/// Linux's number of the calling thread, which Python calls its `native_id`.
fn this_thread() -> u32 {
    let found = std::fs::read_link("/proc/thread-self").ok();
    found.and_then(|path| path.file_name()?.to_str()?.parse().ok()).unwrap_or(UNKNOWN)
}

static LOOKER: OnceLock<fn() -> Place> = OnceLock::new();
static SEEN: Mutex<LastLook> = Mutex::new(LastLook { last: None, is_looking: false });

struct LastLook {
    last: Option<(Instant, Place)>,
    is_looking: bool,
}

/// The place of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The line of the program's own code, such as `train.py:41 in evaluate`.
    pub site: Option<String>,
    /// True if the program waits there for the results of other threads, as in MXNet's `asnumpy`, so that it
    /// calls nothing meanwhile.
    pub is_wait: bool,
    /// Linux's numbers of the threads that run code of the program's language and do not wait in that way,
    /// with 0 for a thread of unknown number. A thread that is not in the list belongs to a framework, which
    /// calls on behalf of others.
    pub busy: Vec<u32>,
}

impl Place {
    fn is_busy(&self, thread: u32) -> bool {
        thread == UNKNOWN || self.busy.iter().any(|busy| [thread, 0].contains(busy))
    }
}

/// A guard of a thread that waits in a call of ringpull. Only the outermost guard of a thread counts, and
/// only if the thread calls stores.
#[derive(Debug)]
pub struct Wait {
    /// The beginning of the wait, if it counts.
    since: Option<Instant>,
}

/// Nanoseconds of waits that have ended, of all threads.
static WAITED_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the total time for which threads that call stores have waited since the process began, including
/// waits that have not ended. It never decreases.
pub fn waited() -> Duration {
    static MOST_NS: AtomicU64 = AtomicU64::new(0);
    // With this order a wait that ends meanwhile may be missed, but is never counted twice.
    let ended_ns = WAITED_NS.load(Ordering::Acquire);
    let now_ns = since_start_ns(Instant::now());
    let total_ns = ended_ns + open_waits().map(|since_ns| now_ns.saturating_sub(since_ns)).sum::<u64>();
    Duration::from_nanos(MOST_NS.fetch_max(total_ns, Ordering::Relaxed).max(total_ns))
}

/// Returns the time of the longest current wait, if a thread waits.
pub fn longest() -> Option<Duration> {
    let now_ns = since_start_ns(Instant::now());
    open_waits().min().map(|since_ns| Duration::from_nanos(now_ns.saturating_sub(since_ns)))
}

/// Returns the time since which each waiting thread waits, by [`since_start_ns`].
fn open_waits() -> impl Iterator<Item = u64> {
    let callers = CALLERS.iter().filter(|caller| caller.id.load(Ordering::Acquire) != FREE);
    callers.map(|caller| caller.since_ns.load(Ordering::Acquire)).filter(|since_ns| *since_ns > 0)
}

/// Returns the nanoseconds since the first call of this, at least 1.
pub(crate) fn since_start_ns(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    now.saturating_duration_since(*START.get_or_init(|| now)).as_nanos() as u64 + 1
}

/// The time between two looks of a wait that may be interrupted.
const PIECE: Duration = Duration::from_millis(100);

/// Does `work`. Its waits end with [`Error::Interrupted`] when `check` returns true, for example because the
/// program's signal handler has run. `check` is called now and then.
pub fn interruptible<T>(check: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct PreviousCheck(Option<fn() -> bool>);
    impl Drop for PreviousCheck {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _before = PreviousCheck(CHECK.replace(Some(check)));
    work()
}

/// Calls `wait` with the longest time to wait, in pieces if this thread may be interrupted. Returns `None`
/// after `limit`, or waits for ever if there is no limit. It does not count as a [`wait`] for another rank,
/// because a wait with a limit does not.
pub fn in_pieces<T>(
    limit: Option<Duration>,
    mut wait: impl FnMut(Option<Duration>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let Some(check) = CHECK.try_with(Cell::get).ok().flatten() else { return wait(limit) };
    let begun = Instant::now();
    loop {
        let left = limit.map_or(PIECE, |limit| limit.saturating_sub(begun.elapsed()));
        if let Some(found) = wait(Some(left.min(PIECE)))? {
            return Ok(Some(found));
        }
        if check() {
            return Err(Error::Interrupted {});
        }
        if limit.is_some() && left <= PIECE {
            return Ok(None);
        }
    }
}

/// Returns [`Error::Interrupted`] if this thread may be interrupted and has been. For code with its own loop
/// of waits.
pub fn check() -> Result<()> {
    let check = CHECK.try_with(Cell::get).ok().flatten();
    if check.is_some_and(|is_interrupted| is_interrupted()) { Err(Error::Interrupted {}) } else { Ok(()) }
}

/// Waits as [`in_pieces`] does, without a limit.
pub fn until<T>(mut wait: impl FnMut(Option<Duration>) -> Result<Option<T>>) -> Result<T> {
    loop {
        if let Some(found) = in_pieces(None, &mut wait)? {
            return Ok(found);
        }
    }
}

/// Records that this thread calls a store, and may do so again as long as it lives.
pub fn call() {
    // This does nothing if the thread is about to end.
    CALLER.try_with(|caller| caller.get_or_init(CallerPlace::new).0).ok();
}

/// Marks the beginning of this thread's wait for other threads or other ranks.
#[must_use = "the wait ends when it is dropped"]
pub fn wait() -> Wait {
    let begins = |caller: &OnceCell<CallerPlace>| {
        let known = caller.get().filter(|known| !known.0.is_waiting())?;
        let now = Instant::now();
        known.0.since_ns.store(since_start_ns(now), Ordering::Relaxed);
        Some(now)
    };
    Wait { since: CALLER.try_with(begins).ok().flatten() }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let ends = |caller: &OnceCell<CallerPlace>| {
                if let Some(known) = caller.get() {
                    known.0.since_ns.store(0, Ordering::Release);
                }
            };
            CALLER.try_with(ends).ok();
            WAITED_NS.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Release);
        }
    }
}

/// Returns true if no thread that calls stores can call one now. Each such thread then waits in a call of
/// ringpull, or (according to `place`) waits in its framework for our results, or belongs to the framework
/// and is idle.
pub fn is_only_waiting(place: Option<&Place>) -> bool {
    let callers = || CALLERS.iter().filter(|caller| caller.id.load(Ordering::Acquire) != FREE);
    let somebody_waits = place.is_some_and(|place| place.is_wait) || callers().any(Caller::is_waiting);
    let cannot_call = |caller: &Caller| {
        caller.is_waiting() || place.is_some_and(|place| !place.is_busy(caller.id.load(Ordering::Acquire)))
    };
    somebody_waits && callers().all(cannot_call)
}

/// Sets `looker` as the function that returns the place of the program. It may take long, because it runs on
/// a separate thread. Only the first call counts.
pub fn look_with(looker: fn() -> Place) {
    LOOKER.get_or_init(|| looker);
}

/// Returns true if there is a function that returns the place of the program.
pub fn has_looker() -> bool {
    LOOKER.get().is_some()
}

/// Starts to look up the place of the program. [`seen`] returns it later.
pub fn look() {
    let Some(looker) = LOOKER.get() else { return };
    let mut seen = SEEN.lock();
    if std::mem::replace(&mut seen.is_looking, true) {
        return;
    }
    drop(seen);
    let look = || {
        let place = looker();
        let mut seen = SEEN.lock();
        seen.is_looking = false;
        seen.last = Some((Instant::now(), place));
    };
    if std::thread::Builder::new().name("ringpull-look".to_owned()).spawn(look).is_err() {
        SEEN.lock().is_looking = false;
    }
}

/// Returns the last place of the program that was looked up, if that was after `since`.
pub fn seen(since: Instant) -> Option<Place> {
    SEEN.lock().last.as_ref().filter(|(when, _)| *when >= since).map(|(_, place)| place.clone())
}

/// The part of one processor's time up to which a process counts as only waiting.
pub const IDLE: f64 = 0.2;

/// The threads whose computing does not count as the program's.
static LIBRARY: List<u32> = List::new();

/// Excludes the calling thread's computing from the program's, because a library may wait in a busy loop.
pub fn leave_out_this_thread() {
    LIBRARY.push(this_thread());
}

/// Returns the processor time of this process in seconds, without the excluded threads, with an accuracy of a
/// hundredth.
pub fn used_s() -> f64 {
    let library = LIBRARY.iter().map(|thread| used_by_s(&format!("task/{thread}/")));
    used_by_s("") - library.sum::<f64>()
}

fn used_by_s(whom: &str) -> f64 {
    // Linux reports these times to programs in hundredths of a second, whatever unit it uses itself.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/self/{whom}stat")).unwrap_or_default();
    // The name in parentheses may hold blanks.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_uses_time_and_sleeping_does_not() {
        let (before, begun) = (used_s(), Instant::now());
        while begun.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        assert!(used_s() - before > 0.02, "{} {}", before, used_s());
        let of_library = std::thread::spawn(|| {
            leave_out_this_thread();
            let (before, begun) = ((used_by_s(""), used_s()), Instant::now());
            while begun.elapsed().as_millis() < 400 {
                std::hint::spin_loop();
            }
            (used_by_s("") - before.0, used_s() - before.1)
        });
        let (process_s, program_s) = of_library.join().unwrap();
        // Other tests may compute at the same time.
        assert!(program_s < process_s - 0.05, "{program_s} {process_s}");
    }

    #[test]
    fn a_wait_that_may_be_interrupted_is_made_in_pieces_and_ends_soon_and_any_other_is_made_whole() {
        let mut pieces = Vec::new();
        let mut never = |limit: Option<Duration>| {
            pieces.push(limit);
            std::thread::sleep(limit.unwrap_or_default().min(PIECE));
            Ok(None::<()>)
        };
        let long = Duration::from_secs(3600);
        assert_eq!(in_pieces(Some(long), &mut never), Ok(None));
        assert_eq!(in_pieces(None, &mut never), Ok(None));
        assert_eq!(interruptible(|| true, || in_pieces(None, &mut never)), Err(Error::Interrupted {}));
        let short = PIECE * 3 / 2;
        assert_eq!(interruptible(|| false, || in_pieces(Some(short), &mut never)), Ok(None));
        assert_eq!(pieces[..4], [Some(long), None, Some(PIECE), Some(PIECE)]);
        assert!(pieces.len() >= 5 && pieces[4].unwrap() < PIECE, "{pieces:?}");
        assert_eq!(interruptible(|| true, || in_pieces(None, |_| Ok(Some(7)))), Ok(Some(7)), "there is no wait");
    }

    #[test]
    fn a_wait_counts_while_it_lasts_and_a_look_is_answered_later() {
        const NAME: &str = "waits::tests::a_wait_counts_while_it_lasts_and_a_look_is_answered_later";
        const ALONE: &str = "RINGPULL_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            // Threads of other tests wait and call too, so this test runs in a separate process.
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args([NAME, "--exact"]).env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let begun = Instant::now();
        let is_all = || is_only_waiting(None);
        let of_a_stranger = wait();
        assert!(!is_all());
        drop(of_a_stranger);
        call();
        call();
        let waited_before = waited();
        let outer = wait();
        drop(wait());
        assert!(is_all());
        std::thread::sleep(Duration::from_millis(20));
        assert!(longest() >= Some(Duration::from_millis(20)) && waited() >= waited_before + Duration::from_millis(20));
        let place = |busy: &[u32]| Place { busy: busy.to_vec(), ..Place::default() };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                call();
                assert!(!is_all(), "a thread that calls may call again");
                assert!(!is_only_waiting(Some(&place(&[this_thread()]))), "one that is in the program too");
                assert!(!is_only_waiting(Some(&place(&[0]))), "and one that may be anybody");
                assert!(is_only_waiting(Some(&place(&[]))), "one of a framework calls for others");
                let waiting = wait();
                assert!(is_only_waiting(Some(&place(&[this_thread()]))), "one that waits does not call");
                drop(waiting);
            });
            other.join().unwrap();
        });
        assert!(is_all(), "a thread that has ended calls no more");
        let while_open = waited();
        drop(outer);
        assert!(!is_all() && longest().is_none() && waited() >= while_open);
        let in_framework = Place { is_wait: true, ..place(&[]) };
        assert!(is_only_waiting(Some(&in_framework)) && !is_only_waiting(Some(&place(&[]))));
        let and_busy = Place { is_wait: true, ..place(&[this_thread()]) };
        assert!(!is_only_waiting(Some(&and_busy)));
        assert_eq!(seen(begun), None);
        look_with(|| Place { site: Some("train.py:3".to_owned()), ..Place::default() });
        look();
        while seen(begun).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(seen(begun).and_then(|place| place.site).as_deref(), Some("train.py:3"));
        assert_eq!(seen(Instant::now() + std::time::Duration::from_secs(1)), None);
    }
}
