//! The operation that measures the hosts' links again: nobody calls it. Rank 0 orders it when sums of all
//! ranks have become slow (`pace`), each rank's control thread then calls it, and it launches as any other.
//!
//! The comm thread begins it when nothing else of all ranks is under way, and begins nothing else of all
//! ranks until it is done. Every operation that launches later, and none that launched earlier, goes by what
//! it has found. It blocks no thread: what is of a process set goes on.

use std::sync::Arc;

use parking_lot::Mutex;

use ringpull_base::{Error, Result};

use crate::communicator::{Communicator, LinkGames, LinksFound};
use crate::interpreter::Ticket;
use crate::progress::job::Job;
use crate::progress::messages::{Launch, Transfer};

/// What the last measurement has found, and the number of the operation, until the control thread takes it.
pub(super) type News = Mutex<Option<(LinksFound, u32)>>;

/// One rank's part.
pub(super) struct Remeasure {
    games: LinkGames,
    news: Arc<News>,
}

impl Remeasure {
    pub(super) fn new(news: Arc<News>) -> Self {
        Remeasure { games: LinkGames::default(), news }
    }
}

impl Job for Remeasure {
    fn transfer(&self) -> Transfer {
        Transfer::Messages { priority: i32::MAX }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<Ticket>> {
        let ticket = self.games.advance(comm, launch.number)?;
        if ticket.is_none() {
            *self.news.lock() = Some((self.games.found(comm), launch.number));
        }
        Ok(ticket)
    }

    fn run(&mut self, _comm: &mut Communicator, _launch: &Launch) -> Result<()> {
        Err(Error::bug("links are measured by messages"))
    }

    fn is_soon_finished(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn fail(self: Box<Self>, _fault: &Error) {}
}
