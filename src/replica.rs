//! The replica of a store on each rank of `dist_sync_mpi`: the values, their updates, and the residuals of
//! codecs.
//!
//! A rank that has joined keeps all of this like the others: for each push of theirs it makes a push of
//! zeros, with their settings, which are sent with the call. Only an updater cannot be sent. It has to be the
//! same on every rank anyway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;

use ringpull_allreduce::progress::{Operation, StandIn, Submission, Terms};
use ringpull_base::{Buffer, Error, Key, Result};
use ringpull_kernels::compress::Compression;

use crate::backlog::Backlog;
use crate::check;
use crate::compressed::Compressor;
use crate::jobs::{CompressedPush, Push, PushRows};
use crate::slot::Slot;
use crate::update::{Update, Updates};
use crate::{Contribution, Entry, MergedRows};

/// One rank's replica of a store.
pub(super) struct Replica {
    pub(super) rank: usize,
    pub(super) slots: RwLock<BTreeMap<Key, Arc<Slot>>>,
    pub(super) updates: Arc<Updates>,
    pub(super) compressor: Compressor,
    /// The bytes of calls that are not done, and the waits for such calls.
    pub(super) unfinished_bytes: Arc<AtomicU64>,
    pub(super) backlog: Backlog,
}

impl Replica {
    pub(super) fn new(rank: usize) -> Self {
        Replica {
            rank,
            slots: RwLock::default(),
            updates: Arc::default(),
            compressor: Compressor::default(),
            unfinished_bytes: Arc::default(),
            backlog: Backlog::default(),
        }
    }
}

/// Returns the terms of a push, which must be the same on every rank.
pub(super) fn terms(entry: &Entry, update: &Update, compression: Option<Compression>) -> Terms {
    let optimizer = match update {
        Update::Optimize(optimizer) | Update::Shard(optimizer) => Some(Arc::clone(optimizer)),
        Update::Overwrite | Update::Call(_) => None,
    };
    let (value, has_updater) = (Some((entry.dtype, Arc::clone(&entry.shape))), matches!(update, Update::Call(_)));
    Terms {
        value,
        optimizer,
        is_sharded: matches!(update, Update::Shard(_)),
        has_updater,
        compression,
        ..Terms::default()
    }
}

impl StandIn for Replica {
    fn stand_in(&self, key: &Key, operation: &Operation, theirs: &Terms) -> Result<Submission> {
        let rank = self.rank;
        let wrong = |what: String, remedy: &str| {
            Error::argument(format!("{operation} of key {key} after rank {rank} has joined: {what}"), remedy)
        };
        let slot = self.slots.read().get(key).cloned().filter(|_| *operation != Operation::Init);
        let slot =
            slot.ok_or_else(|| wrong("that rank has no such key".to_owned(), "init every key before any rank joins"))?;
        let update = match (&theirs.optimizer, self.updates.present(&slot.entry)) {
            (Some(optimizer), _) if theirs.is_sharded => Update::Shard(Arc::clone(optimizer)),
            (Some(optimizer), _) => Update::Optimize(Arc::clone(optimizer)),
            (None, Ok(Update::Call(updater))) => Update::Call(updater),
            (None, _) => Update::Overwrite,
        };
        let ours = terms(&slot.entry, &update, theirs.compression);
        if ours != *theirs {
            let what = format!("other ranks have {theirs}, but this rank has {ours}");
            return Err(wrong(what, "give every rank the same keys and the same updater before any joins"));
        }
        slot.call(true);
        let zeros = || Contribution::Summed(Buffer::zeroed(slot.entry.len_bytes()));
        let job = match theirs.compression {
            _ if *operation == Operation::PushRows => {
                let nothing = MergedRows { ids: Vec::new(), rows: Arc::new(Buffer::zeroed(0)) };
                Submission::new(PushRows::new(&slot, nothing, update, &self.updates, (0, false)))
            }
            None => Submission::new(Push::new(&slot, zeros(), Vec::new(), update, &self.updates, (0, false))),
            Some(compression) => {
                let coding = self.compressor.coding_by(key, compression);
                Submission::new(CompressedPush::new(
                    &slot,
                    zeros(),
                    Vec::new(),
                    update,
                    &self.updates,
                    (coding, 0, false),
                ))
            }
        };
        Ok(job.after(check::before(&slot)))
    }

    fn last_sum(&self, key: &Key) -> Option<Vec<u8>> {
        self.slots.read().get(key)?.last_sum()
    }

    fn check_complete(&self) -> Result<()> {
        if !self.updates.are_shards() {
            return Ok(());
        }
        Err(Error::Unsupported {
            kind: "dist_sync_mpi".to_owned(),
            operation: "going on without a lost rank".to_owned(),
            reason: "its part of the sharded optimizer's states is lost with it; commit the state by \
                     ringpull.elastic, and start the job by `ringpull launch --elastic`, which restores it"
                .to_owned(),
        })
    }
}
