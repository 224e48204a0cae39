//! Tests which thread finishes which job, and in which order.

use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use ringpull_base::config::Config;
use ringpull_base::{Error, Result};

use crate::communicator::Communicator;
use crate::progress::engine::Engine;
use crate::progress::job::{Job, Submission};
use crate::progress::messages::{Launch, Operation, Terms, Topic};

/// A job that reports its run. When it may finish, it reports the thread that finishes it.
struct FinishReporter {
    name: i64,
    is_short: bool,
    may: Receiver<()>,
    runs: Sender<i64>,
    by: Sender<(i64, String)>,
}

impl Job for FinishReporter {
    fn run(&mut self, _host: &mut Communicator, _launch: &Launch) -> Result<()> {
        self.runs.send(self.name).ok();
        Ok(())
    }

    fn is_soon_finished(&self) -> bool {
        self.is_short
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.may.recv().ok();
        let name = thread::current().name().unwrap_or_default().to_owned();
        drop(self.by.send((self.name, name)));
        Ok(())
    }

    fn fail(self: Box<Self>, _fault: &Error) {}
}

#[test]
fn a_short_job_needs_no_other_thread_and_overtakes_nothing() {
    let engine = Engine::in_process(1, &Config::default()).unwrap().remove(0);
    let ((told, heard), (runs, running)) = (unbounded(), unbounded());
    let submit = |name: i64, is_short, may: &Receiver<()>| {
        let job = FinishReporter { name, is_short, may: may.clone(), runs: runs.clone(), by: told.clone() };
        let topic = Topic::Key { store: 0, key: name.into() };
        engine.submit(topic, Operation::Push, Terms::default(), Submission::new(job)).unwrap();
    };
    let free = bounded(0).1;
    submit(1, true, &free);
    assert_eq!(heard.recv().unwrap(), (1, "ringpull-comm".to_owned()));
    let (release, held) = bounded(0);
    submit(2, false, &held);
    submit(3, true, &free);
    submit(4, false, &free);
    // Job 3 has been handed on when job 4 runs.
    while running.recv().unwrap() < 4 {}
    assert!(heard.is_empty(), "2 is not finished");
    drop(release);
    for name in 2..=4 {
        assert_eq!(heard.recv().unwrap(), (name, "ringpull-finish".to_owned()));
    }
}

/// A job that sends its outcome to its caller, and later, when it may, ends with this outcome.
struct SlowJob {
    given: Sender<Result<()>>,
    may: Receiver<()>,
    outcome: Result<()>,
}

impl Job for SlowJob {
    fn run(&mut self, _host: &mut Communicator, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.given.send(self.outcome.clone()));
        self.may.recv().ok();
        self.outcome
    }

    fn fail(self: Box<Self>, fault: &Error) {
        drop(self.given.send(Err(fault.clone())));
    }
}

/// The caller gets the error before the engine does, and ends. The other ranks still hear of the error, and
/// not only that a rank has left.
#[test]
fn a_rank_that_leaves_while_its_last_call_fails_tells_the_others_why() {
    let engines = Engine::in_process(2, &Config::default()).unwrap();
    let (release, held) = bounded(0);
    let free = bounded(0).1;
    let submit = |rank: usize, name: i64, outcome: Result<()>, may: &Receiver<()>| {
        let (given, answer) = unbounded();
        let topic = Topic::Key { store: 0, key: name.into() };
        let job = Submission::new(SlowJob { given, may: may.clone(), outcome });
        engines[rank].submit(topic, Operation::Push, Terms::default(), job).unwrap();
        answer
    };
    let why = Error::argument("this update fails", "let it");
    let (first, failing) = (submit(0, 1, Ok(()), &free), submit(1, 1, Err(why.clone()), &held));
    assert_eq!(failing.recv().unwrap().unwrap_err().to_string(), why.to_string());
    first.recv().unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| engines[1].leave());
        let next = submit(0, 2, Ok(()), &free);
        // This is long enough for rank 1 to report that it leaves, if it did.
        assert!(next.recv_timeout(Duration::from_millis(300)).is_err() && engines[1].is_leaving());
        drop(release);
        let fault = next.recv().unwrap().unwrap_err().to_string();
        assert!(fault.contains("this update fails"), "{fault}");
    });
}
