//! A helper's part in a sum. Rank 0 asks for the job, and no caller submits it.

use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{Buffer, Error, Result};

use crate::communicator::{BegunOperation, Communicator, HelpRequest};
use crate::interpreter::Memory;
use crate::progress::job::Job;
use crate::progress::messages::{Launch, Transfer};

/// The number of buffers that are kept for later sums of equal length. It is the number of sums under way at
/// once.
const MOST_KEPT: usize = 32;

/// The memory of sums that are done. Each buffer is as long as the workers' buffers, but only the pages of
/// this helper's part are ever touched.
pub(super) type Rooms = Mutex<Vec<Buffer>>;

/// A helper's part in one sum.
pub(super) struct Help {
    asked: HelpRequest,
    rooms: Arc<Rooms>,
    was_begun: bool,
}

impl Help {
    pub(super) fn new(asked: HelpRequest, rooms: Arc<Rooms>) -> Self {
        Help { asked, rooms, was_begun: false }
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

    fn advance(&mut self, comm: &mut Communicator, _launch: &Launch) -> Result<Option<BegunOperation>> {
        if std::mem::replace(&mut self.was_begun, true) {
            return Ok(None);
        }
        let room = self.take_room();
        Ok(Some(comm.begin_help(&self.asked, Memory::Own(room))))
    }

    fn receive(&mut self, memory: Memory) {
        let mut rooms = self.rooms.lock();
        if rooms.len() == MOST_KEPT {
            // The sums of this length may have ended long ago.
            rooms.remove(0);
        }
        rooms.push(memory.into_buffer());
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn fail(self: Box<Self>, _fault: &Error) {}
}
