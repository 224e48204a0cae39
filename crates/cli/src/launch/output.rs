//! What becomes of the processes' output: lines with the name of who wrote them, lines as they are, or kept
//! text.

use std::io::{BufRead, BufReader, Read, Write};

/// What becomes of the output of a job's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// Every line goes to stdout or stderr behind `[worker 0] `.
    Tagged,
    /// Every line goes to stdout or stderr as it is.
    Plain,
    /// It is kept for the [`Outcome`](super::Outcome).
    Kept,
}

/// Which of the two streams a process wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Reads a stream to its end; returns what was kept.
pub(super) fn carry(from: impl Read, stream: Stream, name: &str, sink: Sink) -> Vec<u8> {
    let mut from = BufReader::new(from);
    let mut kept = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return kept,
            Ok(_) if sink == Sink::Kept => kept.extend_from_slice(&line),
            Ok(_) => {
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                if let Err(cause) = print(&line, stream, name, sink) {
                    tracing::warn!(%cause, "output of {name} is lost");
                }
            }
        }
    }
}

fn print(line: &[u8], stream: Stream, name: &str, sink: Sink) -> std::io::Result<()> {
    let mut text = if sink == Sink::Tagged { format!("[{name}] ").into_bytes() } else { Vec::new() };
    text.extend_from_slice(line);
    match stream {
        Stream::Out => {
            let mut out = std::io::stdout().lock();
            out.write_all(&text)?;
            out.flush()
        }
        Stream::Err => std::io::stderr().lock().write_all(&text),
    }
}
