//! A schedule under way on one buffer.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use ringpull_base::Result;
use ringpull_base::timeline::{self, Phase};
use ringpull_kernels::reduce;
use ringpull_plan::{Action, Lane, Schedule};

use crate::interpreter::ahead::Unasked;
use crate::interpreter::elsewhere::{Elsewhere, Room};
use crate::interpreter::scratch::Scratch;
use crate::transport::Stamp;

/// An operation that was begun. Tickets ascend.
pub type Ticket = u64;

/// How far the messages of a lane have been posted.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) inflight: usize,
    /// What has been sent without asking, if it is a lane that sends.
    pub(super) unasked: Unasked,
    /// Bytes of the messages that are still to be posted, in either direction.
    pub(super) left: usize,
    /// The next message of its queue to be posted.
    pub(super) next: usize,
}

impl Place {
    fn of(lane: &Lane) -> Self {
        Place { left: lane.bytes, ..Place::default() }
    }

    pub(super) fn posted(&mut self, len: usize) {
        self.left -= len;
        self.next += 1;
        self.inflight += 1;
    }
}

/// An operation under way.
pub(super) struct Flight {
    pub(super) ticket: Ticket,
    pub(super) priority: i32,
    pub(super) stamp: Stamp,
    pub(super) base: *mut u8,
    pub(super) schedule: Arc<Schedule>,
    /// The places of the schedule's lanes.
    pub(super) out: Vec<Place>,
    pub(super) into: Vec<Place>,
    /// For each message, how many of those that it waits for are not finished; itself counts until it may be counted as done: when
    /// the transport is done with it, or has a copy.
    pending: Vec<u32>,
    unfinished: usize,
    /// Where the bytes of messages arrive that are to be added and are not yet, and copies of what is sent.
    rooms: HashMap<u32, Room>,
    /// Who adds up, if the processor may not touch the memory.
    elsewhere: Option<Box<dyn Elsewhere>>,
}

impl Flight {
    pub(super) fn new(
        ticket: Ticket,
        schedule: Arc<Schedule>,
        base: *mut u8,
        (stamp, priority): (Stamp, i32),
        elsewhere: Option<Box<dyn Elsewhere>>,
    ) -> Self {
        Flight {
            ticket,
            priority,
            stamp,
            base,
            out: schedule.out.iter().map(Place::of).collect(),
            into: schedule.into.iter().map(Place::of).collect(),
            pending: schedule.pending.clone(),
            unfinished: schedule.all.len(),
            rooms: HashMap::new(),
            elsewhere,
            schedule,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    /// Whether a message must not be posted yet, as it would send what is not there, or overwrite what is still needed.
    pub(super) fn waits(&self, index: u32) -> bool {
        self.pending[index as usize] > 1
    }

    /// Makes a room for what a message brings to be added. Returns its address.
    pub(super) fn make_room(&mut self, index: u32, scratch: &mut Scratch) -> Result<*mut u8> {
        let len = self.schedule.all[index as usize].len();
        let (start, room) = if let Some(owner) = &mut self.elsewhere {
            let start = owner.room(len)?;
            (start, Room::Elsewhere(start))
        } else {
            let mut room = scratch.take(len);
            (room.bytes_mut().as_mut_ptr(), Room::Here(room))
        };
        self.rooms.insert(index, room);
        Ok(start)
    }

    /// Takes a message, with which the transport is done, off its lane. Returns the peer, whether it was sent, and its bytes.
    pub(super) fn leave_lane(&mut self, index: u32) -> (usize, bool, usize) {
        let message = &self.schedule.all[index as usize];
        let is_sent = message.action == Action::Send;
        let (lanes, places) =
            if is_sent { (&self.schedule.out, &mut self.out) } else { (&self.schedule.into, &mut self.into) };
        places[message.lane as usize].inflight -= 1;
        (lanes[message.lane as usize].peer, is_sent, message.len())
    }

    /// Copies what a message is to send, so that what waits for this goes on now and not when the transport is done with it. Returns the
    /// copy's address, and the bytes of all that this finished; none if nothing waits, or the processor may not touch the memory.
    pub(super) fn copy_out(&mut self, index: u32, scratch: &mut Scratch) -> Result<Option<(*mut u8, usize)>> {
        if self.elsewhere.is_some() || self.schedule.dependents(index).is_empty() {
            return Ok(None);
        }
        let message = &self.schedule.all[index as usize];
        let len = message.len();
        let mut room = scratch.take(len);
        // SAFETY: the range lies in the data, and what will change it waits for this message.
        let data = unsafe { std::slice::from_raw_parts(self.base.add(message.start), len) };
        room.bytes_mut()[..len].copy_from_slice(data);
        let copy = room.bytes_mut().as_mut_ptr();
        self.rooms.insert(index, Room::Here(room));
        Ok(Some((copy, self.release(index, scratch)?)))
    }

    /// Takes note that the transport is done with a message. What was sent is finished; what was received is as soon as those before it are
    /// done. Returns the bytes of all that this finished.
    pub(super) fn settle(&mut self, index: u32, scratch: &mut Scratch) -> Result<usize> {
        let message = &self.schedule.all[index as usize];
        let len = message.len();
        if message.action != Action::Send {
            return self.release(index, scratch);
        }
        self.unfinished -= 1;
        match self.rooms.remove(&index) {
            None => Ok(len + self.release(index, scratch)?),
            Some(Room::Here(copy)) => {
                scratch.put(copy);
                Ok(len)
            }
            Some(Room::Elsewhere(_)) => unreachable!("copies are host memory"),
        }
    }

    /// Counts a message as done for those that wait for it, and finishes all that was received and that this allows to finish. Returns
    /// its bytes.
    fn release(&mut self, index: u32, scratch: &mut Scratch) -> Result<usize> {
        let mut finished_bytes = 0;
        self.pending[index as usize] -= 1;
        let mut ready = if self.pending[index as usize] == 0 { vec![index] } else { Vec::new() };
        while let Some(index) = ready.pop() {
            if self.schedule.all[index as usize].action != Action::Send {
                self.finish(index, scratch)?;
                finished_bytes += self.schedule.all[index as usize].len();
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

    /// Adds what has arrived to be added.
    fn finish(&mut self, index: u32, scratch: &mut Scratch) -> Result<()> {
        let message = &self.schedule.all[index as usize];
        if message.action != Action::Reduce {
            return Ok(());
        }
        let (start, len) = (message.start, message.len());
        let room = self.rooms.remove(&index).expect("what arrives to be added has a room from when it is posted");
        let _span = timeline::span(Phase::Reduce, || "a segment").bytes(len);
        match (room, &mut self.elsewhere) {
            (Room::Here(room), _) => {
                // SAFETY: the range lies in the data, and every earlier message that touches it is finished.
                let sum = unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) };
                reduce::add_assign(self.schedule.dtype, sum, &room.bytes()[..len]);
                scratch.put(room);
                Ok(())
            }
            (Room::Elsewhere(room), Some(owner)) => owner.add(start, room, len),
            (Room::Elsewhere(_), None) => unreachable!("an owner has given this room"),
        }
    }

    /// The peers of messages that are in flight.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        let out = self.schedule.out.iter().zip(&self.out);
        let into = self.schedule.into.iter().zip(&self.into);
        out.chain(into).filter(|(_, place)| place.inflight > 0).map(|(lane, _)| lane.peer)
    }
}
