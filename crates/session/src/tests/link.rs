//! The two ends of a session over a network in memory, for tests and fuzz targets.
//!
//! The listener's end is number 0. Each direction carries bytes in order and delays them for any time. A
//! connection may break at any time at the other end, and the bytes on their way to that end are then lost.
//! That end begins a new handshake, while the listener's end may still read from the old connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};

use crate::frames::{Frames, Incoming, Outgoing};
use crate::{Frame, Limits};

const LIMITS: Limits = Limits { header: 4, payload: 4, waiting_bytes: 0, waiting: 0, unwritten_bytes: 0 };

/// An event that may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvent {
    /// This end sends its next frame.
    Send(usize),
    /// The system takes at most this many bytes from this end.
    Write(usize, usize),
    /// At most this many bytes arrive at this end.
    Arrive(usize, usize),
    /// This end confirms what has come, without a frame.
    Confirm(usize),
    /// The end that connects finds the connection broken.
    Break,
    /// The end that connects greets the listener, which begins another connection.
    Greet,
    /// The end that connects has read the answer, and begins this connection.
    Welcome,
}

/// The state of the end that connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Leaf {
    Detached,
    /// The listener had received this many frames when it answered.
    Greeted(u64),
    Attached,
}

#[derive(Debug, Default)]
struct LinkEnd {
    frames: Frames,
    out: Outgoing,
    input: Incoming,
}

/// Two ends, and the bytes between them.
pub struct Link {
    ends: [LinkEnd; 2],
    /// True if the listener has had a connection.
    is_admitted: bool,
    leaf: Leaf,
    /// Bytes on their way to each end.
    flying: [VecDeque<u8>; 2],
    sent: [u64; 2],
}

/// The parts of a link's state on which its next moves depend.
pub type Snapshot = (bool, String, [VecDeque<u8>; 2], [u64; 2]);

/// A socket that takes this many bytes.
struct BoundedSocket<'a>(usize, &'a mut VecDeque<u8>);

impl Write for BoundedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(self.0);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.0 -= count;
        self.1.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl LinkEnd {
    fn begin(&mut self, theirs: u64) {
        self.frames.begin(theirs).expect("this end has sent what the other has received");
        self.out = Outgoing::default();
        self.input = Incoming::default();
    }
}

impl Default for Link {
    fn default() -> Self {
        let (ends, flying, sent) = Default::default();
        Link { ends, is_admitted: false, leaf: Leaf::Detached, flying, sent }
    }
}

impl Link {
    /// Makes a move, if it can be made now.
    ///
    /// # Panics
    ///
    /// If a frame arrives twice, not at all before a later one, or changed, or an end refuses what the other
    /// says.
    pub fn make(&mut self, next: LinkEvent) -> bool {
        match next {
            LinkEvent::Send(end) => {
                let number = self.sent[end];
                let Frame { header, payload } = frame(end, number);
                self.sent[end] += 1;
                self.ends[end].frames.push(Frame { header, payload: payload.into() });
            }
            LinkEvent::Write(end, most) => {
                let LinkEnd { frames, out, .. } = &mut self.ends[end];
                let has_more = !out.is_empty() || frames.uncomposed() > 0;
                if !self.is_attached(end) || !has_more || most == 0 {
                    return false;
                }
                let mut socket = BoundedSocket(most, &mut self.flying[1 - end]);
                let LinkEnd { frames, out, .. } = &mut self.ends[end];
                while !out.is_empty() || frames.compose(out) {
                    if let Err(cause) = out.write(&mut socket) {
                        assert_eq!(cause.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            LinkEvent::Arrive(end, most) => {
                let mut left = most.min(self.flying[end].len());
                if !self.is_attached(end) || left == 0 {
                    return false;
                }
                let flying = &mut self.flying[end];
                let mut read = |into: &mut Vec<u8>| {
                    let count = left.min(into.capacity() - into.len());
                    if count == 0 {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    left -= count;
                    into.extend(flying.drain(..count));
                    Ok(count)
                };
                let LinkEnd { frames, input, .. } = &mut self.ends[end];
                while let Some((prefix, came)) = input.next(&LIMITS, &mut read).expect("the other end keeps to limits")
                {
                    let number = frames.received;
                    if frames.look_at(prefix).expect("the other end keeps to the protocol") {
                        assert_eq!(came, frame(1 - end, number), "frame {number} at end {end}");
                        frames.receive(came.size());
                    }
                }
                assert!(self.ends[end].frames.received <= self.sent[1 - end]);
            }
            LinkEvent::Confirm(end) => {
                let is_attached = self.is_attached(end);
                let LinkEnd { frames, out, .. } = &mut self.ends[end];
                if !is_attached || !out.is_empty() || !frames.is_unconfirmed() {
                    return false;
                }
                frames.compose_control(false, out);
            }
            LinkEvent::Break => {
                if self.leaf == Leaf::Detached {
                    return false;
                }
                self.leaf = Leaf::Detached;
                self.flying[1].clear();
            }
            LinkEvent::Greet => {
                if self.leaf != Leaf::Detached {
                    return false;
                }
                self.leaf = Leaf::Greeted(self.ends[0].frames.received);
                let theirs = self.ends[1].frames.received;
                self.ends[0].begin(theirs);
                self.is_admitted = true;
                self.flying = Default::default();
            }
            LinkEvent::Welcome => {
                let Leaf::Greeted(theirs) = self.leaf else { return false };
                self.ends[1].begin(theirs);
                self.leaf = Leaf::Attached;
            }
        }
        true
    }

    fn is_attached(&self, end: usize) -> bool {
        if end == 0 { self.is_admitted } else { self.leaf == Leaf::Attached }
    }

    /// Returns true if each end has everything that the other has sent.
    pub fn is_complete(&self) -> bool {
        (0..2).all(|end| self.ends[end].frames.received == self.sent[1 - end])
    }

    /// Lets everything arrive, over the current connection or over a new one, which does not break.
    ///
    /// # Panics
    ///
    /// If it does not arrive.
    pub fn settle(&mut self) {
        self.make(LinkEvent::Greet);
        self.make(LinkEvent::Welcome);
        let all = usize::MAX;
        let moves =
            [LinkEvent::Write(0, all), LinkEvent::Write(1, all), LinkEvent::Arrive(0, all), LinkEvent::Arrive(1, all)];
        while moves.into_iter().any(|next| self.make(next)) {}
        let received = self.ends.each_ref().map(|end| end.frames.received);
        assert!(self.is_complete(), "{received:?} of {:?}", self.sent);
    }

    /// The state on which the future depends.
    pub fn snapshot(&self) -> Snapshot {
        let end = |end: &LinkEnd| format!("{:?} {:?} {:?}", end.frames, end.out.left(), end.input);
        let ends = format!("{:?} {} {}", self.leaf, end(&self.ends[0]), end(&self.ends[1]));
        (self.is_admitted, ends, self.flying.clone(), self.sent)
    }
}

/// Returns the frame with this number of this end. Some frames have an empty part.
fn frame(end: usize, number: u64) -> Frame<Vec<u8>> {
    let fill = (number as u8).wrapping_mul(7).wrapping_add(end as u8);
    let part = |len: u64| vec![fill; len as usize];
    Frame { header: part(number % 2), payload: part((number + 1) % 3) }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use std::collections::HashSet;

    /// Explores every state, and from each state lets everything arrive. A state is rebuilt from the moves
    /// that led to it.
    ///
    /// Faults that this test has found: an `input` that is kept when another connection begins, and frames
    /// that are not sent because `composed` is not counted down.
    fn explore(frames: [u64; 2], breaks: usize) -> (usize, usize) {
        let mut seen = HashSet::new();
        let mut queue: VecDeque<(Vec<LinkEvent>, usize)> = VecDeque::from([(Vec::new(), 0)]);
        let mut complete = 0;
        let again = |path: &[LinkEvent]| {
            let mut link = Link::default();
            path.iter().for_each(|next| assert!(link.make(*next)));
            link
        };
        while let Some((path, broken)) = queue.pop_front() {
            for next in moves() {
                let mut link = again(&path);
                let is_send = matches!(next, LinkEvent::Send(end) if link.sent[end] == frames[end]);
                let broken = broken + usize::from(next == LinkEvent::Break);
                if is_send || broken > breaks || !link.make(next) || !seen.insert((link.snapshot(), broken)) {
                    continue;
                }
                complete += usize::from(link.is_complete());
                queue.push_back((path.iter().copied().chain([next]).collect(), broken));
                link.settle();
            }
        }
        (seen.len(), complete)
    }

    /// Bytes are taken and arrive all at once or in pieces that end within a prefix.
    fn moves() -> Vec<LinkEvent> {
        let both = |of: fn(usize) -> LinkEvent| [of(0), of(1)];
        let mut moves = vec![LinkEvent::Break, LinkEvent::Greet, LinkEvent::Welcome];
        moves.extend(both(LinkEvent::Send));
        moves.extend(both(LinkEvent::Confirm));
        for most in [17, usize::MAX] {
            moves.extend([0, 1].map(|end| LinkEvent::Write(end, most)));
            moves.extend([0, 1].map(|end| LinkEvent::Arrive(end, most)));
        }
        moves
    }

    #[test]
    fn from_every_state_of_a_link_that_breaks_every_frame_arrives_once_and_in_order() {
        let (states, complete) = explore([2, 2], 2);
        println!("{states} states, {complete} of them complete");
        assert!(states > 5_000 && complete > 50);
    }

    #[test]
    #[ignore = "takes minutes: scripts/long explore"]
    fn from_every_state_of_a_longer_link_every_frame_arrives_once_and_in_order() {
        let (states, complete) = explore([3, 2], 3);
        println!("{states} states, {complete} of them complete");
    }
}
