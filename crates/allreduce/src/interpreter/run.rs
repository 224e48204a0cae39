//! The only interpreter. It executes any [`Schedule`] over any [`Transport`], and several schedules at once.
//!
//! A schedule consists of segments. A segment is forwarded as soon as it is reduced, across step boundaries,
//! so the wire never waits for a whole part. Additions are in the plan's program order: the bits depend
//! neither on when messages arrive nor on which other operations are in flight.
//!
//! Operations are begun, advanced together, and reported when they are finished. Each has its own lanes,
//! identified by its stamp, so no operation waits for a message of another. They share one limit on the
//! messages in flight to a peer:
//!
//! - A message of higher priority leaves first. Among messages of one priority, a message of the operation
//!   that was begun earliest leaves first.
//! - While the limit holds back a message, no message of lower priority leaves for that peer, unless all
//!   messages in flight wait for the peer.
//! - Otherwise each operation may have one message in flight to each peer.
//! - If nothing moves for [`STANDSTILL`], each operation may have one message in flight to each peer in any
//!   case.
//!
//! So every operation ends, however full the lanes of other operations are, and in whatever order the ranks
//! begin their operations. A peer may have to buffer the messages in flight to it (`ahead`).
//!
//! A program is an operation of several steps. Its steps in shared memory are polled beside the messages.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringpull_base::timeline::{self, Name, Phase};
use ringpull_base::{DType, Error, Result};
use ringpull_plan::{Plan, Schedule};

use crate::interpreter::ahead::SendWindow;
use crate::interpreter::endpoint::Endpoint;
use crate::interpreter::flight::{Flight, FlightMemory, HostMemory, Ticket};
use crate::interpreter::halfway::{HalfwayUpdate, PartUpdate};
use crate::interpreter::idle::IdleWait;
use crate::interpreter::memory::Memory;
use crate::interpreter::program::{Program, ProgramStep, StepProgress};
use crate::interpreter::scratch::Scratch;
use crate::interpreter::tokens::{PostedMessage, Tokens};
use crate::transport::{SendMode, Stamp, Transport};

/// Receives posted per peer, so that eager messages find their place without a copy.
const RECV_WINDOW: usize = 8;
/// The time without any movement after which ready messages no longer wait for those in flight, because the
/// peer may need the ready ones first.
pub(super) const STANDSTILL: Duration = Duration::from_millis(100);

/// Executes schedules over the transport that each call names. It is the transport of the whole job or of a
/// group of its ranks.
pub struct Runner {
    /// The most bytes of one message in plans that [`schedule`](Self::schedule) cuts.
    segment_bytes: usize,
    /// The time that a run waits while nothing moves.
    pub limit: Duration,
    /// Payload bytes sent so far.
    pub sent_bytes: u64,
    /// Payload bytes received so far.
    pub received_bytes: u64,
    /// The operations under way, in the order of preference: by priority, and those of one priority by their
    /// beginning.
    flights: Vec<Flight>,
    /// The programs under way, in the same order.
    programs: Vec<Program>,
    begun: Ticket,
    finished: Vec<(Ticket, Memory)>,
    /// Memory that the transport may use for ever.
    lost: Vec<Memory>,
    /// Bytes of all messages that are not done.
    open_bytes: usize,
    /// The messages in flight to each peer, of all operations.
    sending: Vec<SendWindow>,
    /// Messages in flight from each peer, of all operations.
    receiving: Vec<usize>,
    /// For each peer, the highest priority of the messages that are ready and held back.
    held: Vec<Option<i32>>,
    /// True if nothing has moved for [`STANDSTILL`], and no message that was held back has left since.
    stands_still: bool,
    tokens: Tokens,
    scratch: Scratch,
    done: Vec<u32>,
    /// True if a message may be posted now that could not be posted before.
    changed: bool,
    idle: IdleWait,
}

impl Runner {
    /// Returns a runner that cuts messages of at most `segment_bytes` and that returns an error when nothing
    /// moves for `limit`.
    pub fn new(segment_bytes: usize, limit: Duration) -> Self {
        Runner {
            segment_bytes,
            limit,
            sent_bytes: 0,
            received_bytes: 0,
            flights: Vec::new(),
            programs: Vec::new(),
            begun: 0,
            finished: Vec::new(),
            lost: Vec::new(),
            open_bytes: 0,
            sending: Vec::new(),
            receiving: Vec::new(),
            held: Vec::new(),
            stands_still: false,
            tokens: Tokens::default(),
            scratch: Scratch::default(),
            done: Vec::new(),
            changed: false,
            idle: IdleWait::default(),
        }
    }

    /// Returns the most bytes of a message in plans that [`schedule`](Self::schedule) cuts.
    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    /// Returns this rank's `plan` on elements of `dtype`, in the longest messages allowed.
    pub fn schedule(&self, plan: &Plan, dtype: DType) -> Arc<Schedule> {
        Arc::new(Schedule::of(plan, dtype, self.segment_bytes))
    }

    /// Begins to execute `schedule` on `memory`, which has the schedule's length and is given back when the
    /// schedule is finished. Moves nothing yet. Operations in flight together have different stamps.
    ///
    /// # Panics
    /// If the lengths differ, or the schedule receives and others may read the memory.
    pub fn begin(&mut self, schedule: &Arc<Schedule>, memory: Memory, stamp: Stamp, priority: i32) -> Ticket {
        self.begin_on_host(schedule, memory, None, stamp, priority)
    }

    /// Begins as [`begin`](Self::begin) does, with a plan in two halves. Between the halves `update` changes
    /// the sums of `own`, this rank's part in bytes.
    pub fn begin_updating(
        &mut self,
        schedule: &Arc<Schedule>,
        memory: Memory,
        (own, update): (Range<usize>, PartUpdate),
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        let halfway = Some(HalfwayUpdate::new(schedule, own, update));
        self.begin_on_host(schedule, memory, halfway, stamp, priority)
    }

    fn begin_on_host(
        &mut self,
        schedule: &Arc<Schedule>,
        mut memory: Memory,
        halfway: Option<HalfwayUpdate>,
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        assert_eq!(schedule.len_bytes, memory.bytes().len(), "a schedule runs on a buffer of its own length");
        assert!(memory.is_exclusive() || schedule.only_sends(), "a schedule that receives has its memory for itself");
        let base = memory.start();
        self.board(schedule, FlightMemory::Host(HostMemory { base, memory, halfway }), stamp, priority)
    }

    /// Begins as [`begin`](Self::begin) does, with the caller's own [`Endpoint`].
    pub fn begin_between(
        &mut self,
        schedule: &Arc<Schedule>,
        endpoint: Box<dyn Endpoint>,
        stamp: Stamp,
        priority: i32,
    ) -> Ticket {
        self.board(schedule, FlightMemory::Endpoint(endpoint), stamp, priority)
    }

    /// Begins to execute `steps` on `memory`, one after another, and gives it back when all are done.
    pub fn begin_program(&mut self, steps: Vec<ProgramStep>, memory: Memory, stamp: Stamp, priority: i32) -> Ticket {
        self.begun += 1;
        let (ticket, steps) = (self.begun, steps.into());
        let at = self.programs.partition_point(|program| program.priority >= priority);
        self.programs.insert(at, Program { ticket, stamp, priority, steps, flight: None, memory });
        self.changed = true;
        ticket
    }

    fn board(&mut self, schedule: &Arc<Schedule>, memory: FlightMemory, stamp: Stamp, priority: i32) -> Ticket {
        self.begun += 1;
        self.changed = true;
        self.idle = IdleWait::default();
        let mut flight = Flight::new(self.begun, Arc::clone(schedule), memory, (stamp, priority));
        self.open_bytes += flight.traffic_bytes();
        if flight.is_finished() {
            self.finished.push((self.begun, flight.take_memory()));
        } else {
            let at = self.flights.partition_point(|flight| flight.priority >= priority);
            self.flights.insert(at, flight);
        }
        self.begun
    }

    /// Posts the messages that can be posted now, and takes the messages that have arrived. Does not block.
    /// Returns true if it should be called again at once, as more may be posted.
    ///
    /// Returns an error if a message is not the expected one, or soon after `stop` is set. After an error
    /// every running operation is lost.
    pub fn advance(&mut self, transport: &mut dyn Transport, stop: &AtomicBool) -> Result<bool> {
        let outcome = self.step(transport, stop);
        if outcome.is_err() {
            self.end_all();
        }
        outcome
    }

    /// Waits a little, to be called if nothing has moved. Returns an error if nothing has moved for the
    /// limit.
    pub fn pause(&mut self, transport: &mut dyn Transport) -> Result<()> {
        if self.flights.is_empty() {
            // An operation that finished without a message has nothing to wait for.
            self.idle = IdleWait::default();
            let step = self.programs.iter_mut().find_map(Program::host_step);
            let is_in_vain = step.map_or(Ok(false), |step| step.wait(self.limit)).inspect_err(|_| self.end_all())?;
            if is_in_vain {
                // Another rank may need the rest of an earlier message, which this rank's library still
                // holds, before it can come. This is not called after each sleep, because the library gives
                // the core away.
                transport.progress();
            }
            return Ok(());
        }
        self.idle.wait(self.limit, self.open_bytes, transport).map_err(|waited| {
            let error = self.stuck(transport.rank(), waited);
            self.end_all();
            error
        })?;
        if !self.stands_still && self.idle.waited() > STANDSTILL && self.held.iter().any(Option::is_some) {
            (self.stands_still, self.changed) = (true, true);
        }
        Ok(())
    }

    /// Returns true if any operation is under way.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty() || !self.programs.is_empty()
    }

    /// Returns the operations that have finished since the last call, in the order in which they finished,
    /// each with its memory.
    pub fn take_finished(&mut self) -> std::vec::Drain<'_, (Ticket, Memory)> {
        self.finished.drain(..)
    }

    /// Ends all operations after an error. Returns the memory of all that have not been taken as finished, to
    /// be [given up](Memory::give_up): the transport may use it for ever.
    pub fn abandon(&mut self) -> Vec<Memory> {
        self.end_all();
        std::mem::take(&mut self.lost)
    }

    /// Keeps memory that others may use for ever.
    pub fn lose(&mut self, memory: Memory) {
        self.lost.push(memory);
    }

    /// Executes `schedule` on `memory` to its end. Blocks; collective. Others under way move on meanwhile.
    ///
    /// Errors as [`advance`](Self::advance) and [`pause`](Self::pause) do. After an error the runner has the
    /// memory.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn run(
        &mut self,
        schedule: &Arc<Schedule>,
        memory: &mut Memory,
        transport: &mut dyn Transport,
        stamp: Stamp,
        stop: &AtomicBool,
    ) -> Result<()> {
        let ticket = self.begin(schedule, std::mem::take(memory), stamp, i32::MAX);
        *memory = self.until(ticket, transport, stop)?;
        Ok(())
    }

    /// As [`run`](Self::run), with an endpoint of the caller's.
    pub fn run_between(
        &mut self,
        schedule: &Arc<Schedule>,
        endpoint: Box<dyn Endpoint + '_>,
        transport: &mut dyn Transport,
        stamp: Stamp,
        stop: &AtomicBool,
    ) -> Result<Memory> {
        // SAFETY: the lifetime alone is changed. At the return of this function the endpoint has been dropped
        // with its flight, or has been forgotten.
        let endpoint = unsafe { std::mem::transmute::<Box<dyn Endpoint + '_>, Box<dyn Endpoint>>(endpoint) };
        let ticket = self.board(schedule, FlightMemory::Endpoint(endpoint), stamp, i32::MAX);
        self.until(ticket, transport, stop)
    }

    /// Returns the operation's memory when it is finished. Others under way move on meanwhile.
    ///
    /// Errors as [`advance`](Self::advance) and [`pause`](Self::pause) do.
    pub fn until(&mut self, ticket: Ticket, transport: &mut dyn Transport, stop: &AtomicBool) -> Result<Memory> {
        loop {
            if let Some(at) = self.finished.iter().position(|(finished, _)| *finished == ticket) {
                return Ok(self.finished.remove(at).1);
            }
            if !self.advance(transport, stop)? {
                self.pause(transport)?;
            }
        }
    }

    fn step(&mut self, transport: &mut dyn Transport, stop: &AtomicBool) -> Result<bool> {
        if self.changed {
            self.changed = false;
            self.post(transport)?;
        }
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        transport.poll(&mut done)?;
        if done.is_empty() && stop.load(Ordering::Acquire) {
            return Err(Error::Stopped {});
        }
        if !done.is_empty() {
            self.idle = IdleWait::default();
            self.changed = true;
            done.iter().try_for_each(|token| self.complete(*token))?;
            self.programs.iter().for_each(Program::beat);
        }
        self.done = done;
        self.go_on()?;
        Ok(self.changed)
    }

    /// Goes on with the first program that can. Messages and the programs before it are looked at again before
    /// the next.
    fn go_on(&mut self) -> Result<()> {
        let (mut at, mut has_moved) = (0, false);
        while at < self.programs.len() && !has_moved {
            let Program { stamp, priority, flight, memory, steps, .. } = &mut self.programs[at];
            match steps.front_mut() {
                None => {
                    let Program { ticket, memory, .. } = self.programs.remove(at);
                    self.finished.push((ticket, memory));
                    has_moved = true;
                }
                Some(ProgramStep::Host(step)) => match step.poll()? {
                    StepProgress::Waits => at += 1,
                    StepProgress::Moved => has_moved = true,
                    StepProgress::Ended => drop(steps.pop_front()),
                },
                Some(ProgramStep::Plan(..)) if flight.is_some() => at += 1,
                Some(ProgramStep::Plan(schedule, range)) => {
                    assert_eq!(schedule.len_bytes, range.len(), "a schedule runs on a buffer of its own length");
                    assert!(range.end <= memory.bytes().len(), "a range lies in its memory");
                    let base = memory.start().wrapping_add(range.start);
                    let (schedule, stamp, priority) = (Arc::clone(schedule), *stamp, *priority);
                    let host = FlightMemory::Host(HostMemory { base, memory: Memory::Nothing, halfway: None });
                    let ticket = self.board(&schedule, host, stamp, priority);
                    self.programs[at].flight = Some(ticket);
                    if let Some(place) = self.finished.iter().position(|(finished, _)| *finished == ticket) {
                        // It has no message.
                        self.finished.remove(place);
                        self.land(ticket);
                    }
                    has_moved = true;
                }
            }
        }
        self.changed |= has_moved;
        Ok(())
    }

    /// Ends the step of the program that this flight belongs to. Returns false if it belongs to none.
    fn land(&mut self, flight: Ticket) -> bool {
        let program = self.programs.iter_mut().find(|program| program.flight == Some(flight));
        let is_found = program.is_some();
        if let Some(program) = program {
            program.flight = None;
            drop(program.steps.pop_front());
        }
        is_found
    }

    /// Posts every message whose turn has come.
    fn post(&mut self, transport: &mut dyn Transport) -> Result<()> {
        self.sending.resize(transport.size(), SendWindow::default());
        self.receiving.resize(transport.size(), 0);
        self.held.clear();
        self.held.resize(transport.size(), None);
        for flight in &mut self.flights {
            let schedule = Arc::clone(&flight.schedule);
            let Flight { ticket, stamp, priority, .. } = *flight;
            for (at, lane) in schedule.into.iter().enumerate() {
                while let Some(index) = lane.message(flight.into[at].next) {
                    if self.receiving[lane.peer] >= RECV_WINDOW && flight.into[at].inflight > 0 {
                        break;
                    }
                    let Some(place) = flight.incoming(index, &mut self.scratch)? else { break };
                    let (token, len) = (self.tokens.give(ticket, index, SendMode::Standard), flight.wire_bytes(index));
                    // SAFETY: the range lies in the data or in a room that is kept until the message is
                    // finished; nobody else touches it before: earlier messages on these segments are done or
                    // copied, later ones wait.
                    unsafe {
                        let into = std::ptr::slice_from_raw_parts_mut(place, len);
                        transport.recv(lane.peer, stamp, into, token)?;
                    }
                    self.receiving[lane.peer] += 1;
                    flight.into[at].posted(schedule.all[index as usize].len());
                }
            }
            for (at, lane) in schedule.out.iter().enumerate() {
                while let Some(index) = lane.message(flight.out[at].next) {
                    let held = &mut self.held[lane.peer];
                    if flight.waits(index) || (held.is_some_and(|ahead| ahead > priority) && !self.stands_still) {
                        break;
                    }
                    let ahead = &mut self.sending[lane.peer];
                    if ahead.is_full() && flight.out[at].inflight > 0 {
                        if !ahead.waits_for_peer() {
                            held.get_or_insert(priority);
                        }
                        break;
                    }
                    let len = flight.wire_bytes(index);
                    let place = &mut flight.out[at];
                    place.posted(schedule.all[index as usize].len());
                    let mode = ahead.send(len, place.left, &mut place.unasked);
                    let mut data = flight.outgoing(index, &mut self.scratch)?;
                    if mode == SendMode::Synchronous
                        && let Some((copy, finished_bytes)) = flight.copy_out(index, &mut self.scratch)?
                    {
                        data = copy;
                        self.open_bytes -= finished_bytes;
                        self.changed = true;
                    }
                    let token = self.tokens.give(ticket, index, mode);
                    // SAFETY: as above, or a copy that the flight keeps until the message is finished; a
                    // message that will change these segments waits for this one, or for the copy.
                    unsafe {
                        let data = std::ptr::slice_from_raw_parts(data, len);
                        transport.send(lane.peer, stamp, data, mode, token)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Marks a message as done by the transport, and finishes every message that can finish now.
    fn complete(&mut self, token: u32) -> Result<()> {
        let PostedMessage { ticket, index, mode, since_ns } = self.tokens.redeem(token);
        let at = self.flights.iter().position(|flight| flight.ticket == ticket);
        let at = at.expect("an operation stays until all its messages are done");
        let flight = &mut self.flights[at];
        let ((peer, is_sent), len) = (flight.leave_lane(index), flight.wire_bytes(index));
        let phase = if is_sent { Phase::Send } else { Phase::Receive };
        timeline::record(phase, || Name::Peer(peer), since_ns, len as u64);
        if is_sent {
            self.sending[peer].done(mode);
            self.stands_still &= self.held[peer].is_none_or(|held| flight.priority < held);
            self.sent_bytes += len as u64;
        } else {
            self.receiving[peer] -= 1;
            self.received_bytes += len as u64;
        }
        self.open_bytes -= flight.settle(index, &mut self.scratch)?;
        if flight.is_finished() {
            let memory = self.flights.remove(at).take_memory();
            if !self.land(ticket) {
                self.finished.push((ticket, memory));
            }
        }
        Ok(())
    }

    /// Returns the error that names the peers that this rank waits for, when nothing has moved for too long.
    fn stuck(&self, rank: usize, waited: Duration) -> Error {
        let mut peers: Vec<usize> = self.flights.iter().flat_map(Flight::awaited).collect();
        peers.sort_unstable();
        peers.dedup();
        let stamps: Vec<Stamp> = self.flights.iter().map(|flight| flight.stamp).collect();
        Error::PeerLost {
            peer: format!("one of rank(s) {peers:?}"),
            ranks: peers,
            cause: format!("nothing moved for {} s", waited.as_secs()),
            operation: format!("collective(s) {stamps:?}"),
            rank: Some(rank),
        }
    }

    /// Ends all operations. The transport may still use their memory, and buffers of the messages.
    fn end_all(&mut self) {
        let mut flights = std::mem::take(&mut self.flights);
        self.lost.extend(self.finished.drain(..).map(|(_, memory)| memory));
        self.lost.extend(flights.iter_mut().map(Flight::take_memory));
        std::mem::forget(flights);
        self.lost.extend(self.programs.drain(..).map(|program| program.memory));
        self.open_bytes = 0;
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.abandon().into_iter().for_each(|memory| memory.give_up(&Error::Stopped {}));
    }
}
