//! Collects the state of every rank on request. Rank 0 asks all ranks over the control star, and waits a
//! moment for the answers. Nothing is sent without a request.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringpull_base::status::{JobStatus, LateRanks, RankStatus};

use crate::progress::answers::AnswerSet;
use crate::progress::messages::ControlMessage;
use crate::progress::shared::Shared;

/// The time for which rank 0 waits for answers. A busy machine may be slow to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the answers of all ranks that come in time. Blocks for about 1 s at most. Called on rank 0.
pub(super) fn ask_everybody(shared: &Shared) -> JobStatus {
    let _one = shared.answers.asking.lock();
    JobStatus::ask(|| ask_once(shared))
}

fn ask_once(shared: &Shared) -> JobStatus {
    let answers = &shared.answers;
    let question = {
        let mut come = answers.come.lock();
        *come = AnswerSet { question: come.question.wrapping_add(1), ranks: vec![None; shared.ranks()], late: None };
        come.question
    };
    let fault = shared.condition.fault().as_ref().map(ToString::to_string);
    if fault.is_none() && !shared.condition.is_leaving() {
        (1..shared.ranks()).for_each(|peer| shared.send(peer, &ControlMessage::Describe(question)));
    }
    drop(shared.own_notes.send(ControlMessage::Describe(question)));
    let deadline = Instant::now() + PATIENCE;
    let mut come = answers.come.lock();
    while come.ranks.iter().any(Option::is_none) {
        if answers.changed.wait_until(&mut come, deadline).timed_out() {
            break;
        }
    }
    let (mut ranks, late) = (std::mem::take(&mut come.ranks), come.late.take());
    let helpers = ranks.split_off(shared.size);
    let (placement, library) = (shared.info.placement.clone(), shared.info.library.clone());
    let mut status = JobStatus { placement, library, fault, ranks, helpers, servers: Vec::new(), late };
    status.find_late();
    status
}

/// Sends a rank the state of all ranks. Returns at once. Called on rank 0.
pub(super) fn answer(shared: &Shared, weak: &Weak<Shared>, rank: usize) {
    let weak = weak.clone();
    let answer = move || {
        if let Some(shared) = weak.upgrade() {
            let lines = heading(rank) + &ask_everybody(&shared).lines();
            shared.send(rank, &ControlMessage::Everybody(lines));
        }
    };
    if std::thread::Builder::new().name("ringpull-status".to_owned()).spawn(answer).is_err() {
        shared.send(rank, &ControlMessage::Everybody(heading(rank) + "  rank 0 could not start a thread\n"));
    }
}

pub(super) fn heading(rank: usize) -> String {
    format!("ringpull: rank {rank} was asked what the ranks are doing (SIGUSR1):\n")
}

/// Answers rank 0, and starts to look up the place of the program for the next question.
pub(super) fn describe(shared: &Shared, question: u32, late: Option<LateRanks>) {
    let (calls, steps) = {
        let calls = shared.calls.lock();
        (calls.made_of_all(), calls.steps())
    };
    let moving_s = shared.running.lock().moving().as_secs_f64();
    let status = RankStatus {
        steps,
        calls,
        moving_s,
        sent_bytes: shared.counters.sent_bytes.load(Ordering::Relaxed),
        received_bytes: shared.counters.received_bytes.load(Ordering::Relaxed),
        control_messages: shared.counters.control_messages.load(Ordering::Relaxed),
        doing: shared.doing(),
        is_of_set: shared.is_at_a_set(),
        ..RankStatus::of_this(shared.peer(), shared.info.started)
    };
    if shared.rank == 0 {
        shared.answers.come.lock().late = late;
        shared.answers.take(question, 0, status);
    } else {
        shared.send(0, &ControlMessage::Described(question, Box::new(status)));
    }
}
