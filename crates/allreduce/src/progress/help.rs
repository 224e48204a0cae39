//! A helper's part in a sum: a job that rank 0 asks for and that no caller submits.
#![allow(unsafe_code)]

use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{Buffer, Error, Result};

use crate::communicator::{Asked, Communicator};
use crate::interpreter::Ticket;
use crate::progress::job::Job;
use crate::progress::messages::{Launch, Transfer};

/// The number of buffers kept for later sums of their lengths: the number of sums under way at once.
const MOST_KEPT: usize = 32;

/// Memory of sums that are done. It is as long as the workers' buffers, but only the pages of this helper's
/// part are ever touched.
pub(super) type Rooms = Mutex<Vec<Buffer>>;

/// A helper's part in one sum.
pub(super) struct Help {
    asked: Asked,
    rooms: Arc<Rooms>,
    room: Option<Buffer>,
}

impl Help {
    pub(super) fn new(asked: Asked, rooms: Arc<Rooms>) -> Self {
        Help { asked, rooms, room: None }
    }

    fn take_room(&self) -> Buffer {
        let len_bytes = self.asked.len_bytes();
        let mut rooms = self.rooms.lock();
        let kept = rooms.iter().position(|room| room.bytes().len() == len_bytes);
        kept.map_or_else(|| Buffer::zeroed(len_bytes), |at| rooms.remove(at))
    }
}

impl Job for Help {
    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: self.asked.priority() }
    }

    fn advance(&mut self, comm: &mut Communicator, _launch: &Launch) -> Result<Option<Ticket>> {
        if self.room.is_some() {
            return Ok(None);
        }
        let mut room = self.take_room();
        // SAFETY: the job owns the memory, and is kept until the ticket is reported; if it fails, the memory
        // is kept for ever.
        let ticket = unsafe { comm.begin_help(&self.asked, room.bytes_mut()) };
        self.room = Some(room);
        Ok(Some(ticket))
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Err(Error::bug("a helper's part in a sum goes by messages"))
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut rooms = self.rooms.lock();
        if rooms.len() == MOST_KEPT {
            // Its sums may have ended long ago.
            rooms.remove(0);
        }
        rooms.extend(self.room);
        Ok(())
    }

    fn fail(self: Box<Self>, _fault: &Error) {
        // The transport may still use it.
        std::mem::forget(self.room);
    }
}
