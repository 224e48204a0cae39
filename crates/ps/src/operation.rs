//! One call of a worker on one key, and the rest of its work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpull_base::{Error, Key};
use ringpull_kernels::optim::State;
use ringpull_kernels::row_ids;

use crate::call::{Bytes, ServerAnswer, Task, answer};
use crate::message::{Place, Places, PullTarget, Request};
use crate::shard::{Batch, Layout};

/// A call under way.
pub(crate) struct Operation {
    key: Key,
    layout: Arc<Layout>,
    task: Task,
    pub(crate) traits: TaskTraits,
    /// The segments and units of each message.
    batches: Vec<Batch>,
    /// For an init: the number of segments that each server has.
    on_servers: BTreeMap<usize, u32>,
    unsent: usize,
    unanswered: usize,
}

/// The properties of a task.
#[derive(Default)]
pub(crate) struct TaskTraits {
    name: &'static str,
    /// True if the task goes before all others, because a server must know a key before it is pushed or
    /// pulled.
    is_first: bool,
    /// The version of the optimizer, for a push.
    pub(crate) optimizer: Option<u64>,
    /// The number of the push, counted from 1 for each key.
    pub(crate) round: Option<u64>,
    /// The number of pushes for which the task waits.
    rounds: u64,
    /// True if the answer to each message is part of the call's result.
    pub(crate) is_answered: bool,
    /// True if the task changes no value and no state.
    pub(crate) is_pull: bool,
}

impl TaskTraits {
    fn of(task: &Task) -> Self {
        let plain = TaskTraits::default();
        match task {
            Task::Init { .. } => TaskTraits { name: "init", is_first: true, ..plain },
            Task::Push { outs, round, optimizer, .. } => {
                let (name, is_answered) = if outs.is_empty() { ("push", false) } else { ("push_pull", true) };
                let (round, optimizer, rounds) = (Some(*round), Some(*optimizer), *round);
                TaskTraits { name, optimizer, round, rounds, is_answered, ..plain }
            }
            Task::PushRows { round, optimizer, .. } => {
                let (round, optimizer, rounds) = (Some(*round), Some(*optimizer), *round);
                TaskTraits { name: "push_rows", optimizer, round, rounds, ..plain }
            }
            Task::Pull { want, rounds, .. } => {
                let name = match want {
                    PullTarget::Rows => "pull_rows",
                    PullTarget::Word => "wait_all",
                    PullTarget::State => "states",
                    PullTarget::Value => "pull",
                };
                TaskTraits { name, rounds: *rounds, is_answered: true, is_pull: true, ..plain }
            }
            Task::SetState { optimizer, .. } => {
                TaskTraits { name: "set_states", optimizer: Some(*optimizer), is_answered: true, ..plain }
            }
        }
    }
}

impl Operation {
    pub(crate) fn new(key: Key, layout: Arc<Layout>, task: Task) -> Self {
        let batches = match &task {
            Task::PushRows { units, .. } => layout.batches(units, true),
            Task::Pull { want: PullTarget::Rows, units, .. } => layout.batches(units, false),
            Task::Pull { want: PullTarget::Word, .. } => layout.batches(&[], true),
            _ => layout.segment_by_segment(),
        };
        let mut on_servers = BTreeMap::new();
        if matches!(task, Task::Init { .. }) {
            layout.segments.iter().for_each(|segment| *on_servers.entry(segment.server).or_default() += 1);
        }
        let (messages, traits) = (batches.len(), TaskTraits::of(&task));
        let unanswered = if traits.is_answered { messages } else { 0 };
        Operation { key, layout, task, traits, batches, on_servers, unsent: messages, unanswered }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the server of each message's segments.
    pub(crate) fn batch_servers(&self) -> Vec<usize> {
        self.batches.iter().map(|batch| self.layout.segments[batch.segments[0]].server).collect()
    }

    /// Returns the priority of the call, which follows from the caller's priority.
    pub(crate) fn priority(&self, given: i32) -> i32 {
        if self.traits.is_first { i32::MAX } else { given.min(i32::MAX - 1) }
    }

    /// Returns the number of the contribution in an elastic job, where the worker must find out when the
    /// contribution is whole. 0 is the init.
    pub(crate) fn contribution(&self) -> Option<u64> {
        if self.traits.is_first { Some(0) } else { self.traits.round }
    }

    /// Returns the servers that have segments of the key.
    pub(crate) fn servers(&self) -> BTreeSet<usize> {
        self.layout.segments.iter().map(|segment| segment.server).collect()
    }

    fn places(&self, batch: usize) -> Places {
        let segments = self.batches[batch].segments.iter().map(|segment| *segment as u32).collect();
        Places { key: self.key.clone(), segments }
    }

    /// Returns the bytes of a message, sent or answered, or `None` if it is not answered. If the value of a
    /// push is not requested, its messages are answered with confirmations. Without these a worker could be
    /// any number of segments ahead of the others. The last message to each server needs no confirmation,
    /// since each call may have one message beyond the window.
    pub(crate) fn answered_bytes(&self, batch: usize) -> Option<usize> {
        let Batch { segments, positions } = &self.batches[batch];
        let bytes = match &self.task {
            Task::Pull { want: PullTarget::Word, .. } => 0,
            Task::PushRows { .. } | Task::Pull { want: PullTarget::Rows, .. } => {
                positions.len() * self.layout.unit_bytes
            }
            _ => self.layout.bytes_of(segments[0]).len(),
        };
        (self.traits.is_answered || self.has_word(batch)).then_some(bytes)
    }

    /// Returns true if a message of a push is answered with a confirmation.
    fn has_word(&self, batch: usize) -> bool {
        let server = |batch: &Batch| self.layout.segments[batch.segments[0]].server;
        let own = server(&self.batches[batch]);
        // Servers take turns, so the next message to this server is not far behind.
        self.traits.round.is_some() && self.batches[batch + 1..].iter().any(|other| server(other) == own)
    }

    /// Returns true if the operation is a push and a pull at once.
    pub(crate) fn is_push_pull(&self) -> bool {
        self.traits.is_answered && self.traits.round.is_some()
    }

    /// Returns a message. `reply` is the number of its answer.
    pub(crate) fn request(&self, batch: usize, reply: u64) -> (Request, Vec<u8>) {
        let Batch { segments, positions } = &self.batches[batch];
        let segment = segments[0];
        let place = Place { key: self.key.clone(), segment: segment as u32 };
        let bytes = self.layout.bytes_of(segment);
        match &self.task {
            Task::Init { dtype, shape, value } => {
                let request = Request::Init {
                    place,
                    dtype: *dtype,
                    shape: shape.clone(),
                    len_bytes: bytes.len() as u64,
                    unit_bytes: self.layout.unit_bytes as u64,
                    here: self.on_servers.get(&self.layout.segments[segment].server).copied().unwrap_or(0),
                    spans: self.on_servers.len() > 1,
                };
                // If a worker's value cannot count, it sends no value.
                (request, value.bytes(&[]).get(bytes).unwrap_or_default().to_vec())
            }
            Task::Push { gradient, outs, round, optimizer, .. } => {
                let want = if outs.is_empty() { PullTarget::Word } else { PullTarget::Value };
                let reply = (want == PullTarget::Value || self.has_word(batch)).then_some((want, reply));
                let (compression, payload) = match gradient {
                    Bytes::Coded(coded) => (Some(coded.compression), coded.segment(segment)),
                    plain => (None, &plain.bytes(outs)[bytes]),
                };
                let request = Request::Push { place, round: *round, optimizer: *optimizer, compression, reply };
                (request, payload.to_vec())
            }
            Task::PushRows { rows, round, optimizer, .. } => {
                let size = self.layout.unit_bytes;
                let mut payload = self.ids(batch);
                let ids_bytes = payload.len() as u64;
                payload.extend_from_slice(&rows.bytes()[positions.start * size..positions.end * size]);
                let (places, round, optimizer) = (self.places(batch), *round, *optimizer);
                let word = self.has_word(batch).then_some(reply);
                (Request::PushRows { places, round, optimizer, ids_bytes, word }, payload)
            }
            Task::Pull { rounds, want, .. } => {
                let ids = if *want == PullTarget::Rows { self.ids(batch) } else { Vec::new() };
                (Request::Pull { places: self.places(batch), rounds: *rounds, want: *want, reply }, ids)
            }
            Task::SetState { optimizer, states, .. } => {
                let state = states[segment].clone();
                (Request::SetState { place, optimizer: *optimizer, state, reply }, Vec::new())
            }
        }
    }

    /// Returns the question for the workers that delay the segments of a message.
    pub(crate) fn who_is_missing(&self, batch: usize, reply: u64) -> Request {
        Request::WhoIsMissing { places: self.places(batch), rounds: self.traits.rounds, reply }
    }

    /// Records that one more message has left. Returns true if nothing is left to do.
    pub(crate) fn sent_one(&mut self) -> bool {
        self.unsent -= 1;
        if self.unsent == 0
            && let Task::Push { gradient, .. } = &mut self.task
        {
            // Readers of the gradient's tensor may go on; an output that holds it stays locked until its
            // value is here.
            *gradient = Bytes::Nothing;
        }
        self.is_done()
    }

    /// Takes the answer to a message. Returns false if it does not fit.
    pub(crate) fn receive(&mut self, batch: usize, payload: Vec<u8>, state: Option<State>) -> bool {
        let Batch { segments, positions } = &self.batches[batch];
        let segment = segments[0];
        let bytes = self.layout.bytes_of(segment);
        let expected = match &self.task {
            Task::Push { .. } | Task::Pull { want: PullTarget::Value, .. } => bytes.len(),
            Task::Pull { want: PullTarget::Rows, .. } => positions.len() * self.layout.unit_bytes,
            _ => 0,
        };
        if payload.len() != expected {
            return false;
        }
        self.unanswered -= 1;
        match &mut self.task {
            Task::Push { outs, round, applied, .. } => {
                for out in outs {
                    out.bytes_mut()[bytes.clone()].copy_from_slice(&payload);
                }
                if self.unanswered == 0 {
                    applied.fetch_max(*round, Relaxed);
                }
            }
            Task::Pull { answers, .. } | Task::SetState { answers, .. } => {
                answer(answers, Ok(ServerAnswer { segment, payload, state }));
            }
            Task::Init { .. } | Task::PushRows { .. } => {}
        }
        true
    }

    pub(crate) fn is_done(&self) -> bool {
        self.unsent == 0 && self.unanswered == 0
    }

    /// Ends all waits for this operation with `fault`.
    pub(crate) fn fail(self, fault: &Error) {
        match self.task {
            Task::Push { outs, gradient, .. } => {
                drop(gradient);
                for out in outs {
                    out.fail(fault.clone());
                }
            }
            Task::Pull { answers, .. } | Task::SetState { answers, .. } => answer(&answers, Err(fault.clone())),
            Task::Init { .. } | Task::PushRows { .. } => {}
        }
    }

    /// Describes the operation, for errors.
    pub(crate) fn describe(&self) -> String {
        format!("{} of key {}", self.traits.name, self.key)
    }

    /// Returns the code of the ids of the units that a message names.
    fn ids(&self, batch: usize) -> Vec<u8> {
        let (Task::PushRows { units, .. } | Task::Pull { units, .. }) = &self.task else { return Vec::new() };
        let (ids, count) = self.layout.ids(&self.batches[batch], units);
        row_ids::encode(&ids, count)
    }
}
