//! The hub of a communicator's ranks: the ranks that have come, and the bytes that each gives to a
//! collective.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::sums::ElementKind;
use super::{INVALID_USAGE, LOOK, REMOTE_ERROR, SYSTEM_ERROR};
use crate::findings::report;

/// A rank's call of a collective.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// The number of the collective in its communicator.
    pub(super) number: u64,
    pub(super) kind: ElementKind,
    pub(super) dtype: c_int,
    pub(super) root: usize,
    /// The bytes that the call counts.
    pub(super) len_bytes: usize,
    /// The bytes that the rank gives.
    pub(super) bytes: Vec<u8>,
}

#[derive(Default)]
struct NcclRound {
    given: Vec<Option<Call>>,
    taken: usize,
}

#[derive(Default)]
struct HubState {
    size: usize,
    /// Each rank's device, after the rank has come.
    members: Vec<Option<usize>>,
    rounds: HashMap<u64, NcclRound>,
    /// The ranks that will send nothing more.
    parted: Vec<bool>,
    /// The error of ranks that contradict each other, or of a rank that is gone.
    failed: Option<c_int>,
}

#[derive(Default)]
pub(super) struct NcclHub {
    state: Mutex<HubState>,
    changed: Condvar,
}

impl NcclHub {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Records that a rank has come. Returns an error if it contradicts the ranks that have come.
    pub(super) fn expect(&self, rank: usize, size: usize, device: usize) -> Result<(), c_int> {
        let mut state = self.state.lock();
        if state.size == 0 {
            state.size = size;
            state.members = vec![None; size];
            state.parted = vec![false; size];
        }
        let wrong = if state.size != size || rank >= size {
            Some(format!("rank {rank} of {size} meets ranks of {}", state.size))
        } else if state.members[rank].is_some() {
            Some(format!("two ranks are rank {rank}"))
        } else {
            let twice = state.members.iter().position(|other| *other == Some(device));
            twice.map(|other| format!("rank {other} and rank {rank} both have GPU {device}"))
        };
        if let Some(text) = wrong {
            // Ranks that share a GPU may try this: NCCL returns an error, and they use another route.
            if !text.contains("both have") {
                report("wrong use of NCCL", &text);
            }
            state.failed = Some(INVALID_USAGE);
        } else {
            state.members[rank] = Some(device);
        }
        self.changed.notify_all();
        state.failed.map_or(Ok(()), Err)
    }

    /// Waits until all ranks have come.
    pub(super) fn all(&self, is_aborted: &AtomicBool) -> Result<(), c_int> {
        self.wait(is_aborted, |state| state.members.iter().all(Option::is_some).then_some(())).map(drop)
    }

    /// Waits until `ready`.
    fn wait<T>(&self, is_aborted: &AtomicBool, mut ready: impl FnMut(&mut HubState) -> Option<T>) -> Result<T, c_int> {
        let mut state = self.state.lock();
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            if let Some(code) = state.failed {
                return Err(code);
            }
            if is_aborted.load(Ordering::Acquire) {
                return Err(SYSTEM_ERROR);
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Returns the bytes that `rank` receives of this collective. Waits for all ranks.
    pub(super) fn exchange(&self, rank: usize, call: Call, is_aborted: &AtomicBool) -> Result<Vec<u8>, c_int> {
        let number = call.number;
        {
            let state = &mut *self.state.lock();
            let size = state.size;
            let round = state.rounds.entry(number).or_default();
            round.given.resize_with(size, || None);
            let differs = |other: &Call| {
                (other.kind, other.dtype, other.root, other.len_bytes)
                    != (call.kind, call.dtype, call.root, call.len_bytes)
            };
            if let Some(other) = round.given.iter().flatten().find(|other| differs(other)) {
                // NCCL would hang, or write beyond its memory.
                let words =
                    |call: &Call| format!("{:?} of {} bytes of dtype {}", call.kind, call.len_bytes, call.dtype);
                let text = format!("collective {number}: rank {rank} calls {}, another {}", words(&call), words(other));
                report("wrong use of NCCL", &text);
                state.failed = Some(INVALID_USAGE);
            } else {
                round.given[rank] = Some(call);
            }
            self.changed.notify_all();
        }
        self.wait(is_aborted, |state| {
            let size = state.size;
            let round = state.rounds.get_mut(&number)?;
            let given: Vec<&Call> = round.given.iter().flatten().collect();
            if given.len() < size {
                return None;
            }
            let first = given[0];
            let bytes: Vec<&[u8]> = given.iter().map(|call| &call.bytes[..]).collect();
            let result = if first.kind.gets(rank, first.root) {
                first.kind.result(first.dtype, &bytes, first.root, rank)
            } else {
                Vec::new()
            };
            round.taken += 1;
            if round.taken == size {
                state.rounds.remove(&number);
            }
            Some(result)
        })
    }

    /// Records that `rank` sends nothing more. Waits until this holds for all ranks.
    pub(super) fn part(&self, rank: usize, is_aborted: &AtomicBool) -> Result<(), c_int> {
        self.state.lock().parted[rank] = true;
        self.changed.notify_all();
        self.wait(is_aborted, |state| state.parted.iter().all(|parted| *parted).then_some(()))
    }

    /// Records that `rank` is gone. If it has not parted, ranks that wait for it get an error.
    pub(super) fn lose(&self, rank: usize) {
        let mut state = self.state.lock();
        if !state.parted.get(rank).copied().unwrap_or(false) {
            state.failed = state.failed.or(Some(REMOTE_ERROR));
        }
        self.changed.notify_all();
    }
}
