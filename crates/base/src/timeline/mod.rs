//! The timeline of this process: spans of time, which are written as a Chrome trace when the process ends.
//!
//! `RINGPULL_TIMELINE=FILE` switches it on. Every thread gathers its spans in its own memory. The file is
//! also written after a fault. [`Phase`] lists the activities of all crates: code that waits, packs, sends or
//! updates records this with a [`span`]. Without a timeline a span costs one relaxed load of a flag.
//! [`trace`] writes the file. `ringpull top` merges the files of a job's ranks and shows where a step's time
//! went.

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
        /// A step of training, as the training program reports it.
        Step = "step",
        /// Computation that the training program reports.
        Compute = "compute",
        /// A call of push or `push_pull`, from entry to return.
        Push = "push",
        /// A caller blocked in pull, in a barrier or in reading an output.
        Wait = "wait",
        /// A collective on the comm thread.
        Collective = "collective",
        /// Copying gradients to the memory in which they will be summed.
        Pack = "pack",
        /// Copying sums or values to their outputs.
        Unpack = "unpack",
        /// An optimizer or updater at work.
        Update = "update",
        /// Sending a message, from its posting until the transport has sent it.
        Send = "send",
        /// Receiving a message, from the posting of the receive until the message has arrived.
        Receive = "receive",
        /// Adding a received segment.
        Reduce = "reduce",
        /// A request to a server, from its sending until the answer has arrived.
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
