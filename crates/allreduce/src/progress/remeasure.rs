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

/// The last measurement.
#[derive(Debug, Clone)]
pub(super) struct LinkNews {
    pub(super) found: LinksFound,
    /// The number of the operation.
    pub(super) number: u32,
}

/// The last measurement, once there was one.
pub(super) type News = Mutex<Option<LinkNews>>;

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
            *self.news.lock() = Some(LinkNews { found: self.games.found(comm), number: launch.number });
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

/// What has become of the hosts' links, of ranks of these names.
pub(super) fn in_words(found: &LinksFound, number: u32, name: impl Fn(usize) -> String) -> String {
    let fastest = found.rates.iter().map(|rates| rates.sends.max(rates.receives)).fold(0.0, f64::max);
    let mbit = |rate: f64| format!("{:.0} Mbit/s", 8.0 * rate);
    let slow =
        found.rates.iter().zip(&found.ranks).filter(|(rates, _)| found.differ && 1.25 * rates.slower() < fastest);
    let slow: Vec<String> = slow
        .map(|(rates, rank)| {
            format!("the host of {} sends {}, receives {}", name(*rank), mbit(rates.sends), mbit(rates.receives))
        })
        .collect();
    let (seconds, fastest) = (found.took.as_secs_f64(), mbit(fastest));
    if slow.is_empty() {
        return format!(
            "ringpull: the hosts' links are alike again, about {fastest}: sums go in equal parts from operation \
             {number} on (measured in {seconds:.1} s)"
        );
    }
    format!(
        "ringpull: a link is slow: {}, the fastest {fastest}; sums go in parts that suit the links from operation \
         {number} on (measured in {seconds:.1} s)",
        slow.join("; ")
    )
}
