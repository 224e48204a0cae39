//! Notices for people when nothing has failed: a misspelt variable, a rank that ends the others' job, a lost
//! timeline.
//!
//! A library does not print. A notice is a warning of the log, until the program that owns stderr takes them
//! with [`send_to`]. The command and the Python package print them unchanged.

use std::sync::OnceLock;

static SINK: OnceLock<fn(&str)> = OnceLock::new();

/// Passes every notice from now on to `sink`, which must not block for long. Only the first call counts.
pub fn send_to(sink: fn(&str)) {
    SINK.get_or_init(|| sink);
}

/// Passes `text` to the handler of notices. It has one or more lines, without a last line feed.
pub fn notice(text: &str) {
    if let Some(sink) = SINK.get() {
        sink(text);
    } else {
        tracing::warn!("{text}");
    }
}

/// Passes on `text` as [`notice`] does, if it is no warning. If there is no handler, it is logged at level
/// `info`.
pub fn inform(text: &str) {
    if let Some(sink) = SINK.get() {
        sink(text);
    } else {
        tracing::info!("{text}");
    }
}

/// Writes every notice from now on to stderr. Each is written in one piece, so that a launcher does not mix
/// it with another process's output.
pub fn to_stderr() {
    use std::io::Write;
    // If stderr is closed, nobody can read it.
    send_to(|text| drop(std::io::stderr().write_all(format!("{text}\n").as_bytes())));
}
