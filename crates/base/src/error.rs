//! The one error type. It has a variant for each fault that a caller can handle, with fields instead of
//! formatted strings.
//!
//! An error of one rank is sent to the others and returned there with the same text, so every variant can be
//! cloned and serialised.

use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::Key;

/// An error: the fault, its place, and the remedy.
///
/// The text is lower case without a full stop; a remedy stands on its own line, after `hint:`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `create` was given a name that is no kind of store. Names are never guessed at.
    #[error("unknown kind of store {given:?}\n  hint: the kinds are {known}")]
    UnknownKind {
        /// The name as it was given.
        given: String,
        /// The names that exist, and which of them may have been meant.
        known: String,
    },
    /// The kind exists, but this build, machine or process cannot have it.
    #[error("store kind {kind} is not available: {reason}\n  hint: {remedy}")]
    KindUnavailable {
        /// The kind asked for.
        kind: String,
        /// The missing part.
        reason: String,
        /// A part to install, set or choose instead.
        remedy: String,
    },
    /// The operation exists, but not for this kind of store or this kind of value.
    #[error("{operation} is not supported by {kind}: {reason}")]
    Unsupported {
        /// The kind of store.
        kind: String,
        /// The operation, in the API's word.
        operation: String,
        /// The reason, and the alternative.
        reason: String,
    },
    /// A store holds either integer keys or string keys. Its first call decides which.
    #[error(
        "mixed key types are not allowed: key {key} on rank {rank} in a store whose first key was {first}\n  hint: use only integers or only strings as keys of one store"
    )]
    MixedKeyTypes {
        /// The key that differs.
        key: Key,
        /// A key of the type the store has.
        first: Key,
        /// The rank that called.
        rank: usize,
    },
    /// A key was pushed or pulled before `init`.
    #[error(
        "{operation} of key {key} on rank {rank}: the key has not been initialised\n  hint: call init or broadcast for it first, on every rank"
    )]
    NotInitialized {
        /// The key.
        key: Key,
        /// `push`, `pull`, ...
        operation: String,
        /// The rank that called.
        rank: usize,
    },
    /// `init` was called twice for a key.
    #[error(
        "duplicate init of key {key} on rank {rank}\n  hint: init or broadcast a key once; use push to change its value"
    )]
    AlreadyInitialized {
        /// The key.
        key: Key,
        /// The rank that called.
        rank: usize,
    },
    /// A value's shape is not the key's.
    #[error(
        "{operation} of key {key} on rank {rank}: shape {got:?}, but init gave {expected:?}\n  hint: every value of a key has the shape it was initialised with"
    )]
    ShapeMismatch {
        /// The key.
        key: Key,
        /// `push`, `pull`, ...
        operation: String,
        /// The rank that called.
        rank: usize,
        /// The key's shape.
        expected: Vec<usize>,
        /// The value's shape.
        got: Vec<usize>,
    },
    /// A value's dtype is not the key's.
    #[error(
        "{operation} of key {key} on rank {rank}: dtype {got}, but init gave {expected}\n  hint: every value of a key has the dtype it was initialised with"
    )]
    DtypeMismatch {
        /// The key.
        key: Key,
        /// `push`, `pull`, ...
        operation: String,
        /// The rank that called.
        rank: usize,
        /// The key's dtype.
        expected: String,
        /// The value's dtype.
        got: String,
    },
    /// The ranks called the same operation with arguments that do not fit together.
    #[error("the ranks disagree on key {key} in {operation}: {}\n  hint: {remedy}", list_views(views))]
    Disagreement {
        /// The key.
        key: Key,
        /// The operation.
        operation: String,
        /// Each rank's view, in words.
        views: Vec<(usize, String)>,
        /// The change that avoids the error.
        remedy: String,
    },
    /// An argument is wrong in itself. Nothing was changed.
    #[error("{what}\n  hint: {remedy}")]
    InvalidArgument {
        /// The fault.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// Some ranks wait for others that live but have not called.
    #[error(
        "{operation} of key {key} on rank {rank} waited {waited_s} s: rank(s) {missing:?} have not called it{}\n  hint: every rank must make every call of a step within RINGPULL_TIMEOUT seconds of the others: see what those ranks do instead",
        if why.is_empty() { String::new() } else { format!("; {why}") }
    )]
    Stalled {
        /// The operation that waits.
        operation: String,
        /// Its key.
        key: Key,
        /// The rank that waited.
        rank: usize,
        /// The ranks that did not come.
        missing: Vec<usize>,
        /// The time that it waited, in seconds.
        waited_s: u64,
        /// The reason that the missing ranks themselves wait, or nothing.
        why: String,
    },
    /// Every rank that has not ended waits for a call that another rank has not made, so none can go on.
    #[error(
        "every rank waits for another: {}\n  hint: call every key of a step on every rank before waiting for one of them: reading an output, pull, barrier and wait all wait",
        waits.iter().map(say_wait).collect::<Vec<_>>().join("; ")
    )]
    Deadlock {
        /// For each rank the text behind `rank 1 waits`: the place of its program, if known, the operation,
        /// and the ranks that have not called it.
        waits: Vec<(usize, String)>,
    },
    /// A rank has ended its program normally, and another rank waits for it. Their numbers of steps differ.
    #[error("{peer} ended its run without calling {operation}, for which rank {rank} waits{}", say_why_ended(why))]
    Finished {
        /// The other process, such as `rank 3 (pid 71 on h4)`.
        peer: String,
        /// Its rank.
        ranks: Vec<usize>,
        /// The operation for which the other rank waits, with the key.
        operation: String,
        /// The rank that waits.
        rank: usize,
        /// The last error of the rank that ended, in one line. It need not be the reason for the end. Empty
        /// if there was none, or if a later call has succeeded.
        why: String,
    },
    /// A peer is gone.
    #[error(
        "{peer} is lost: {cause} (during {operation}{})\n  hint: see that process's own output and its host's log, and restart the job from its last checkpoint",
        on_rank(*rank)
    )]
    PeerLost {
        /// The lost process, such as `rank 3 (pid 71 on h4)` or `server 1 (10.55.0.3:4711)`.
        peer: String,
        /// The lost ranks, or the ranks among which the lost one is. Empty for a server.
        ranks: Vec<usize>,
        /// The observation that showed the loss.
        cause: String,
        /// The operation under way, with the key.
        operation: String,
        /// The rank that reports, or `None` for a scheduler or a server.
        rank: Option<usize>,
    },
    /// The job was stopped because of another error, which is the one to report.
    #[error("the job was stopped")]
    Stopped {},
    /// A thread of the store has ended although it was not asked to.
    #[error("{thread} has ended{}\n  hint: see what it printed before, and restart the job", on_rank(*rank))]
    ThreadEnded {
        /// The name of the thread.
        thread: String,
        /// The rank whose thread it was, if it had one yet.
        rank: Option<usize>,
    },
    /// Not all processes of the job have started in time.
    #[error("{what}\n  hint: {remedy}")]
    Incomplete {
        /// The number of processes that have come, and the time.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The processes that have started do not make one job: their settings or their numbers differ.
    #[error("{what}\n  hint: {remedy}")]
    JobMismatch {
        /// The difference.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The job has exceeded a limit, although no single call is wrong.
    #[error("{what}\n  hint: {remedy}")]
    LimitExceeded {
        /// The quantity that is too large, and its limit.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The system has no memory for a call. Nothing was changed.
    #[error(
        "there is no memory for {what}, {len_bytes} bytes\n  hint: use smaller values, fewer ranks on this host, or raise the limit of memory, which `ulimit -v` and a container's settings show"
    )]
    OutOfMemory {
        /// The purpose of the memory, such as `an array`.
        what: String,
        /// The size that was requested.
        len_bytes: usize,
    },
    /// Another process met the error. The message of that process has the details.
    #[error("{what}\n  hint: see {peer}'s own message")]
    Elsewhere {
        /// The part of the error that is known here.
        what: String,
        /// The process that met it, such as `rank 0`.
        peer: String,
    },
    /// A state that cannot occur has occurred.
    #[error("{what}\n  hint: report this as a bug of ringpull, with what the program printed before")]
    Bug {
        /// The state.
        what: String,
    },
    /// Bytes arrived that do not fit the protocol. They were not applied.
    #[error("protocol error{}: {what} from {peer}\n  hint: {remedy}", on_rank(*rank))]
    Protocol {
        /// The rank that reports, if it has one yet.
        rank: Option<usize>,
        /// The sender.
        peer: String,
        /// The content.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// A call of a library failed. The error has the library's own code and text.
    #[error("{library}: {call} failed{}: {text} (code {code})", on_rank(*rank))]
    Library {
        /// `Open MPI`, `MPICH`, `NCCL`, ...
        library: String,
        /// The call.
        call: String,
        /// Its code.
        code: i64,
        /// Its words.
        text: String,
        /// The rank that called, if the caller knows of ranks. A device does not.
        rank: Option<usize>,
    },
    /// A file or socket could not be used.
    #[error("cannot {action} {path}: {text}{}", if remedy.is_empty() { String::new() } else { format!("\n  hint: {remedy}") })]
    Io {
        /// `write`, `connect to`, ...
        action: String,
        /// The file or address.
        path: String,
        /// The system's words.
        text: String,
        /// The remedy, if the system's text does not have it.
        remedy: String,
    },
    /// `RINGPULL_CHECK_NAN=1` found a value that is not finite.
    #[error(
        "{what} in element {index} of key {key} pushed by rank {rank}\n  hint: RINGPULL_CHECK_NAN=1 turned this check on; look at that rank's loss and learning rate"
    )]
    NotFinite {
        /// The key.
        key: Key,
        /// The rank whose value it is.
        rank: usize,
        /// The element's index.
        index: usize,
        /// `NaN` or `Inf`.
        what: String,
    },
    /// `RINGPULL_CHECK_REPLICAS` found that the ranks hold different values of a key.
    #[error(
        "the replicas of key {key} differ after update {update}: {}\n  hint: RINGPULL_CHECK_REPLICAS turned this check on; the cause is an updater that does not compute the same on every rank, or faulty memory: fix it, and restart the job from an older checkpoint",
        say_replicas(ranks, others)
    )]
    ReplicasDiffer {
        /// The key.
        key: Key,
        /// The number of earlier updates of the key.
        update: u64,
        /// The ranks with a value that differs from the most frequent one.
        ranks: Vec<usize>,
        /// The ranks with the most frequent value.
        others: Vec<usize>,
    },
    /// An updater of the program has failed.
    #[error(
        "the updater of key {key} on rank {rank} raised {cause}\n  hint: see the traceback that this rank has printed"
    )]
    UpdaterFailed {
        /// The key.
        key: Key,
        /// The rank that called it.
        rank: usize,
        /// The error that it raised.
        cause: String,
    },
    /// An environment variable has a value that cannot be used.
    #[error("{}: expected {expected}\n  hint: {remedy}", say_variable(variable, value))]
    Environment {
        /// Its name.
        variable: String,
        /// Its value, empty if unset.
        value: String,
        /// The valid values.
        expected: String,
        /// The remedy.
        remedy: String,
    },
    /// A signal, such as that of Ctrl-C, ended a wait. The call itself goes on, unless it was a push that
    /// still waited for room.
    #[error("a signal interrupted the wait")]
    Interrupted {},
    /// This process was started by an MPI rank and has inherited the variables of that rank, but it is not
    /// that rank.
    #[error(
        "{what}: it has only inherited the place of that rank in the job\n  hint: create the store in the rank itself; a script that uses multiprocessing needs `if __name__ == \"__main__\":` around its program; a child that needs a store of its own creates the kind local, or is started without the variables that begin with {variables}"
    )]
    Inherited {
        /// The process that the child inherits from.
        what: String,
        /// The prefixes of the variables that make a process a rank.
        variables: String,
    },
    /// A forked child called an object that only its parent can use.
    #[error(
        "{what} belongs to process {pid}; a forked child cannot use it\n  hint: call it in that process alone, and give the child data; a child that needs a store of its own creates the kind local"
    )]
    Forked {
        /// The object that was used, such as `this store`.
        what: String,
        /// The process that made it.
        pid: u32,
    },
}

impl Error {
    /// Makes an I/O error with the operation and its path.
    pub fn io(action: &str, path: impl std::fmt::Display, cause: &std::io::Error) -> Self {
        let remedy = match cause.kind() {
            ErrorKind::NotFound if action == "run" => "install it, or put its folder into PATH",
            ErrorKind::NotFound => {
                "check the spelling; a path that does not begin with / is relative to the folder in which the command runs"
            }
            ErrorKind::FileTooLarge => "raise the limit of a file's length, which `ulimit -f` shows",
            ErrorKind::PermissionDenied => "give this user access to it, or name another",
            _ => "",
        };
        let (action, path, text) = (action.to_owned(), path.to_string(), cause.to_string());
        Error::Io { action, path, text, remedy: remedy.to_owned() }
    }

    /// Makes the error of a wrong argument, with its remedy.
    pub fn argument(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::InvalidArgument { what: what.into(), remedy: remedy.into() }
    }

    /// Makes the error of processes that do not form one job, with its remedy.
    pub fn job_mismatch(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::JobMismatch { what: what.into(), remedy: remedy.into() }
    }

    /// Makes the error of a limit that was exceeded, with its remedy.
    pub fn limit(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::LimitExceeded { what: what.into(), remedy: remedy.into() }
    }

    /// Makes the error for an error of another `rank`, with the part of it that is known here.
    pub fn on_rank(rank: usize, what: impl Into<String>) -> Self {
        Error::Elsewhere { what: what.into(), peer: format!("rank {rank}") }
    }

    /// Makes the error of a state that cannot occur.
    pub fn bug(what: impl Into<String>) -> Self {
        Error::Bug { what: what.into() }
    }

    /// Makes the error of bytes that do not fit the protocol. The remedy is for processes that run different
    /// programs.
    pub fn protocol(rank: impl Into<Option<usize>>, peer: impl Into<String>, what: impl Into<String>) -> Self {
        let remedy = "run the same program, with the same version of ringpull and the same settings, on every rank";
        Error::Protocol { rank: rank.into(), peer: peer.into(), what: what.into(), remedy: remedy.to_owned() }
    }

    /// Returns the error with the rank `met_by`, because the code that failed did not know of ranks.
    #[must_use]
    pub fn met_by(mut self, met_by: usize) -> Self {
        if let Error::PeerLost { rank, .. } | Error::Library { rank, .. } | Error::Protocol { rank, .. } = &mut self {
            rank.get_or_insert(met_by);
        }
        self
    }
}

fn list_views(views: &[(usize, String)]) -> String {
    let parts: Vec<String> = views.iter().map(|(rank, view)| format!("rank {rank} has {view}")).collect();
    parts.join(", ")
}

fn on_rank(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" on rank {rank}"))
}

/// Describes one rank's wait in a deadlock.
pub(crate) fn say_wait((rank, what): &(usize, String)) -> String {
    format!("rank {rank} waits{what}")
}

fn say_replicas(ranks: &[usize], others: &[usize]) -> String {
    let unsure =
        if ranks.len() < others.len() { "" } else { "; no value is that of most, so each may be the wrong one" };
    format!("rank(s) {ranks:?} have another value than rank(s) {others:?}{unsure}")
}

fn say_variable(variable: &str, value: &str) -> String {
    if value.is_empty() { format!("{variable} is not set") } else { format!("{variable}={value:?} cannot be used") }
}

/// The remedy if ranks give a key different first values.
pub const INIT_ALIKE: &str = "init the key with one shape and dtype on every rank";

/// Returns the cause of a loss, with the last error of the lost peer, if it reported one.
pub fn after_error(cause: &str, why: Option<&str>) -> String {
    why.map_or_else(|| cause.to_owned(), |why| format!("{cause} after this error: {why}"))
}

fn say_why_ended(why: &str) -> String {
    if why.is_empty() {
        return "\n  hint: give every rank the same number of steps".to_owned();
    }
    format!(
        "; before that it met this error: {why}\n  hint: see that rank's own output, fix this error, and restart the job from its last checkpoint"
    )
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A function that is called with a fault, once. It does not block.
pub type OnFault = Box<dyn Fn(&Error) + Send + Sync>;
