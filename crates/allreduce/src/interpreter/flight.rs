//! A schedule under way on one buffer.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use ringpull_base::Result;
use ringpull_base::timeline::{self, Phase};
use ringpull_kernels::reduce;
use ringpull_plan::{Action, Lane, Schedule};

use crate::interpreter::ahead::UnaskedBytes;
use crate::interpreter::endpoint::{Endpoint, Room};
use crate::interpreter::halfway::HalfwayUpdate;
use crate::interpreter::memory::Memory;
use crate::interpreter::scratch::Scratch;
use crate::transport::Stamp;

/// The number of an operation that was begun. Later operations have higher tickets.
pub type Ticket = u64;

/// The progress of a lane.
#[derive(Clone, Copy, Default)]
pub(super) struct LaneProgress {
    pub(super) inflight: usize,
    /// The bytes that were sent without asking, if it is a lane that sends.
    pub(super) unasked: UnaskedBytes,
    /// Bytes of the messages that are still to be posted, in either direction.
    pub(super) left: usize,
    /// The next message of the lane's queue to be posted.
    pub(super) next: usize,
}

impl LaneProgress {
    fn of(lane: &Lane) -> Self {
        LaneProgress { left: lane.bytes, ..LaneProgress::default() }
    }

    pub(super) fn posted(&mut self, len: usize) {
        self.left -= len;
        self.next += 1;
        self.inflight += 1;
    }
}

/// The memory of an operation's bytes.
pub(super) enum FlightMemory {
    /// In a buffer.
    Host(HostMemory),
    /// At the addresses that the endpoint returns.
    Endpoint(Box<dyn Endpoint>),
}

/// A buffer that begins at `base`. It is in `memory`, or in memory that the caller keeps borrowed until the
/// operation is done. Sums of this rank's part may have to be updated before other ranks get them.
pub(super) struct HostMemory {
    pub(super) base: *mut u8,
    pub(super) memory: Memory,
    pub(super) halfway: Option<HalfwayUpdate>,
}

/// An operation under way.
pub(super) struct Flight {
    pub(super) ticket: Ticket,
    pub(super) priority: i32,
    pub(super) stamp: Stamp,
    memory: FlightMemory,
    pub(super) schedule: Arc<Schedule>,
    /// The progress of each lane that sends, and of each that receives.
    pub(super) out: Vec<LaneProgress>,
    pub(super) into: Vec<LaneProgress>,
    /// For each message, the number of unfinished messages that it waits for. The message itself counts as
    /// unfinished until the transport is done with it or has a copy.
    pending: Vec<u32>,
    unfinished: usize,
    /// Buffers for messages that arrive and are not added yet, and for copies of messages that are sent.
    rooms: HashMap<u32, Room>,
}

impl Flight {
    pub(super) fn new(
        ticket: Ticket,
        schedule: Arc<Schedule>,
        memory: FlightMemory,
        (stamp, priority): (Stamp, i32),
    ) -> Self {
        Flight {
            ticket,
            priority,
            stamp,
            memory,
            out: schedule.out.iter().map(LaneProgress::of).collect(),
            into: schedule.into.iter().map(LaneProgress::of).collect(),
            pending: schedule.pending.clone(),
            unfinished: schedule.all.len(),
            rooms: HashMap::new(),
            schedule,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    /// The memory that the operation took.
    pub(super) fn take_memory(&mut self) -> Memory {
        match &mut self.memory {
            FlightMemory::Host(host) => std::mem::take(&mut host.memory),
            FlightMemory::Endpoint(endpoint) => endpoint.take_memory(),
        }
    }

    /// Returns true if a message must not be posted yet, because it would send bytes that are not there, or
    /// overwrite bytes that are still needed.
    pub(super) fn waits(&self, index: u32) -> bool {
        self.pending[index as usize] > 1
    }

    /// The bytes of a message on the wire.
    pub(super) fn wire_bytes(&self, index: u32) -> usize {
        let message = &self.schedule.all[index as usize];
        match &self.memory {
            FlightMemory::Host(..) => message.len(),
            FlightMemory::Endpoint(endpoint) => endpoint.wire_bytes(message),
        }
    }

    /// The bytes of all messages on the wire.
    pub(super) fn traffic_bytes(&self) -> usize {
        match &self.memory {
            FlightMemory::Host(..) => self.schedule.traffic_bytes,
            FlightMemory::Endpoint(endpoint) => {
                self.schedule.all.iter().map(|message| endpoint.wire_bytes(message)).sum()
            }
        }
    }

    /// Returns the address of the bytes of a message to send.
    pub(super) fn outgoing(&mut self, index: u32, scratch: &mut Scratch) -> Result<*const u8> {
        let message = &self.schedule.all[index as usize];
        match &mut self.memory {
            FlightMemory::Host(HostMemory { base, halfway, .. }) => {
                // SAFETY: `start` lies in the buffer.
                let start = unsafe { base.add(message.start) };
                if let Some(halfway) = halfway
                    && halfway.is_due(index, message)
                {
                    // SAFETY: the range lies in the data. Every earlier message that touches it is finished,
                    // and later ones wait for this one, which has not been posted.
                    halfway.update(message, unsafe { std::slice::from_raw_parts_mut(start, message.len()) })?;
                }
                Ok(start.cast_const())
            }
            FlightMemory::Endpoint(endpoint) => endpoint.outgoing(message, scratch),
        }
    }

    /// Returns the address for the bytes of a message to receive, or `None` if the bytes belong into a part
    /// of the buffer that is still in use.
    pub(super) fn incoming(&mut self, index: u32, scratch: &mut Scratch) -> Result<Option<*mut u8>> {
        let message = &self.schedule.all[index as usize];
        let is_copy = message.action == Action::Copy;
        let is_in_place = match &self.memory {
            FlightMemory::Host(..) => is_copy,
            FlightMemory::Endpoint(endpoint) => is_copy && endpoint.copies_in_place(),
        };
        if is_in_place && self.waits(index) {
            return Ok(None);
        }
        let peer = self.schedule.into[message.lane as usize].peer;
        let (start, room) = match &mut self.memory {
            // SAFETY: `start` lies in the buffer.
            FlightMemory::Host(HostMemory { base, .. }) if is_copy => {
                return Ok(Some(unsafe { base.add(message.start) }));
            }
            FlightMemory::Host(..) => {
                let mut room = scratch.take(message.len());
                (room.bytes_mut().as_mut_ptr(), Room::Own(room))
            }
            FlightMemory::Endpoint(endpoint) => {
                let start = endpoint.incoming(message, peer, scratch)?;
                (start, Room::Given(start))
            }
        };
        self.rooms.insert(index, room);
        Ok(Some(start))
    }

    /// Takes a message off its lane when the transport is done with it. Returns the peer, and true if the
    /// message was sent.
    pub(super) fn leave_lane(&mut self, index: u32) -> (usize, bool) {
        let message = &self.schedule.all[index as usize];
        let is_sent = message.action == Action::Send;
        let (lanes, places) =
            if is_sent { (&self.schedule.out, &mut self.out) } else { (&self.schedule.into, &mut self.into) };
        places[message.lane as usize].inflight -= 1;
        (lanes[message.lane as usize].peer, is_sent)
    }

    /// Copies the bytes of a message to send, so that messages that wait for it go on now and not when the
    /// transport is done with it. Returns the copy's address, and the bytes of all messages that this
    /// finished. Returns `None` if no message waits, or the bytes are not in host memory.
    pub(super) fn copy_out(&mut self, index: u32, scratch: &mut Scratch) -> Result<Option<(*const u8, usize)>> {
        let FlightMemory::Host(HostMemory { base, .. }) = self.memory else { return Ok(None) };
        if self.schedule.dependents(index).is_empty() {
            return Ok(None);
        }
        let message = &self.schedule.all[index as usize];
        let len = message.len();
        let mut room = scratch.take(len);
        // SAFETY: the range lies in the data, and what will change it waits for this message.
        let data = unsafe { std::slice::from_raw_parts(base.add(message.start), len) };
        room.bytes_mut()[..len].copy_from_slice(data);
        let copy = room.bytes().as_ptr();
        self.rooms.insert(index, Room::Own(room));
        Ok(Some((copy, self.release(index, scratch)?)))
    }

    /// Marks a message as done by the transport. A sent message is finished. A received message is finished
    /// as soon as those before it are done. Returns the bytes of all messages that this finished.
    pub(super) fn settle(&mut self, index: u32, scratch: &mut Scratch) -> Result<usize> {
        let message = &self.schedule.all[index as usize];
        if message.action != Action::Send {
            return self.release(index, scratch);
        }
        self.unfinished -= 1;
        let len = self.wire_bytes(index);
        if let FlightMemory::Endpoint(endpoint) = &mut self.memory {
            endpoint.sent(&self.schedule.all[index as usize], scratch);
        }
        match self.rooms.remove(&index) {
            Some(Room::Own(copy)) => {
                scratch.put(copy);
                Ok(len)
            }
            _ => Ok(len + self.release(index, scratch)?),
        }
    }

    /// Counts a message as done for the messages that wait for it, and finishes the received messages that
    /// can finish now. Returns their bytes.
    fn release(&mut self, index: u32, scratch: &mut Scratch) -> Result<usize> {
        let mut finished_bytes = 0;
        self.pending[index as usize] -= 1;
        let mut ready = if self.pending[index as usize] == 0 { vec![index] } else { Vec::new() };
        while let Some(index) = ready.pop() {
            if self.schedule.all[index as usize].action != Action::Send {
                self.finish(index, scratch)?;
                finished_bytes += self.wire_bytes(index);
                self.unfinished -= 1;
            }
            for dependent in self.schedule.dependents(index) {
                let pending = &mut self.pending[*dependent as usize];
                *pending -= 1;
                if *pending == 0 {
                    ready.push(*dependent);
                }
            }
        }
        Ok(finished_bytes)
    }

    /// Adds or copies the bytes that have arrived.
    fn finish(&mut self, index: u32, scratch: &mut Scratch) -> Result<()> {
        let message = &self.schedule.all[index as usize];
        if message.action == Action::Copy && matches!(self.memory, FlightMemory::Host(..)) {
            // The bytes have arrived where they belong.
            return Ok(());
        }
        let room = self.rooms.remove(&index).expect("a message has a room from its posting on");
        let _span = timeline::span(Phase::Reduce, || "a segment").bytes(message.len());
        match (room, &mut self.memory) {
            (Room::Own(room), FlightMemory::Host(HostMemory { base, .. })) => {
                // SAFETY: the range lies in the data, and every earlier message that touches it is finished.
                let sum = unsafe { std::slice::from_raw_parts_mut(base.add(message.start), message.len()) };
                let Schedule { reduction, dtype, .. } = *self.schedule;
                reduce::reduce_assign(reduction, dtype, sum, &room.bytes()[..message.len()]);
                scratch.put(room);
                Ok(())
            }
            (Room::Given(place), FlightMemory::Endpoint(endpoint)) => {
                let peer = self.schedule.into[message.lane as usize].peer;
                endpoint.received(message, peer, place, scratch)
            }
            _ => unreachable!("in host memory a room is the flight's own, otherwise it is the endpoint's"),
        }
    }

    /// The peers of messages that are in flight.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        let out = self.schedule.out.iter().zip(&self.out);
        let into = self.schedule.into.iter().zip(&self.into);
        out.chain(into).filter(|(_, place)| place.inflight > 0).map(|(lane, _)| lane.peer)
    }
}
