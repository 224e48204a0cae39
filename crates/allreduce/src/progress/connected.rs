//! The ranks that a transport joins, how it is ended, and how those that are left go on after a loss.

use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{Error, Result};

use crate::transport::Transport;
use crate::transport::control::Control;

/// How long MPI may take to learn that a process is gone whose end was noticed otherwise.
pub(super) const LEARNING: Duration = Duration::from_millis(200);

/// How a transport and its control star come to be; called on the comm thread.
pub type Connect = Box<dyn FnOnce() -> Result<Connected> + Send>;

/// A transport that is ready, and how to end it.
pub struct Connected {
    /// The wire.
    pub transport: Box<dyn Transport>,
    /// The control star over the same ranks.
    pub control: Control,
    /// How many of the ranks, the last ones, only reduce.
    pub helpers: usize,
    /// Whether ranks are processes, whose cluster `auto` has to know. Threads of one process are not.
    pub is_cluster: bool,
    /// What ends the library, after the transport was dropped without a fault.
    pub finalise: Box<dyn FnOnce()>,
    /// How those that are left go on when a rank is lost, if they can.
    pub succession: Option<Succession>,
}

/// How the ranks that are left go on when a rank is lost.
pub struct Succession {
    /// The numbers that the present ranks had among those before them.
    pub ranks: Vec<usize>,
    /// Connects those that are left. Returns what it is given if no rank is lost. On the comm thread.
    pub next: Next,
    /// Lets the transport take ranks for lost from which nothing is heard.
    pub sever: Sever,
}

/// Ends the connections to some of the present ranks, which may live. On any thread.
pub type Sever = Arc<dyn Fn(&[usize]) + Send + Sync>;

/// Connects the ranks that are left, after a fault.
pub type Next = Box<dyn FnOnce(&Error) -> Result<Connected>>;
