//! Tests the messages sent to a peer, and their order, while the peer receives only some of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ringpull_base::{Buffer, DType, Result};

use crate::interpreter::ahead::{UNASKED_BYTES, WINDOW};
use crate::interpreter::run::STANDSTILL;
use ringpull_plan::{Parts, Plan, ReceiveAction, Schedule, broadcast};

use crate::interpreter::*;
use crate::transport::{SendMode, Stamp, Transport, inproc};

/// Longer than any stall of a test; under miri each of them takes minutes.
const LIMIT: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });
const SEGMENT: usize = 16 << 10;

/// A synchronous message, and its bytes when it was sent.
struct UnansweredMessage {
    token: u32,
    data: *const [u8],
    bytes: Vec<u8>,
}

/// A rank's transport that records the messages sent, and does not report that sends of some stamp are done.
struct RecordingTransport {
    end: inproc::Inproc,
    sent: Vec<Stamp>,
    kept_back: Option<Stamp>,
    kept: Vec<u32>,
    /// The places of the messages that were synchronous.
    asked: Vec<usize>,
    /// Those that are not done before `answer`, if they are kept back.
    unanswered: Option<Vec<UnansweredMessage>>,
}

impl RecordingTransport {
    /// Rank 0 of 2. Its sends are done at once, whatever the other does.
    fn new() -> (Self, inproc::Inproc) {
        let mut ends = inproc::world(2).into_iter();
        let (Some(end), Some(other)) = (ends.next(), ends.next()) else { unreachable!("a world of two has two ends") };
        (
            RecordingTransport {
                end,
                sent: Vec::new(),
                kept_back: None,
                kept: Vec::new(),
                asked: Vec::new(),
                unanswered: None,
            },
            other,
        )
    }
}

#[allow(unsafe_code)]
impl Transport for RecordingTransport {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn size(&self) -> usize {
        self.end.size()
    }

    unsafe fn send(&mut self, to: usize, stamp: Stamp, data: *const [u8], mode: SendMode, token: u32) -> Result<()> {
        self.sent.push(stamp);
        if self.kept_back == Some(stamp) {
            self.kept.push(token);
            return Ok(());
        }
        if mode == SendMode::Synchronous {
            self.asked.push(self.sent.len() - 1);
            if let Some(all) = &mut self.unanswered {
                // SAFETY: as above.
                all.push(UnansweredMessage { token, data, bytes: unsafe { &*data }.to_vec() });
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.end.send(to, stamp, data, mode, token) }
    }

    unsafe fn recv(&mut self, from: usize, stamp: Stamp, into: *mut [u8], token: u32) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.end.recv(from, stamp, into, token) }
    }

    fn poll(&mut self, done: &mut Vec<u32>) -> Result<()> {
        if self.kept_back.is_none() {
            done.append(&mut self.kept);
        }
        self.end.poll(done)?;
        done.retain(|token| self.unanswered.iter().flatten().all(|message| message.token != *token));
        Ok(())
    }

    fn narrow(&mut self, _workers: usize) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> String {
        self.end.name()
    }
}

impl RecordingTransport {
    /// Reports what was held back as done, after a check that its bytes are unchanged. Returns the number of
    /// messages.
    fn answer(&mut self) -> usize {
        let all = self.unanswered.take().unwrap_or_default();
        for message in &all {
            #[allow(unsafe_code)]
            // SAFETY: whoever sends keeps the bytes as they are until it hears that the message is done.
            let data = unsafe { &*message.data };
            assert_eq!(data, message.bytes);
        }
        self.kept.extend(all.iter().map(|message| message.token));
        all.len()
    }
}

/// Begins to send `segments` segments.
fn send_out(runner: &mut Runner, segments: usize, stamp: Stamp, priority: i32) -> Ticket {
    let schedule = runner.schedule(&broadcast(0, 0, 2, segments * 64), DType::U8);
    runner.begin(&schedule, ones(segments * 64), stamp, priority)
}

fn ones(len: usize) -> Memory {
    Memory::Own(Buffer::copy_of(&vec![1; len]))
}

#[test]
fn no_segment_of_lower_priority_leaves_while_one_of_higher_priority_is_ready() {
    let stop = AtomicBool::new(false);
    let ((mut near, _far), mut runner) = (RecordingTransport::new(), Runner::new(64, LIMIT));
    for stamp in 0..6 {
        send_out(&mut runner, 100, stamp, stamp as i32 / 3);
    }
    while near.sent.len() < 50 {
        runner.advance(&mut near, &stop).unwrap();
    }
    let before = near.sent.len();
    assert!((0..6).any(|stamp| near.sent.contains(&stamp)), "what is of lower priority is under way");
    send_out(&mut runner, 30, 9, 7);
    while runner.is_busy() {
        runner.advance(&mut near, &stop).unwrap();
    }
    let (overtaking, rest) = near.sent[before..].split_at(30);
    assert!(overtaking.iter().all(|stamp| *stamp == 9), "{overtaking:?}");
    assert!(rest.iter().all(|stamp| *stamp < 6) && before + rest.len() == 6 * 100);
    let last_of_the_middle = near.sent.iter().rposition(|stamp| (3..6).contains(stamp)).unwrap();
    let low = near.sent[..last_of_the_middle].iter().filter(|stamp| **stamp < 3).count();
    assert!(low <= 3 * 3, "{low} segments of the lowest priority have left before the last of the middle one");
}

#[test]
fn lower_priority_goes_on_while_higher_priority_is_stuck() {
    let stop = AtomicBool::new(false);
    let ((mut near, _far), mut runner) = (RecordingTransport::new(), Runner::new(64, LIMIT));
    near.kept_back = Some(9);
    send_out(&mut runner, 20, 9, 7);
    let low = send_out(&mut runner, 20, 1, 0);
    let mut finished = Vec::new();
    while finished.is_empty() {
        if !runner.advance(&mut near, &stop).unwrap() {
            runner.pause(&mut near).unwrap();
        }
        finished.extend(runner.take_finished().map(|(ticket, _)| ticket));
    }
    assert_eq!(finished, [low]);
    near.kept_back = None;
    while runner.is_busy() {
        runner.advance(&mut near, &stop).unwrap();
    }
}

/// Begins broadcasts of `len` bytes, one for each priority, to a peer that receives none of them, and
/// advances until nothing moves. Returns the bytes sent of each, and which of all messages were synchronous.
fn ahead_of_a_peer(len: usize, priorities: &[i32]) -> (Vec<usize>, Vec<usize>) {
    let stop = AtomicBool::new(false);
    let ((mut near, _far), mut runner) = (RecordingTransport::new(), Runner::new(SEGMENT, LIMIT));
    let schedule = runner.schedule(&broadcast(0, 0, 2, len), DType::U8);
    for (stamp, priority) in priorities.iter().enumerate() {
        runner.begin(&schedule, ones(len), stamp as u32, *priority);
    }
    let mut moved = Instant::now();
    while moved.elapsed() < 3 * STANDSTILL {
        if runner.advance(&mut near, &stop).unwrap() {
            moved = Instant::now();
        } else {
            runner.pause(&mut near).unwrap();
        }
    }
    let of = |stamp| near.sent.iter().filter(|sent| **sent == stamp).count() * SEGMENT;
    let sent = (0..priorities.len()).map(|stamp| of(stamp as u32)).collect();
    (sent, near.asked)
}

#[test]
fn the_bytes_sent_to_a_peer_that_lags_are_bounded() {
    let window = WINDOW * UNASKED_BYTES;
    let bytes_ahead = |len, priorities: &[i32]| ahead_of_a_peer(len, priorities).0;
    assert_eq!(bytes_ahead(3 * window, &[0]), [window]);
    assert_eq!(bytes_ahead(window / 8, &[0; 5]), [window / 8; 5]);
    let short: usize = bytes_ahead(window / 8, &[0; 60]).iter().sum();
    assert!((2 * window..=2 * window + 60 * SEGMENT).contains(&short), "{short}");
    let several = bytes_ahead(3 * window, &[2, 0, 0, 1, 0]);
    assert_eq!(several[0], window, "what is of the highest priority goes first");
    assert!(several[1..].iter().all(|bytes| (1..=UNASKED_BYTES).contains(bytes)), "{several:?}");
}

#[test]
fn messages_that_the_peer_does_not_receive_yet_delay_no_lower_priority() {
    const SEGMENTS: usize = 300;
    let stop = AtomicBool::new(false);
    let ((mut near, mut far), mut runner) = (RecordingTransport::new(), Runner::new(64, LIMIT));
    let data = ones(3 * WINDOW * UNASKED_BYTES);
    let schedule = Arc::new(Schedule::of(&broadcast(0, 0, 2, data.bytes().len()), DType::U8, UNASKED_BYTES));
    runner.begin(&schedule, data, 9, 7);
    let low = send_out(&mut runner, SEGMENTS, 1, 0);
    let mut wanted = Runner::new(64, LIMIT);
    wanted.begin(&wanted.schedule(&broadcast(0, 1, 2, SEGMENTS * 64), DType::U8), ones(SEGMENTS * 64), 1, 0);
    let begun = Instant::now();
    // Without a pause there is no standstill.
    while !runner.take_finished().any(|(finished, _)| finished == low) {
        assert!(begun.elapsed() < LIMIT, "{} messages have left", near.sent.len());
        runner.advance(&mut near, &stop).unwrap();
        wanted.advance(&mut far, &stop).unwrap();
    }
    assert!(runner.is_busy() && !wanted.is_busy());
}

#[test]
fn the_end_of_an_operation_asks_for_no_answer() {
    let most = (WINDOW + 1) * UNASKED_BYTES - UNASKED_BYTES / 8;
    let (sent, asked) = ahead_of_a_peer(most, &[0]);
    assert_eq!(sent, [most]);
    let after: Vec<usize> = asked.iter().map(|message| (message + 1) * SEGMENT).collect();
    assert_eq!(after, [UNASKED_BYTES, 2 * UNASKED_BYTES, 3 * UNASKED_BYTES]);
}

/// A sum whose every segment is sent, added to, and sent again, with a peer that answers only when it has
/// received everything.
fn sum_without_answers(is_peer_early: bool) {
    const PART: usize = UNASKED_BYTES * 3 / 2;
    let stop = AtomicBool::new(false);
    let ((mut near, mut far), mut runner) = (RecordingTransport::new(), Runner::new(64 << 10, LIMIT));
    near.unanswered = Some(Vec::new());
    let mut plan = Plan::new(Parts::even(PART, 1));
    plan.send(1, 0..1);
    plan.recv(1, 0..1, ReceiveAction::Reduce);
    plan.send(1, 0..1);
    let mut theirs = Plan::new(Parts::even(3 * PART, 3));
    theirs.recv(0, 1..2, ReceiveAction::Copy);
    theirs.send(0, 0..1);
    theirs.recv(0, 2..3, ReceiveAction::Copy);
    let mut peer = Runner::new(64 << 10, LIMIT);
    runner.begin(&runner.schedule(&plan, DType::U8), ones(PART), 0, 0);
    let twos = Memory::Own(Buffer::copy_of(&vec![2; 3 * PART]));
    peer.begin(&peer.schedule(&theirs, DType::U8), twos, 0, 0);
    let begun = Instant::now();
    for _ in 0..if is_peer_early { 1000 } else { 0 } {
        peer.advance(&mut far, &stop).unwrap();
    }
    while peer.is_busy() {
        assert!(begun.elapsed() < LIMIT, "a sum waits for an answer");
        runner.advance(&mut near, &stop).unwrap();
        peer.advance(&mut far, &stop).unwrap();
    }
    assert!(runner.is_busy(), "an operation ends when its answers have come");
    assert_eq!(near.answer(), 2);
    while runner.is_busy() {
        assert!(begun.elapsed() < LIMIT, "the answers have come");
        runner.advance(&mut near, &stop).unwrap();
    }
    let memory = |runner: &mut Runner| runner.take_finished().next().unwrap().1.into_buffer();
    let (data, others) = (memory(&mut runner), memory(&mut peer));
    let others = others.bytes();
    assert!(others[PART..2 * PART].iter().all(|byte| *byte == 1) && others[2 * PART..].iter().all(|byte| *byte == 3));
    assert!(data.bytes().iter().all(|byte| *byte == 3));
}

#[test]
fn a_change_of_a_messages_bytes_does_not_wait_for_the_answer() {
    sum_without_answers(false);
}

#[test]
fn a_segment_that_came_early_is_added_when_the_copy_is_made() {
    sum_without_answers(true);
}
