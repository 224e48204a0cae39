//! One segment of a key on its server: its value, its open rounds of pushes, and the pulls that wait for
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use ringpull_base::{DType, Result};
use ringpull_kernels::compress::Compression;
use ringpull_kernels::optim::{Optimizer, State};

use super::Output;
use crate::merge::{self, Geometry, Round, Sum};
use crate::message::{Place, PullTarget, Reply};

/// A segment.
pub(super) struct ServedSegment {
    pub(super) geometry: Geometry,
    /// The dtype and the shape that each rank gave.
    pub(super) views: BTreeMap<usize, (DType, Vec<u64>)>,
    pub(super) value: Option<Vec<u8>>,
    /// In an elastic job: the first value that each rank gave, until it is known which one counts.
    pub(super) candidates: BTreeMap<usize, Vec<u8>>,
    pub(super) state: State,
    pub(super) rule: Option<Arc<Optimizer>>,
    /// The number of rounds applied (sync), or of each rank's pushes applied (async).
    pub(super) completed: u64,
    pub(super) applied: Vec<u64>,
    pub(super) rounds: BTreeMap<u64, OpenRound>,
    pub(super) pulls: Vec<Pull>,
}

/// A round that has begun.
#[derive(Default)]
pub(super) struct OpenRound {
    pub(super) merge: Round,
    pub(super) optimizer: Option<(usize, u64, Option<Arc<Optimizer>>)>,
    /// The compression of dense gradients in this round, and the rank that came first and set it.
    pub(super) compression: Option<(usize, Option<Compression>)>,
    pub(super) replies: Vec<(usize, u64)>,
}

/// A pull that cannot be answered yet, or that is about to be answered. It passes from one of its segments to
/// the next.
pub(super) struct Pull {
    pub(super) rank: usize,
    pub(super) rounds: u64,
    pub(super) want: PullTarget,
    pub(super) reply: u64,
    /// The segments, each with its requested units.
    pub(super) segments: Vec<(Place, Vec<i64>)>,
    /// The number of segments that the pull has passed.
    pub(super) past: usize,
    /// The content from these segments: a value, which other pulls may share, or rows or several values.
    pub(super) value: Bytes,
    pub(super) rows: Vec<u8>,
    pub(super) state: State,
}

impl Pull {
    /// Returns a pull that is answered with a confirmation when the segments have had `rounds` rounds.
    pub(super) fn for_a_word(rank: usize, rounds: u64, reply: u64, places: Vec<Place>) -> Self {
        let segments = places.into_iter().map(|place| (place, Vec::new())).collect();
        let (past, value, rows, state) = Default::default();
        Pull { rank, rounds, want: PullTarget::Word, reply, segments, past, value, rows, state }
    }

    /// Returns the answer, when the pull has passed all segments.
    pub(super) fn answer(self) -> Output {
        let Pull { rank, want, reply, value, rows, state, .. } = self;
        let payload = if rows.is_empty() { value } else { rows.into() };
        let payload = matches!(want, PullTarget::Value | PullTarget::Rows).then_some(payload);
        let reply = if want == PullTarget::State { Reply::State { reply, state } } else { Reply::Value { reply } };
        Output::Reply { rank, reply, payload }
    }
}

impl ServedSegment {
    /// Applies the complete rounds in order. `passing` gets the pulls that waited for them.
    pub(super) fn advance(
        &mut self,
        workers: usize,
        sync: bool,
        outputs: &mut Vec<Output>,
        passing: &mut Vec<Pull>,
    ) -> Result<()> {
        loop {
            if self.value.is_none() {
                return Ok(());
            }
            let number = if sync {
                let next = self.completed + 1;
                self.rounds.get(&next).filter(|open| open.merge.is_complete(workers)).map(|_| next)
            } else {
                self.rounds.keys().next().copied()
            };
            let Some((number, open)) = number.and_then(|number| self.rounds.remove_entry(&number)) else {
                return Ok(());
            };
            let optimizer = open.optimizer.and_then(|(_, _, optimizer)| optimizer);
            let sum = open.merge.into_sum().expect("a complete round has contributions");
            self.apply(optimizer, sum)?;
            if sync {
                self.completed += 1;
            } else {
                self.applied[(number % workers as u64) as usize] += 1;
            }
            self.answer(open.replies, outputs);
            self.let_pass(sync, passing);
        }
    }

    /// In an elastic job: takes the first value that `rank` gave.
    pub(super) fn take_first(&mut self, rank: usize) {
        self.value = self.candidates.remove(&rank).map(|value| merge::aligned(value, self.geometry.dtype));
        self.candidates.clear();
    }

    /// In an elastic job: applies the next round, with the pushes that are held. There may be none.
    pub(super) fn complete(&mut self, outputs: &mut Vec<Output>, passing: &mut Vec<Pull>) -> Result<()> {
        let open = self.rounds.remove(&(self.completed + 1)).unwrap_or_default();
        let optimizer = open.optimizer.and_then(|(_, _, optimizer)| optimizer);
        if self.value.is_some()
            && let Some(sum) = open.merge.held_sum(self.geometry)
        {
            self.apply(optimizer, sum)?;
        }
        self.completed += 1;
        self.answer(open.replies, outputs);
        self.let_pass(true, passing);
        Ok(())
    }

    fn apply(&mut self, optimizer: Option<Arc<Optimizer>>, sum: Sum) -> Result<()> {
        let geometry = self.geometry;
        let Some(optimizer) = optimizer else {
            self.value = Some(match sum {
                Sum::Dense(sum) => sum,
                Sum::Rows { ids, rows } => merge::dense_of(&ids, &rows, geometry),
            });
            return Ok(());
        };
        if self.rule.as_ref().is_some_and(|before| !optimizer.keeps_states_of(before)) {
            self.state = State::default();
        }
        let value = self.value.as_mut().expect("advance stops while there is no value");
        match sum {
            Sum::Dense(sum) => optimizer.apply(&mut self.state, geometry.dtype, value, &sum)?,
            Sum::Rows { ids, rows } => {
                optimizer.apply_rows(&mut self.state, geometry.dtype, value, geometry.unit_bytes, &ids, &rows)?;
            }
        }
        self.rule = Some(optimizer);
        Ok(())
    }

    /// Takes the pulls that no longer wait for this segment.
    pub(super) fn let_pass(&mut self, sync: bool, passing: &mut Vec<Pull>) {
        if self.pulls.is_empty() {
            return;
        }
        let (ready, waiting): (Vec<Pull>, _) =
            std::mem::take(&mut self.pulls).into_iter().partition(|pull| self.is_ready_for(pull, sync));
        self.pulls = waiting;
        let mut shared = None;
        for mut pull in ready {
            self.give(&mut pull, &mut shared);
            passing.push(pull);
        }
    }

    /// Returns true if the segment has had the rounds for which a pull waits.
    pub(super) fn is_ready_for(&self, pull: &Pull, sync: bool) -> bool {
        self.value.is_some() && pull.rounds <= if sync { self.completed } else { self.applied[pull.rank] }
    }

    /// Gives a pull the requested content of this segment. Pulls that get the value at the same time share
    /// it.
    pub(super) fn give(&self, pull: &mut Pull, shared: &mut Option<Bytes>) {
        let value = self.value.as_deref().unwrap_or_default();
        let size = self.geometry.unit_bytes;
        match pull.want {
            PullTarget::Word => {}
            PullTarget::State => pull.state = self.state.clone(),
            PullTarget::Value if pull.segments.len() > 1 => pull.rows.extend_from_slice(value),
            PullTarget::Value => pull.value = shared.get_or_insert_with(|| self.copy()).clone(),
            PullTarget::Rows => {
                let ids = &pull.segments[pull.past].1;
                pull.rows.reserve(ids.len() * size);
                for id in ids {
                    pull.rows.extend_from_slice(&value[*id as usize * size..][..size]);
                }
            }
        }
        pull.past += 1;
    }

    /// Answers the pushes of a round with the new value, which all of them share.
    fn answer(&self, replies: Vec<(usize, u64)>, outputs: &mut Vec<Output>) {
        if replies.is_empty() {
            return;
        }
        let value = self.copy();
        let reply = |(rank, reply)| Output::Reply { rank, reply: Reply::Value { reply }, payload: Some(value.clone()) };
        outputs.extend(replies.into_iter().map(reply));
    }

    fn copy(&self) -> Bytes {
        self.value.clone().unwrap_or_default().into()
    }

    pub(super) fn missing(&self, workers: usize, sync: bool, rounds: u64) -> (&'static str, Vec<usize>) {
        if self.value.is_none() {
            return ("init", vec![0]);
        }
        if !sync || rounds <= self.completed {
            return ("push", Vec::new());
        }
        let next = self.rounds.get(&(self.completed + 1));
        ("push", (0..workers).filter(|rank| !next.is_some_and(|open| open.merge.has(*rank))).collect())
    }
}
