//! Which threads of this process wait in a call of ours, and where its program is.
//!
//! Two questions need this: whether every rank of a job waits for another, so that nothing can come any more, and what
//! to say of a rank that others wait for. The second one is answered by whoever knows the program's language: the
//! Python package looks at its main thread's frames.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Threads that have called a store and live, and those of them that wait in a call.
static CALLERS: AtomicUsize = AtomicUsize::new(0);
static WAITING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
}

/// A thread that has called a store; dropped at its end.
struct Caller;

impl Drop for Caller {
    fn drop(&mut self) {
        CALLERS.fetch_sub(1, Ordering::Relaxed);
    }
}

static LOOKER: OnceLock<fn() -> Place> = OnceLock::new();
static SEEN: Mutex<Seen> = Mutex::new(Seen { last: None, is_looking: false });

struct Seen {
    last: Option<(Instant, Place)>,
    is_looking: bool,
}

/// Where a program is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its own line, such as `train.py:41 in evaluate`.
    pub site: Option<String>,
    /// Whether it waits there for the results of other threads, as MXNet's `asnumpy` does, so that it calls nothing meanwhile.
    pub is_wait: bool,
}

/// A thread waits in a call of ours while this is there. Only the outermost of a thread counts, and of a thread that calls stores.
#[derive(Debug)]
pub struct Wait {
    counts: bool,
}

/// This thread calls a store, and may do so again as long as it lives.
pub fn call() {
    // Not where the thread is about to end.
    CALLER
        .try_with(|caller| {
            let known = caller.take().unwrap_or_else(|| {
                CALLERS.fetch_add(1, Ordering::Relaxed);
                Caller
            });
            caller.set(Some(known));
        })
        .ok();
}

/// This thread begins to wait for what other threads or other ranks have to do.
#[must_use = "the wait ends when it is dropped"]
pub fn wait() -> Wait {
    let counts = IS_WAITING.try_with(|is_waiting| !is_waiting.get()).unwrap_or(false) && is_caller();
    if counts {
        IS_WAITING.with(|is_waiting| is_waiting.set(true));
        WAITING.fetch_add(1, Ordering::Relaxed);
    }
    Wait { counts }
}

fn is_caller() -> bool {
    let found = CALLER.try_with(|caller| {
        let known = caller.take();
        let is_known = known.is_some();
        caller.set(known);
        is_known
    });
    found.unwrap_or(false)
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.counts {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            IS_WAITING.with(|is_waiting| is_waiting.set(false));
        }
    }
}

/// Whether every thread that calls stores waits in a call of ours, so that none calls anything meanwhile.
pub fn is_all() -> bool {
    let waiting = WAITING.load(Ordering::Relaxed);
    waiting > 0 && waiting == CALLERS.load(Ordering::Relaxed)
}

/// Lets `looker` say where the program is. It may take long: it runs on a thread of its own. Only the first call counts.
pub fn look_with(looker: fn() -> Place) {
    LOOKER.get_or_init(|| looker);
}

/// Whether anybody can say where the program is.
pub fn has_looker() -> bool {
    LOOKER.get().is_some()
}

/// Has somebody look where the program is; [`seen`] has the answer later.
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

/// Where the program was when somebody last looked, if that was after `since`.
pub fn seen(since: Instant) -> Option<Place> {
    SEEN.lock().last.as_ref().filter(|(when, _)| *when >= since).map(|(_, place)| place.clone())
}

/// How long a process may compute, of one processor's time, and still be taken for one that only waits.
pub const IDLE: f64 = 0.2;

/// The processor time that this process has used, in seconds; exact to a hundredth.
pub fn used_s() -> f64 {
    // Linux counts them in hundredths of a second for programs, whatever it uses itself.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
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
    }

    #[test]
    fn a_wait_counts_while_it_lasts_and_a_look_is_answered_later() {
        let begun = Instant::now();
        let of_a_stranger = wait();
        assert!(!is_all());
        drop(of_a_stranger);
        call();
        call();
        let outer = wait();
        drop(wait());
        assert!(is_all());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                call();
                is_all()
            });
            assert!(!other.join().unwrap(), "a thread that calls may call again");
        });
        drop(outer);
        assert!(!is_all());
        assert_eq!(seen(begun), None);
        look_with(|| Place { site: Some("train.py:3".to_owned()), is_wait: true });
        look();
        while seen(begun).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(seen(begun).and_then(|place| place.site).as_deref(), Some("train.py:3"));
        assert_eq!(seen(Instant::now() + std::time::Duration::from_secs(1)), None);
    }
}
