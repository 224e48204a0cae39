//! The answer of a job to its caller. It is sent once and taken once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use ringpull_base::{Awake, Result};

/// The state of an answer.
pub(super) enum Outcome<T> {
    /// The answer was not sent yet.
    Open,
    There(Result<T>),
    /// The answer was taken, or nobody can send it any more.
    Gone,
}

struct Place<T> {
    outcome: Mutex<Outcome<T>>,
    sent: Condvar,
}

/// The sender of a job's answer to its caller.
pub struct Reply<T>(Arc<Place<T>>);

/// A job's answer to its caller, who may wait for it: see [`Engine::wait_for`](super::Engine::wait_for).
pub struct Answer<T>(Arc<Place<T>>);

/// Returns the two ends of an answer.
pub fn answer<T>() -> (Reply<T>, Answer<T>) {
    let place = Arc::new(Place { outcome: Mutex::new(Outcome::Open), sent: Condvar::new() });
    (Reply(Arc::clone(&place)), Answer(place))
}

impl<T> Reply<T> {
    /// Sends the answer. Does nothing if the caller has gone.
    pub fn send(self, outcome: Result<T>) {
        self.end(Outcome::There(outcome));
    }

    fn end(&self, end: Outcome<T>) {
        let mut outcome = self.0.outcome.lock();
        if matches!(*outcome, Outcome::Open) {
            *outcome = end;
            // Unlock first, so that the woken thread does not wait for the lock.
            drop(outcome);
            self.0.sent.notify_all();
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.end(Outcome::Gone);
    }
}

impl<T> Answer<T> {
    /// Returns true if the answer has arrived.
    pub fn is_there(&self) -> bool {
        matches!(*self.0.outcome.lock(), Outcome::There(_))
    }

    /// Waits for the answer and takes it. Returns `Open` if it has not arrived within `limit`. Waits for ever
    /// if there is no limit.
    pub(super) fn within(&self, limit: Option<Duration>) -> Outcome<T> {
        /// A short job may be done sooner than this thread would sleep.
        const MOMENT: Duration = Duration::from_micros(100);
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut awake = Awake::new(limit.unwrap_or(MOMENT).min(MOMENT));
        while !self.is_over() && awake.is_awake() {}
        let mut outcome = self.0.outcome.lock();
        while matches!(*outcome, Outcome::Open) {
            match end {
                Some(end) if self.0.sent.wait_until(&mut outcome, end).timed_out() => break,
                Some(_) => {}
                None => self.0.sent.wait(&mut outcome),
            }
        }
        match *outcome {
            Outcome::Open => Outcome::Open,
            Outcome::There(_) | Outcome::Gone => std::mem::replace(&mut outcome, Outcome::Gone),
        }
    }

    fn is_over(&self) -> bool {
        !matches!(*self.0.outcome.lock(), Outcome::Open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_once_and_one_that_nobody_can_send_ends_every_wait() {
        let (reply, sent) = answer();
        assert!(matches!(sent.within(Some(Duration::ZERO)), Outcome::Open) && !sent.is_there());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| sent.within(Some(Duration::MAX)));
            reply.send(Ok(7));
            assert!(matches!(waits.join().unwrap(), Outcome::There(Ok(7))));
        });
        assert!(matches!(sent.within(None), Outcome::Gone) && !sent.is_there());
        let (reply, never) = answer::<()>();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| never.within(None));
            drop(reply);
            assert!(matches!(waits.join().unwrap(), Outcome::Gone));
        });
    }
}
