//! The timeline of this process: spans of time, written as a Chrome trace at its end.
//!
//! `RINGPULL_TIMELINE=FILE` switches it on. Every thread gathers its spans in its own memory; the file is
//! written when the process ends, also after a fault. [`Phase`] is the vocabulary of the whole crate: who
//! waits, packs, sends or updates says so with a [`span`], which costs one relaxed load of a flag while
//! nobody asked for a timeline. [`trace`] is the file; `ringpull top` merges the files of a job's ranks and
//! says where a step's time went.

pub mod clock;
mod recorder;
pub mod trace;

use std::fmt;

use crate::Key;
use crate::named::named;

pub use recorder::{clock_ns, flush, introduce, is_on, now_ns, record, resume, set_clock, span, start, stop};

named! {
    /// The activity in a span of time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Phase {
        /// A step of training, as the program that trains sees it.
        Step = "step",
        /// Computing that the program that trains reports.
        Compute = "compute",
        /// A call of push or `push_pull`, from entry to return.
        Push = "push",
        /// A caller blocked in pull, in a barrier or in reading an output.
        Wait = "wait",
        /// A collective on the comm thread.
        Collective = "collective",
        /// Copying gradients to the memory in which they are summed.
        Pack = "pack",
        /// Copying sums or values to their outputs.
        Unpack = "unpack",
        /// An optimizer or updater at work.
        Update = "update",
        /// A message that is sent, from its posting until the transport is done with it.
        Send = "send",
        /// A message that is awaited, from its posting until it has arrived.
        Receive = "receive",
        /// Adding a received segment.
        Reduce = "reduce",
        /// A request to a server, from its leaving until the answer has come.
        Request = "request",
        /// A server at work on a request.
        Serve = "serve",
    }
}

impl Phase {
    /// Returns true if several spans of one thread may overlap without being nested.
    fn overlaps(self) -> bool {
        matches!(self, Phase::Collective | Phase::Send | Phase::Receive | Phase::Request)
    }
}

/// The name of a wait in which a thread was blocked in its framework, for the results of its calls. Code that
/// learns of such a wait records it, if necessary on another thread.
pub const RESULTS: &str = "results";

/// The subject of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A key of a store.
    Key(Key),
    /// A peer, by its rank.
    Peer(usize),
    /// A word.
    Word(&'static str),
    /// Any text.
    Text(String),
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Key(Key::Int(number)) => write!(out, "{number}"),
            // The name is written without the quotes that errors have.
            Name::Key(Key::Str(name)) => out.write_str(name),
            Name::Peer(rank) => write!(out, "rank {rank}"),
            Name::Word(word) => out.write_str(word),
            Name::Text(text) => out.write_str(text),
        }
    }
}

impl From<&Key> for Name {
    fn from(key: &Key) -> Self {
        Name::Key(key.clone())
    }
}

impl From<&'static str> for Name {
    fn from(word: &'static str) -> Self {
        Name::Word(word)
    }
}

/// A span that ends when this is dropped.
#[must_use = "the span ends when this is dropped"]
#[derive(Debug)]
pub struct Span(Option<OpenSpan>);

#[derive(Debug)]
struct OpenSpan {
    phase: Phase,
    name: Name,
    since_ns: u64,
    bytes: u64,
}

impl Span {
    /// Sets the number of payload bytes of the span.
    pub fn bytes(mut self, bytes: usize) -> Self {
        if let Some(open) = &mut self.0 {
            open.bytes = bytes as u64;
        }
        self
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(OpenSpan { phase, name, since_ns, bytes }) = self.0.take() {
            record(phase, || name, since_ns, bytes);
        }
    }
}
