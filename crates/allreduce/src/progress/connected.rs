//! The ranks of a transport, its end, and the way in which survivors of a loss go on.

use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{Error, Result};

use crate::transport::Transport;
use crate::transport::control::Control;

/// The time that MPI may take to notice the end of a process that this rank has noticed in another way.
pub(super) const LEARNING: Duration = Duration::from_millis(200);

/// Returns true if the ranks `part` of `size` ranks may go on, although ranks that they cannot reach may be
/// alive. They must be more than half of all ranks, or half of them with rank 0.
pub(super) fn is_enough(part: &[usize], size: usize) -> bool {
    2 * part.len() + usize::from(part.contains(&0)) > size
}

/// Returns an error if too few of the `size` ranks of a job are left at its start.
pub(super) fn check_start(ranks: &[usize], size: usize) -> Result<()> {
    if is_enough(ranks, size) {
        return Ok(());
    }
    let lost: Vec<usize> = (0..size).filter(|rank| !ranks.contains(rank)).collect();
    Err(Error::PeerLost {
        peer: format!("rank(s) {lost:?}"),
        cause: format!(
            "{} of {size} ranks are left, too few to start the job: the others may still be alive",
            ranks.len()
        ),
        ranks: lost,
        operation: "start".to_owned(),
        rank: None,
    })
}

/// A function that connects a transport and its control star. It is called on the comm thread.
pub type Connect = Box<dyn FnOnce() -> Result<ReadyTransport> + Send>;

/// A transport that is ready, and the function that ends it.
pub struct ReadyTransport {
    /// The wire.
    pub transport: Box<dyn Transport>,
    /// The control star over the same ranks.
    pub control: Control,
    /// The number of helpers, which only reduce. They are the last ranks.
    pub helpers: usize,
    /// Ends the library. It is called after the transport was dropped without a fault.
    pub finalise: Box<dyn FnOnce()>,
    /// The way in which the survivors of a lost rank connect; `None` if the job cannot go on without a rank.
    pub succession: Option<Succession>,
}

/// The way in which the survivors of a lost rank connect.
pub struct Succession {
    /// The numbers that the current ranks had in the previous generation.
    pub ranks: Vec<usize>,
    /// The number of ranks in the previous generation.
    pub among: usize,
    /// Connects the survivors. If no rank is lost, it returns the fault with which it was called. It is
    /// called on the comm thread.
    pub next: Next,
    /// Makes the transport treat silent ranks as lost.
    pub sever: Sever,
}

/// Ends the connections to some of the current ranks, which may be alive. It is called on any thread.
pub type Sever = Arc<dyn Fn(&[usize]) + Send + Sync>;

/// Connects the ranks that are left, after a fault.
pub type Next = Box<dyn FnOnce(&Error) -> Result<ReadyTransport>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_parts_of_a_job_that_starts_one_alone_goes_on() {
        assert!(check_start(&[0, 1, 2, 3, 4, 5, 6, 7], 8).is_ok());
        for part in [&[0][..], &[0, 7], &[0, 1, 2, 3], &[1, 2, 3, 4, 5, 6]] {
            let others: Vec<usize> = (0..8).filter(|rank| !part.contains(rank)).collect();
            assert_ne!(check_start(part, 8).is_ok(), check_start(&others, 8).is_ok(), "{part:?}");
        }
        let error = check_start(&[0], 8).unwrap_err().to_string();
        assert!(error.contains("1 of 8 ranks are left"), "{error}");
    }
}
