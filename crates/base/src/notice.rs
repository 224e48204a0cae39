//! Notices for people when nothing has failed: a misspelt variable, a rank that ends the others' job, a lost
//! timeline.
//!
//! A library does not print. A notice is a warning of the log, until the program that owns stderr takes them
//! with [`send_to`]: the command and the Python package write them out as they are.

use std::sync::OnceLock;

static SINK: OnceLock<fn(&str)> = OnceLock::new();

/// Hands every notice from now on to `sink`, which must not block for long. Only the first call counts.
pub fn send_to(sink: fn(&str)) {
    SINK.get_or_init(|| sink);
}

/// Hands `text`, of one or more lines without a last line feed, to the handler of notices.
pub fn notice(text: &str) {
    if let Some(sink) = SINK.get() {
        sink(text);
    } else {
        tracing::warn!("{text}");
    }
}

/// As [`notice`], for news that is no warning: a line of the log at level `info` where nobody takes notices.
pub fn inform(text: &str) {
    if let Some(sink) = SINK.get() {
        sink(text);
    } else {
        tracing::info!("{text}");
    }
}

/// Writes every notice from now on to stderr, each in one piece, which a launcher does not mix with another
/// process's.
pub fn to_stderr() {
    use std::io::Write;
    // If stderr is closed, nobody can read it.
    send_to(|text| drop(std::io::stderr().write_all(format!("{text}\n").as_bytes())));
}
