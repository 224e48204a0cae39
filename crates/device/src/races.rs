//! Proves that every piece of work is ordered after its dependencies. This module does no I/O. It only needs
//! the queued work, not the time at which it runs.
//!
//! Streams and the host are agents. Each agent's work is numbered. Each agent also has a clock, which has for
//! every agent the number up to which that agent's work is known to come first. An event is a copy of its
//! stream's clock. An agent that waits for the event takes over the greater numbers. If two pieces of work
//! touch the same bytes and one of them writes, they must be ordered: the later one's clock must contain the
//! earlier one's number. So a missing wait is found in every run, not only when the threads happen to
//! collide.

use std::collections::BTreeMap;
use std::ops::Range;

/// A stream, or [`HOST`].
pub(super) type Agent = u64;

/// The host, whose threads count as one agent.
pub(super) const HOST: Agent = 0;

/// For each agent the number up to which its work comes first.
pub(super) type Clock = BTreeMap<Agent, u64>;

/// Bytes of one allocation.
pub(super) type ByteRange = (u64, Range<usize>);

#[derive(Debug)]
struct MemoryAccess {
    range: Range<usize>,
    agent: Agent,
    number: u64,
    writes: bool,
}

/// The accesses to memory, and the knowledge of every agent.
#[derive(Default)]
pub(super) struct Races {
    clocks: BTreeMap<Agent, Clock>,
    memory: BTreeMap<u64, Vec<MemoryAccess>>,
}

impl Races {
    /// Records work that the host queues on `agent`, or does itself. Returns the fault, as text.
    pub(super) fn step(&mut self, agent: Agent, reads: &[ByteRange], writes: &[ByteRange]) -> Result<(), String> {
        if agent != HOST {
            let host = self.clocks.entry(HOST).or_default().clone();
            self.learn(agent, &host);
        }
        let clock = self.clocks.entry(agent).or_default();
        let number = clock.get(&agent).copied().unwrap_or(0) + 1;
        clock.insert(agent, number);
        let clock = clock.clone();
        for (spans, writing) in [(reads, false), (writes, true)] {
            for (address, range) in spans {
                self.check(&clock, agent, *address, range, writing)?;
            }
        }
        for (spans, writing) in [(reads, false), (writes, true)] {
            for (address, range) in spans {
                self.note(&clock, *address, MemoryAccess { range: range.clone(), agent, number, writes: writing });
            }
        }
        Ok(())
    }

    /// Returns the clock of an event recorded on `agent` now.
    pub(super) fn clock(&self, agent: Agent) -> Clock {
        let mut clock = self.clocks.get(&agent).cloned().unwrap_or_default();
        for (other, number) in self.clocks.get(&HOST).into_iter().flatten() {
            let known = clock.entry(*other).or_default();
            *known = (*known).max(*number);
        }
        clock
    }

    /// Orders `agent` after the work of `clock`.
    pub(super) fn learn(&mut self, agent: Agent, clock: &Clock) {
        let own = self.clocks.entry(agent).or_default();
        for (other, number) in clock {
            let known = own.entry(*other).or_default();
            *known = (*known).max(*number);
        }
    }

    /// Forgets memory that was freed, because its address may be used again.
    pub(super) fn forget(&mut self, address: u64) {
        self.memory.remove(&address);
    }

    fn check(
        &self,
        clock: &Clock,
        agent: Agent,
        address: u64,
        range: &Range<usize>,
        writes: bool,
    ) -> Result<(), String> {
        let before = self.memory.get(&address).map_or(&[][..], Vec::as_slice);
        let word = |writes| if writes { "writes" } else { "reads" };
        for access in before.iter().filter(|access| overlap(&access.range, range) && (access.writes || writes)) {
            if clock.get(&access.agent).copied().unwrap_or(0) < access.number {
                return Err(format!(
                    "{} {} bytes {range:?} of memory {address:#x} without waiting for {}, which {} bytes {:?} of it",
                    name(agent),
                    word(writes),
                    name(access.agent),
                    word(access.writes),
                    access.range
                ));
            }
        }
        if !writes && !covered(before, range) {
            return Err(format!(
                "{} reads bytes {range:?} of memory {address:#x} that nobody has written",
                name(agent)
            ));
        }
        Ok(())
    }

    /// Records an access. A write replaces all earlier accesses to its bytes, because work after the write is
    /// also after them.
    fn note(&mut self, clock: &Clock, address: u64, access: MemoryAccess) {
        let history = self.memory.entry(address).or_default();
        history.retain(|earlier| {
            let within = access.range.start <= earlier.range.start && earlier.range.end <= access.range.end;
            let known = clock.get(&earlier.agent).copied().unwrap_or(0) >= earlier.number;
            let replaced = access.writes || (!earlier.writes && earlier.agent == access.agent);
            !(within && known && replaced)
        });
        if !access.range.is_empty() {
            history.push(access);
        }
    }
}

fn name(agent: Agent) -> String {
    if agent == HOST { "the host".to_owned() } else { format!("stream {agent}") }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns true if every byte of `range` was written.
fn covered(history: &[MemoryAccess], range: &Range<usize>) -> bool {
    let mut written: Vec<&Range<usize>> =
        history.iter().filter(|access| access.writes).map(|access| &access.range).collect();
    written.sort_by_key(|range| range.start);
    let reach =
        written.iter().fold(range.start, |reach, next| if next.start <= reach { reach.max(next.end) } else { reach });
    reach >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Agent = 1;
    const B: Agent = 2;

    fn span(range: Range<usize>) -> Vec<ByteRange> {
        vec![(64, range)]
    }

    #[test]
    fn one_stream_is_ordered_by_itself() {
        let mut races = Races::default();
        races.step(A, &[], &span(0..8)).unwrap();
        races.step(A, &span(0..8), &[]).unwrap();
        races.step(A, &[], &span(0..8)).unwrap();
    }

    #[test]
    fn another_stream_must_wait_for_the_event() {
        let mut races = Races::default();
        races.step(A, &[], &span(0..8)).unwrap();
        let event = races.clock(A);
        assert!(races.step(B, &span(4..6), &[]).unwrap_err().contains("without waiting for stream 1"));
        races.learn(B, &event);
        races.step(B, &span(4..6), &[]).unwrap();
        // And a writer must wait for all readers.
        assert!(races.step(A, &[], &span(0..8)).unwrap_err().contains("without waiting for stream 2"));
        races.step(A, &[], &span(0..4)).unwrap();
        let event = races.clock(B);
        races.learn(A, &event);
        races.step(A, &[], &span(0..8)).unwrap();
    }

    #[test]
    fn the_host_is_ordered_by_the_events_it_has_waited_for() {
        let mut races = Races::default();
        races.step(HOST, &[], &span(0..8)).unwrap();
        races.step(A, &span(0..8), &[(128, 0..8)]).unwrap();
        assert!(races.step(HOST, &[(128, 0..8)], &[]).is_err());
        assert!(races.step(HOST, &[], &span(0..1)).is_err());
        let event = races.clock(A);
        races.learn(HOST, &event);
        races.step(HOST, &[(128, 0..8)], &span(0..1)).unwrap();
    }

    #[test]
    fn what_nobody_has_written_cannot_be_read() {
        let mut races = Races::default();
        assert!(races.step(A, &span(0..1), &[]).unwrap_err().contains("nobody has written"));
        races.step(A, &[], &[(64, 0..4), (64, 4..8)]).unwrap();
        races.step(A, &span(2..7), &[]).unwrap();
        races.forget(64);
        assert!(races.step(A, &span(2..7), &[]).is_err());
    }

    #[test]
    fn knowledge_passes_from_stream_to_stream() {
        let mut races = Races::default();
        races.step(A, &[], &span(0..8)).unwrap();
        let first = races.clock(A);
        races.learn(B, &first);
        let second = races.clock(B);
        races.learn(3, &second);
        races.step(3, &span(0..8), &[]).unwrap();
    }
}
