//! Which operations launch, and in which order: decided by rank 0, the same for every rank.
//!
//! An operation is named by content: its topic (a key of a store, a barrier) and how many operations this rank has called
//! on that topic before. Ranks may therefore call in different orders. Rank 0 collects the calls; an operation launches
//! when every rank has called it alike. Calls that do not fit together, and calls that stay alone, become one error for
//! all ranks. Pure: time comes in as a number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::key::Key;
use crate::timeline::Name;

/// What an operation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Topic {
    /// A key of the `store`-th store that the process created.
    Key {
        /// Which store.
        store: u32,
        /// Which key.
        key: Key,
    },
    /// A barrier.
    Barrier,
    /// A collective that is called directly, outside any store.
    Direct,
}

impl Topic {
    /// The topic in a timeline.
    pub(super) fn name(&self) -> Name {
        match self {
            Topic::Key { key, .. } => key.into(),
            Topic::Barrier => "barrier".into(),
            Topic::Direct => "collective".into(),
        }
    }

    fn key(&self) -> Key {
        match self {
            Topic::Key { key, .. } => key.clone(),
            Topic::Barrier => Key::from("barrier"),
            Topic::Direct => Key::from("collective"),
        }
    }
}

/// One rank's call of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// What it is about.
    pub topic: Topic,
    /// How many calls on this topic the rank has made before.
    pub ordinal: u64,
    /// `init`, `push`, ...
    pub operation: String,
    /// What has to be the same on every rank, in words: dtype, shape, optimizer.
    pub terms: String,
}

/// An operation that every rank has called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// What it is about.
    pub topic: Topic,
    /// Which operation of the topic.
    pub ordinal: u64,
    /// Its place in the order of launches.
    pub number: u32,
}

struct Pending {
    calls: Vec<Option<Call>>,
    since_s: f64,
}

/// Rank 0's table of calls that wait for the other ranks'.
pub struct Agreement {
    size: usize,
    limit_s: f64,
    pending: BTreeMap<(Topic, u64), Pending>,
    left: Vec<bool>,
    launched: u32,
}

impl Agreement {
    /// A table for `size` ranks in which a call stays alone for at most `limit_s` seconds.
    pub fn new(size: usize, limit_s: f64) -> Self {
        Agreement { size, limit_s, pending: BTreeMap::new(), left: vec![false; size], launched: 0 }
    }

    /// Takes note of a call; returns the launch that it completes.
    pub fn call(&mut self, rank: usize, call: Call, now_s: f64) -> Result<Option<Launch>, Error> {
        let name = (call.topic.clone(), call.ordinal);
        let size = self.size;
        let pending =
            self.pending.entry(name.clone()).or_insert_with(|| Pending { calls: vec![None; size], since_s: now_s });
        pending.calls[rank] = Some(call);
        if pending.calls.iter().any(Option::is_none) {
            return self.check_left().map(|()| None);
        }
        let calls: Vec<Call> = self.pending.remove(&name).into_iter().flat_map(|done| done.calls).flatten().collect();
        if let Some(error) = disagreement(&calls) {
            return Err(error);
        }
        self.launched += 1;
        Ok(Some(Launch { topic: name.0, ordinal: name.1, number: self.launched }))
    }

    /// A rank has left in order. An error if others wait for it.
    pub fn leave(&mut self, rank: usize) -> Result<(), Error> {
        self.left[rank] = true;
        self.check_left()
    }

    /// Whether a rank has left in order.
    pub fn has_left(&self, rank: usize) -> bool {
        self.left[rank]
    }

    /// An error if some call has stayed alone for longer than the limit.
    pub fn check_time(&self, now_s: f64) -> Result<(), Error> {
        match self.pending.values().find(|pending| now_s - pending.since_s > self.limit_s) {
            None => Ok(()),
            Some(pending) => {
                let (rank, call) = pending.first();
                Err(Error::Stalled {
                    operation: call.operation.clone(),
                    key: call.topic.key(),
                    rank,
                    missing: pending.missing(),
                    waited_s: (now_s - pending.since_s) as u64,
                })
            }
        }
    }

    /// A call that this rank is part of or awaited in, to say what a lost peer interrupted.
    pub fn oldest(&self) -> Option<String> {
        let oldest = self.pending.values().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
        let (_, call) = oldest.first();
        Some(format!("{} of key {}", call.operation, call.topic.key()))
    }

    fn check_left(&self) -> Result<(), Error> {
        for pending in self.pending.values() {
            if let Some(gone) = pending.missing().into_iter().find(|rank| self.left[*rank]) {
                let (rank, call) = pending.first();
                return Err(Error::PeerLost {
                    peer: format!("rank {gone}"),
                    cause: "it ended its run without calling this".to_owned(),
                    operation: format!("{} of key {}", call.operation, call.topic.key()),
                    rank,
                });
            }
        }
        Ok(())
    }
}

impl Pending {
    fn missing(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|rank| self.calls[*rank].is_none()).collect()
    }

    fn first(&self) -> (usize, &Call) {
        let mut present = self.calls.iter().enumerate().filter_map(|(rank, call)| Some((rank, call.as_ref()?)));
        present.next().expect("an operation is pending because some rank has called it")
    }
}

fn disagreement(calls: &[Call]) -> Option<Error> {
    let first = calls.first()?;
    if calls.iter().all(|call| call.operation == first.operation && call.terms == first.terms) {
        return None;
    }
    let view = |(rank, call): (usize, &Call)| (rank, format!("{} of {}", call.operation, call.terms));
    Some(Error::Disagreement {
        key: first.topic.key(),
        operation: first.operation.clone(),
        views: calls.iter().enumerate().map(view).collect(),
        remedy: "every rank must use the same operations, shapes, dtypes and optimizer for a key".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: i64, ordinal: u64, terms: &str) -> Call {
        let topic = Topic::Key { store: 0, key: key.into() };
        Call { topic, ordinal, operation: "push".to_owned(), terms: terms.to_owned() }
    }

    #[test]
    fn an_operation_launches_when_every_rank_has_called_it_whatever_the_order() {
        let mut table = Agreement::new(2, 10.0);
        assert_eq!(table.call(0, call(1, 0, "f32"), 0.0), Ok(None));
        assert_eq!(table.call(0, call(2, 0, "f32"), 0.0), Ok(None));
        let second = table.call(1, call(2, 0, "f32"), 0.0).unwrap().unwrap();
        let first = table.call(1, call(1, 0, "f32"), 0.0).unwrap().unwrap();
        assert_eq!((second.number, first.number), (1, 2));
        assert_eq!(table.check_time(1e9), Ok(()));
    }

    #[test]
    fn pushing_twice_is_not_two_ranks_pushing_once() {
        let mut table = Agreement::new(2, 10.0);
        assert_eq!(table.call(0, call(1, 0, "f32"), 0.0), Ok(None));
        assert_eq!(table.call(0, call(1, 1, "f32"), 0.0), Ok(None));
        assert_eq!(table.check_time(9.0), Ok(()));
        let error = table.check_time(11.0).unwrap_err();
        assert!(matches!(error, Error::Stalled { ref missing, .. } if missing == &[1]), "{error}");
    }

    #[test]
    fn terms_that_differ_are_an_error_that_names_each_ranks_view() {
        let mut table = Agreement::new(2, 10.0);
        assert_eq!(table.call(1, call(7, 0, "f32 [3]"), 0.0), Ok(None));
        let text = table.call(0, call(7, 0, "f16 [3]"), 0.0).unwrap_err().to_string();
        assert!(
            text.contains("key 7") && text.contains("rank 0 has push of f16 [3], rank 1 has push of f32 [3]"),
            "{text}"
        );
    }

    #[test]
    fn a_rank_that_left_fails_those_who_wait_for_it_at_once() {
        let mut table = Agreement::new(2, 10.0);
        assert_eq!(table.leave(1), Ok(()));
        let text = table.call(0, call(7, 0, "f32"), 0.0).unwrap_err().to_string();
        assert!(text.contains("rank 1 is lost") && text.contains("push of key 7"), "{text}");
    }
}
