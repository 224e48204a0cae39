//! The answers of ranks to rank 0's question about their state.

use parking_lot::{Condvar, Mutex};

use ringpull_base::status::{LateRanks, RankStatus};

/// The answers that have come to rank 0.
#[derive(Default)]
pub(super) struct Answers {
    /// Held while a question is open.
    pub(super) asking: Mutex<()>,
    pub(super) come: Mutex<AnswerSet>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct AnswerSet {
    /// The number of the last question. Answers to earlier questions are dropped.
    pub(super) question: u32,
    pub(super) ranks: Vec<Option<RankStatus>>,
    pub(super) late: Option<LateRanks>,
}

impl Answers {
    /// Records the answer of rank `from`.
    pub(super) fn take(&self, question: u32, from: usize, status: RankStatus) {
        let mut come = self.come.lock();
        if come.question == question
            && let Some(place) = come.ranks.get_mut(from)
        {
            *place = Some(status);
        }
        self.changed.notify_all();
    }
}
