//! Tests that operations whose messages have one tag are not under way together.

use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use ringpull_base::config::Config;
use ringpull_base::{Buffer, Error, Result};

use crate::communicator::{BegunOperation, Communicator, Passage};
use crate::interpreter::Memory;
use crate::progress::engine::Engine;
use crate::progress::job::{Job, Submission};
use crate::progress::messages::{Launch, Operation, Terms, Topic, Transfer};
use crate::transport::{OF_A_SET, later, tag};

/// A broadcast from the set's first rank, or nothing at all.
struct Broadcast {
    set: [usize; 2],
    data: Option<Buffer>,
    /// The comm thread waits for this before it begins.
    gate: Option<Receiver<()>>,
    done: Sender<Vec<u8>>,
}

impl Job for Broadcast {
    fn transfer(&self) -> Transfer {
        // What has no data may be handed on before the rest.
        Transfer::Messages { priority: i32::from(self.data.is_none()) }
    }

    fn advance(&mut self, comm: &mut Communicator, launch: &Launch) -> Result<Option<BegunOperation>> {
        let Some(gate) = self.gate.take() else { return Ok(None) };
        gate.recv().unwrap_or_default();
        let Some(data) = self.data.take() else { return Ok(None) };
        let passage = Passage { stamp: launch.number, priority: 0 };
        Ok(Some(comm.begin_broadcast(Some(&self.set), 0, Memory::Own(data), passage)))
    }

    fn receive(&mut self, memory: Memory) {
        self.data = Some(memory.into_buffer());
    }

    fn finish(self: Box<Self>) -> Result<()> {
        drop(self.done.send(self.data.map(|data| data.bytes().to_vec()).unwrap_or_default()));
        Ok(())
    }

    fn fail(self: Box<Self>, _fault: &Error) {}
}

#[test]
fn tags_repeat_after_16384_operations_and_sets_have_their_own() {
    assert_ne!(tag(7), tag(7 + 16383));
    assert_eq!((tag(7), tag(OF_A_SET | 7)), (tag(7 + 16384), tag(OF_A_SET | (7 + 16384))));
    assert!((0..40000).all(|stamp| tag(stamp) <= 32767 && tag(stamp) != tag(OF_A_SET | stamp)));
    assert_eq!((later(5, 3), later(OF_A_SET - 1, 2)), (8, 1), "never a set's");
}

#[test]
fn an_operation_waits_for_the_one_that_has_its_tag() {
    const LEN: usize = 64 << 10;
    let config = Config { segment_bytes: 1024, segment_is_fixed: true, ..Config::default() };
    let engines = Engine::in_process(3, &config).unwrap();
    let (open, gate) = bounded::<()>(0);
    let (free_sender, free) = bounded::<()>(0);
    drop(free_sender);
    let (done, ended) = unbounded();
    let call = |rank: usize, set: [usize; 2], value: Option<u8>, gate: &Receiver<()>, done: &Sender<Vec<u8>>| {
        let filled = |value| {
            let mut data = Buffer::zeroed(LEN);
            data.bytes_mut().fill(value);
            data
        };
        let (data, gate) = (value.map(filled), Some(gate.clone()));
        let job = Broadcast { set, data, gate, done: done.clone() };
        let topic = Topic::Collective { comm: u32::from(value.is_some()), set: Some(set.to_vec()), name: None };
        engines[rank].submit(topic, Operation::Push, Terms::default(), Submission::new(job)).unwrap();
    };
    // The first operation has the number 1 among those of sets, and the last 1 + 16384.
    let between = |rank: usize| {
        let (done, ended) = unbounded();
        (1..16384).for_each(|_| call(rank, [0, 2], None, &free, &done));
        (1..16384).for_each(|_| drop(ended.recv().unwrap()));
    };
    thread::scope(|scope| {
        let unread = unbounded().0;
        call(1, [0, 1], Some(0), &gate, &done);
        call(0, [0, 1], Some(1), &free, &unread);
        let last = scope.spawn(|| between(2));
        between(0);
        last.join().unwrap();
        call(1, [0, 1], Some(0), &free, &done);
        call(0, [0, 1], Some(2), &free, &unread);
        // Both are launched on rank 1, whose comm thread is at the gate of the first.
        let of_rank_1 = engines[1].current.get();
        while !of_rank_1.waiting.lock().is_empty() {
            thread::yield_now();
        }
        drop(open);
    });
    for value in [1, 2] {
        assert_eq!(ended.recv().unwrap(), vec![value; LEN]);
    }
}
