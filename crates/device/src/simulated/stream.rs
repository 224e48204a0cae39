//! The threads of simulated streams. Each runs its tasks in order, and waits for other threads at collectives
//! and events.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use ringpull_base::{Buffer, DType, Error, Result};

use super::super::work::{CollectiveKind, Operation};
use super::super::{PinnedHost, reference};
use super::health::Health;
use super::ranks::Link;

/// A range of bytes of an allocation.
pub(super) type Bytes = (PinnedHost, Range<usize>);

/// The commands of a stream's thread.
pub(super) enum Task {
    Run(Operation, Vec<Bytes>, Vec<Bytes>),
    Meet(Arc<Rendezvous>),
    /// A sum over ranks, in place.
    SumJoined(Arc<Link>, DType, Bytes),
    Raise(Arc<AtomicBool>),
    Wait(Arc<AtomicBool>),
    /// An injected fault.
    Fail(Error),
    Stand,
}

/// Collectives that run when every device has come to them.
pub(super) struct Rendezvous {
    pub(super) calls: Vec<(CollectiveKind, DType, Vec<Bytes>, Vec<Bytes>)>,
    pub(super) size: usize,
    pub(super) arrived: AtomicUsize,
    pub(super) done: AtomicBool,
}

/// The thread of one stream.
pub(super) fn serve(id: u64, inbox: &Receiver<Task>, health: &Health) {
    let mut noise = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for task in inbox {
        // Each stream gets other random delays, so that threads drift apart.
        noise ^= noise << 13;
        noise ^= noise >> 7;
        (0..noise % 5).for_each(|_| std::thread::yield_now());
        let healthy = health.fault().is_none();
        match task {
            Task::Run(operation, reads, writes) if healthy => {
                if let Err(fault) = run(&operation, &reads, &writes) {
                    health.fail(fault);
                }
            }
            Task::Meet(meeting) if healthy => meet(&meeting, health),
            Task::SumJoined(link, dtype, part) if healthy => match link.sum(dtype, &load(&part)) {
                Ok(sum) => store(&part, &sum),
                Err(fault) => health.fail(fault),
            },
            Task::Run(..) | Task::Meet(_) | Task::SumJoined(..) => {}
            Task::Raise(flag) => health.raise(&flag),
            Task::Wait(flag) => health.wait(&flag),
            Task::Fail(fault) => health.fail(fault),
            Task::Stand => health.wait(&AtomicBool::new(false)),
        }
    }
}

fn load((memory, range): &Bytes) -> Buffer {
    Buffer::copy_of(&memory.read().bytes()[range.clone()])
}

fn store((memory, range): &Bytes, data: &Buffer) {
    memory.write().bytes_mut()[range.clone()].copy_from_slice(data.bytes());
}

fn run(operation: &Operation, reads: &[Bytes], writes: &[Bytes]) -> Result<()> {
    let lengths: Vec<usize> = writes.iter().map(|(_, range)| range.len()).collect();
    let written = reference::compute(operation, reads.iter().map(load).collect(), &lengths)?;
    writes.iter().zip(&written).for_each(|(to, data)| store(to, data));
    Ok(())
}

/// Takes part in a collective. The last device that comes does the work of all, because no device can go on
/// before.
fn meet(meeting: &Rendezvous, health: &Health) {
    if meeting.arrived.fetch_add(1, Ordering::AcqRel) + 1 < meeting.size {
        return health.wait(&meeting.done);
    }
    for (kind, dtype, sends, receives) in &meeting.calls {
        let given: Vec<Buffer> = sends.iter().map(load).collect();
        let lengths: Vec<usize> = receives.iter().map(|(_, range)| range.len()).collect();
        let got = reference::collect(*kind, *dtype, &given, &lengths);
        for (device, (to, data)) in receives.iter().zip(&got).enumerate() {
            if !matches!(kind, CollectiveKind::Reduce(root) if *root != device) {
                store(to, data);
            }
        }
    }
    health.raise(&meeting.done);
}
