//! The output of a process about the error that ends it: one line with the rank, the error and its cause, and
//! then at most one hint.
//!
//! An error reaches every rank, with the same text. The rank on which it occurred prints the error and the
//! hint. A rank that only hears of it prints one line: that it stops, and why. A lost process prints nothing
//! itself, so the lowest surviving rank prints the hint.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::say_wait;
use crate::{Error, config};

/// This process's rank among several, after it has made a store.
static RANK: OnceLock<usize> = OnceLock::new();

/// True if the last words about an error were requested. They are then printed.
static HAS_SPOKEN: AtomicBool = AtomicBool::new(false);

/// Returns true if this process has printed the error that ends it, or is about to.
pub fn has_spoken() -> bool {
    HAS_SPOKEN.load(Ordering::Relaxed)
}

/// True if this process has a store without other workers.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// Records that this process is worker `rank` of `num_workers`. Only the first call for several workers
/// counts.
pub fn introduce(rank: usize, num_workers: usize) {
    if num_workers > 1 {
        RANK.get_or_init(|| rank);
    } else {
        IS_ALONE.store(true, Ordering::Relaxed);
    }
}

/// Returns this process's rank among the processes that get its errors. Returns `None` if it has only a store
/// without other workers, whatever its launcher has set.
pub fn store_rank() -> Option<usize> {
    RANK.get().copied().or_else(|| config::launcher_rank().filter(|_| !IS_ALONE.load(Ordering::Relaxed)))
}

/// Returns this process's rank if it is one of several workers, as far as it or its launcher knows.
pub fn own_rank() -> Option<usize> {
    RANK.get().copied().or_else(config::launcher_rank)
}

/// Returns true if the log is to contain everything (`RINGPULL_LOG=ringpull=debug`).
pub fn is_debugged() -> bool {
    tracing::enabled!(target: "ringpull", tracing::Level::DEBUG)
}

/// The last words of a process about an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastWords {
    /// The fault, of this process or another, in one line, without this process's name.
    pub line: String,
    /// The remedy.
    pub hint: Option<String>,
    /// True if the error occurred in another process.
    pub is_heard: bool,
}

impl Error {
    /// Returns the output of this process when this error ends it. It is the rank and the last words, or the
    /// whole error if the process is alone.
    pub fn report(&self) -> String {
        let Some(rank) = own_rank() else { return format!("error: {self}") };
        let LastWords { line, hint, .. } = self.last_words(store_rank());
        format!("rank {rank}: {line}{}", hint.map_or_else(String::new, |hint| format!("\n  hint: {hint}")))
    }

    /// The message in one line, without its hint.
    pub fn cause(&self) -> String {
        self.parts().0
    }

    /// Returns the message in one line, and its hint. Additions belong between the two.
    pub fn parts(&self) -> (String, Option<String>) {
        let text = self.to_string();
        let (cause, hint) =
            text.split_once("\n  hint: ").map_or((&text[..], None), |(cause, hint)| (cause, Some(hint)));
        (cause.split('\n').map(str::trim).collect::<Vec<_>>().join(" "), hint.map(str::to_owned))
    }

    /// Returns the last words of the worker `rank` when this error ends it. Without a rank, returns those of
    /// a server, the scheduler, or a process that is alone.
    pub fn last_words(&self, rank: Option<usize>) -> LastWords {
        HAS_SPOKEN.store(true, Ordering::Relaxed);
        let (cause, hint) = self.parts();
        if !self.is_heard_by(rank) {
            return LastWords { line: format!("failed: {cause}"), hint, is_heard: false };
        }
        let (line, has_hint) = match self {
            Error::Finished { peer, operation, rank, why, .. } if !why.is_empty() => {
                (format!("{peer} failed: {why}; rank {rank} waited for its {operation}"), false)
            }
            Error::Finished { ranks, .. } | Error::PeerLost { ranks, .. } => {
                (cause, rank == (0..=ranks.len()).find(|rank| !ranks.contains(rank)))
            }
            Error::Deadlock { waits } => {
                let own = waits.iter().find(|(waits, _)| Some(*waits) == rank);
                (own.map_or(cause, |own| format!("every rank waits for another: {}", say_wait(own))), false)
            }
            _ => (cause, false),
        };
        LastWords { line: format!("stopped: {line}"), hint: hint.filter(|_| has_hint), is_heard: true }
    }

    /// Returns true if the error occurred on another rank, which prints it in full.
    fn is_heard_by(&self, rank: Option<usize>) -> bool {
        match self {
            Error::PeerLost { .. } | Error::Finished { .. } | Error::Elsewhere { .. } => true,
            Error::Deadlock { waits } => rank != waits.first().map(|(rank, _)| *rank),
            Error::Disagreement { views, .. } => {
                let odd = views.iter().find(|(_, view)| *view != views[0].1);
                let speak = [views.first(), odd].into_iter().flatten();
                !speak.map(|(rank, _)| Some(*rank)).any(|speaks| speaks == rank)
            }
            Error::Stalled { rank: met, .. } => rank != Some(*met),
            Error::ReplicasDiffer { ranks, .. } => rank != ranks.first().copied(),
            Error::MixedKeyTypes { rank: met, .. }
            | Error::NotInitialized { rank: met, .. }
            | Error::AlreadyInitialized { rank: met, .. }
            | Error::ShapeMismatch { rank: met, .. }
            | Error::DtypeMismatch { rank: met, .. }
            | Error::NotFinite { rank: met, .. }
            | Error::UpdaterFailed { rank: met, .. } => rank.is_some_and(|rank| rank != *met),
            Error::Protocol { rank: met, .. }
            | Error::Library { rank: met, .. }
            | Error::ThreadEnded { rank: met, .. } => rank.zip(*met).is_some_and(|(rank, met)| rank != met),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    fn words(error: &Error, rank: usize) -> (String, Option<String>) {
        let words = error.last_words(Some(rank));
        (words.line, words.hint)
    }

    #[test]
    fn the_rank_that_met_an_error_prints_its_hint_and_others_print_one_line() {
        let error = Error::ShapeMismatch {
            key: Key::from(3),
            operation: "push".to_owned(),
            rank: 1,
            expected: vec![4],
            got: vec![5],
        };
        let (line, hint) = words(&error, 1);
        assert_eq!(line, "failed: push of key 3 on rank 1: shape [5], but init gave [4]");
        assert_eq!(hint.unwrap(), "every value of a key has the shape it was initialised with");
        assert_eq!(words(&error, 0), (format!("stopped: {}", error.cause()), None));
        assert!(!error.last_words(None).is_heard, "a process that is alone");
    }

    #[test]
    fn a_lost_process_is_hinted_at_by_the_lowest_rank_that_is_left() {
        let lost =
            [("rank 1 (pid 7 on h)", vec![1], 0), ("server 1 (h:4711)", vec![], 0), ("rank(s) [0, 1]", vec![0, 1], 2)];
        for (peer, ranks, speaks) in lost {
            let (cause, operation) = ("its process ended".to_owned(), "push of key 1".to_owned());
            let error = Error::PeerLost { peer: peer.to_owned(), ranks, cause, operation, rank: Some(2) };
            for rank in 0..4 {
                let found = error.last_words(Some(rank));
                assert!(found.is_heard && found.line.starts_with(&format!("stopped: {peer} is lost: ")), "{found:?}");
                assert_eq!(found.hint.is_some(), rank == speaks, "{peer} on rank {rank}");
            }
        }
    }

    #[test]
    fn the_error_that_ended_a_peer_has_no_hint_here_as_the_peer_prints_it() {
        let ended = |why: &str| Error::Finished {
            peer: "rank 1".to_owned(),
            ranks: vec![1],
            operation: "push of key \"w\"".to_owned(),
            rank: 0,
            why: why.to_owned(),
        };
        let line = "stopped: rank 1 failed: ValueError: odd; rank 0 waited for its push of key \"w\"";
        assert_eq!(words(&ended("ValueError: odd"), 2), (line.to_owned(), None));
        assert!(words(&ended(""), 0).1.is_some() && words(&ended(""), 2).1.is_none());
    }

    #[test]
    fn in_a_deadlock_the_first_rank_says_all_of_it_and_others_what_they_wait_for() {
        let waits = (0..12).map(|rank| (rank, format!(" for push of key {rank}")));
        let error = Error::Deadlock { waits: waits.collect() };
        let (line, hint) = words(&error, 0);
        assert!(line.contains("rank 11 waits") && hint.is_some(), "{line}");
        let line = "stopped: every rank waits for another: rank 1 waits for push of key 1";
        assert_eq!(words(&error, 1), (line.to_owned(), None));
    }

    #[test]
    fn of_a_disagreement_speak_the_first_rank_and_the_first_that_differs() {
        let views = [(0, "[4]"), (1, "[4]"), (2, "[5]"), (3, "[5]")].map(|(rank, view)| (rank, view.to_owned()));
        let (key, operation, remedy) = (Key::from("w"), "init".to_owned(), "agree".to_owned());
        let error = Error::Disagreement { key, operation, views: views.to_vec(), remedy };
        let heard: Vec<bool> = (0..5).map(|rank| error.last_words(Some(rank)).is_heard).collect();
        assert_eq!(heard, [false, true, false, true, true]);
    }
}
