//! The one interpreter: executes any [`Plan`] over any [`Transport`], in segments, several in flight.
//!
//! Parts are cut into segments. Each move becomes messages of whole segments; a message depends on the earlier messages
//! of the plan that touch the same segments, and on nothing else. So a segment is forwarded as soon as it is reduced, across
//! step boundaries, and the wire never waits for a whole part. What is added to what, and in which order, is the plan's
//! program order alone: the bits do not depend on what arrives when.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::collective::plan::{Move, Plan, Then};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::reduce;
use crate::transport::{Stamp, Transport};

/// Messages in flight to one peer. Two keep a link busy; more hide the polling interval of a sleeping receiver.
const SEND_WINDOW: usize = 4;
/// Receives posted per peer, so that eager messages find their place without a copy.
const RECV_WINDOW: usize = 8;

/// What a run needs besides its plan, kept from one run to the next.
pub struct Runner {
    /// The most bytes one message carries.
    pub segment_bytes: usize,
    /// How long a run goes on while nothing moves.
    pub limit: Duration,
    /// Payload bytes sent so far.
    pub sent_bytes: u64,
    /// Payload bytes received so far.
    pub received_bytes: u64,
    scratch: Vec<Buffer>,
    done: Vec<u32>,
}

/// What a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Send,
    Reduce,
    Copy,
}

struct Message {
    peer: usize,
    action: Action,
    start: usize,
    end: usize,
    /// How many earlier messages must finish first.
    waits: u32,
    dependents: Vec<u32>,
    /// For `Reduce`: where the bytes arrive, and whether they have.
    scratch: Option<Buffer>,
    arrived: bool,
}

/// Messages to or from one peer, in program order.
#[derive(Default)]
struct Lane {
    queue: Vec<u32>,
    next: usize,
    inflight: usize,
}

struct Progress {
    messages: Vec<Message>,
    out: Vec<Lane>,
    into: Vec<Lane>,
    unfinished: usize,
}

impl Runner {
    /// A runner that cuts messages of at most `segment_bytes`, and gives up when nothing moves for `limit`.
    pub fn new(segment_bytes: usize, limit: Duration) -> Self {
        Runner { segment_bytes, limit, sent_bytes: 0, received_bytes: 0, scratch: Vec::new(), done: Vec::new() }
    }

    /// Executes this rank's `plan` on `data`, which holds the plan's elements of `dtype`. Blocks; collective.
    ///
    /// Errors if a peer does not move for the limit, if what arrives is not what is due, or soon after `stop` is set. After an
    /// error the transport may still use `data`: the caller must keep it alive until the transport is gone.
    pub fn run(
        &mut self,
        plan: &Plan,
        dtype: DType,
        data: &mut [u8],
        transport: &mut dyn Transport,
        stamp: Stamp,
        stop: &AtomicBool,
    ) -> Result<()> {
        let element = dtype.size_bytes();
        assert_eq!(plan.parts.len() * element, data.len(), "a plan runs on a buffer of its own length");
        let mut progress = Progress::of(plan, element, self.segment_bytes, transport.size());
        let outcome = self.drive(&mut progress, dtype, data.as_mut_ptr(), transport, stamp, stop);
        if outcome.is_err() {
            // The transport may still write into its scratch memory.
            std::mem::forget(progress);
        }
        outcome
    }

    fn drive(
        &mut self,
        progress: &mut Progress,
        dtype: DType,
        base: *mut u8,
        transport: &mut dyn Transport,
        stamp: Stamp,
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut idle = Idle::default();
        while progress.unfinished > 0 {
            self.post(progress, base, transport, stamp)?;
            self.done.clear();
            transport.poll(&mut self.done)?;
            if self.done.is_empty() {
                if stop.load(Ordering::Acquire) {
                    return Err(stopped(transport.rank()));
                }
                idle.wait(self.limit).map_err(|waited| progress.stuck(transport.rank(), waited))?;
                continue;
            }
            idle = Idle::default();
            for at in 0..self.done.len() {
                self.complete(progress, self.done[at], dtype, base);
            }
        }
        Ok(())
    }

    /// Posts every message whose turn has come.
    fn post(
        &mut self,
        progress: &mut Progress,
        base: *mut u8,
        transport: &mut dyn Transport,
        stamp: Stamp,
    ) -> Result<()> {
        for peer in 0..progress.out.len() {
            while let Some(token) = progress.into[peer].head(RECV_WINDOW) {
                let message = &mut progress.messages[token as usize];
                let len = message.end - message.start;
                let to = match message.action {
                    Action::Copy if message.waits > 0 => break,
                    // SAFETY: `start` lies in the buffer that `base` begins.
                    Action::Copy => unsafe { base.add(message.start) },
                    _ => {
                        let mut scratch = self.scratch.pop().unwrap_or_else(|| Buffer::zeroed(0));
                        if scratch.bytes().len() < len {
                            scratch = Buffer::zeroed(len.max(self.segment_bytes));
                        }
                        message.scratch.insert(scratch).bytes_mut().as_mut_ptr()
                    }
                };
                // SAFETY: the range lies in the data or in scratch memory that the message owns until it is complete;
                // nobody else touches it before: earlier messages on these segments are done, later ones wait.
                unsafe { transport.recv(peer, stamp, std::ptr::slice_from_raw_parts_mut(to, len), token)? };
                progress.into[peer].posted();
            }
            while let Some(token) = progress.out[peer].head(SEND_WINDOW) {
                let message = &progress.messages[token as usize];
                if message.waits > 0 {
                    break;
                }
                // SAFETY: as above; a message that will change these segments waits for this one.
                unsafe {
                    let data = std::ptr::slice_from_raw_parts(base.add(message.start), message.end - message.start);
                    transport.send(peer, stamp, data, token)?;
                }
                progress.out[peer].posted();
            }
        }
        Ok(())
    }

    /// Takes note that the transport is done with a message, and finishes every message that this allows to finish.
    fn complete(&mut self, progress: &mut Progress, token: u32, dtype: DType, base: *mut u8) {
        let message = &mut progress.messages[token as usize];
        let len_bytes = (message.end - message.start) as u64;
        match message.action {
            Action::Send => {
                progress.out[message.peer].inflight -= 1;
                self.sent_bytes += len_bytes;
            }
            Action::Reduce | Action::Copy => {
                progress.into[message.peer].inflight -= 1;
                self.received_bytes += len_bytes;
            }
        }
        message.arrived = true;
        if message.waits > 0 {
            return;
        }
        let mut ready = vec![token];
        while let Some(token) = ready.pop() {
            let message = &mut progress.messages[token as usize];
            if let Some(scratch) = message.scratch.take() {
                let len = message.end - message.start;
                // SAFETY: the range lies in the data, and every earlier message that touches it is finished.
                let sum = unsafe { std::slice::from_raw_parts_mut(base.add(message.start), len) };
                reduce::add_assign(dtype, sum, &scratch.bytes()[..len]);
                self.scratch.push(scratch);
            }
            progress.unfinished -= 1;
            for dependent in std::mem::take(&mut progress.messages[token as usize].dependents) {
                let other = &mut progress.messages[dependent as usize];
                other.waits -= 1;
                if other.waits == 0 && other.arrived {
                    ready.push(dependent);
                }
            }
        }
    }
}

impl Progress {
    fn of(plan: &Plan, element: usize, segment_bytes: usize, size: usize) -> Self {
        let cells = Cells::of(plan, (segment_bytes / element).max(1));
        let mut messages: Vec<Message> = Vec::new();
        let (mut out, mut into): (Vec<Lane>, Vec<Lane>) = (0..size).map(|_| Default::default()).unzip();
        let mut writer: Vec<Option<u32>> = vec![None; cells.count()];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); cells.count()];
        for step in &plan.moves {
            let (peer, parts, action) = match step {
                Move::Send { to, parts } => (*to, parts, Action::Send),
                Move::Recv { from, parts, then: Then::Reduce } => (*from, parts, Action::Reduce),
                Move::Recv { from, parts, then: Then::Copy } => (*from, parts, Action::Copy),
            };
            for group in cells.groups(parts, segment_bytes / element) {
                let token = messages.len() as u32;
                let mut before: Vec<u32> = Vec::new();
                for cell in group.clone() {
                    before.extend(writer[cell]);
                    if action == Action::Send {
                        readers[cell].push(token);
                    } else {
                        before.append(&mut readers[cell]);
                        writer[cell] = Some(token);
                    }
                }
                before.sort_unstable();
                before.dedup();
                for earlier in &before {
                    messages[*earlier as usize].dependents.push(token);
                }
                let lane = if action == Action::Send { &mut out[peer] } else { &mut into[peer] };
                lane.queue.push(token);
                messages.push(Message {
                    peer,
                    action,
                    start: cells.bounds[group.start] * element,
                    end: cells.bounds[group.end] * element,
                    waits: before.len() as u32,
                    dependents: Vec::new(),
                    scratch: None,
                    arrived: false,
                });
            }
        }
        let unfinished = messages.len();
        Progress { messages, out, into, unfinished }
    }

    /// Whom this rank waits for, when nothing has moved for too long.
    fn stuck(&self, rank: usize, waited: Duration) -> Error {
        let peers: Vec<usize> =
            (0..self.into.len()).filter(|peer| self.into[*peer].inflight > 0 || self.out[*peer].inflight > 0).collect();
        Error::PeerLost {
            peer: format!("one of rank(s) {peers:?}"),
            cause: format!("nothing moved for {} s", waited.as_secs()),
            operation: "a collective".to_owned(),
            rank,
        }
    }
}

impl Lane {
    fn head(&self, window: usize) -> Option<u32> {
        if self.inflight < window { self.queue.get(self.next).copied() } else { None }
    }

    fn posted(&mut self) {
        self.next += 1;
        self.inflight += 1;
    }
}

/// The segments of a buffer: the same on every rank, since they follow from the parts and the segment's length alone.
struct Cells {
    /// Boundaries in elements.
    bounds: Vec<usize>,
    /// The first cell of each part, and the number of cells at the end.
    first: Vec<usize>,
}

impl Cells {
    fn of(plan: &Plan, segment: usize) -> Self {
        let (mut bounds, mut first) = (vec![0], vec![0]);
        for part in 0..plan.parts.count() {
            let range = plan.parts.range(part..part + 1);
            bounds.extend((range.start..range.end).step_by(segment).skip(1));
            if !range.is_empty() {
                bounds.push(range.end);
            }
            first.push(bounds.len() - 1);
        }
        Cells { bounds, first }
    }

    fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Runs of consecutive cells that fit one message of `most` elements, in order.
    fn groups(&self, parts: &std::ops::Range<usize>, most: usize) -> Vec<std::ops::Range<usize>> {
        let (mut start, end) = (self.first[parts.start], self.first[parts.end]);
        let mut groups = Vec::new();
        while start < end {
            let mut stop = start + 1;
            while stop < end && self.bounds[stop + 1] - self.bounds[start] <= most {
                stop += 1;
            }
            groups.push(start..stop);
            start = stop;
        }
        groups
    }
}

/// Waiting that leaves the cores to those who compute: a few yields, then sleeps that grow.
#[derive(Default)]
pub(crate) struct Idle {
    rounds: u32,
    looked: Option<Instant>,
    waited: Duration,
}

impl Idle {
    /// Waits a little; an error with the time waited if `limit` is over.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<(), Duration> {
        const YIELDS: u32 = 30;
        const LONGEST_US: u64 = 250;
        /// A round is shorter by far; what is beyond is the absence of this process, not of its peers.
        const LONGEST_ROUND: Duration = Duration::from_millis(200);
        let now = Instant::now();
        self.waited += now.duration_since(self.looked.unwrap_or(now)).min(LONGEST_ROUND);
        self.looked = Some(now);
        if self.waited > limit {
            return Err(self.waited);
        }
        self.rounds += 1;
        if self.rounds <= YIELDS {
            std::thread::yield_now();
        } else {
            let doublings = (self.rounds - YIELDS).min(8);
            std::thread::sleep(Duration::from_micros((10 << doublings).min(LONGEST_US)));
        }
        Ok(())
    }
}

/// What a run returns when it was told to stop; the caller knows the cause.
fn stopped(rank: usize) -> Error {
    Error::PeerLost {
        peer: "the job".to_owned(),
        cause: "it was stopped".to_owned(),
        operation: "a collective".to_owned(),
        rank,
    }
}
