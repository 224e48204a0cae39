//! The processes' output: printed with the process's name before each line, printed as it is, or kept.

use std::io::{BufRead, BufReader, Read, Write};

/// Where the output of a job's processes goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// To stdout and stderr, with `[worker 0] ` before every line.
    Tagged,
    /// To stdout and stderr as it is.
    Plain,
    /// Into the [`JobEnd`](super::JobEnd).
    Kept,
}

/// One of a process's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputStream {
    Out,
    Err,
}

/// Reads a stream to its end; returns what was kept.
pub(super) fn carry(from: impl Read, stream: OutputStream, name: &str, sink: Sink) -> Vec<u8> {
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

fn print(line: &[u8], stream: OutputStream, name: &str, sink: Sink) -> std::io::Result<()> {
    let mut text = if sink == Sink::Tagged { format!("[{name}] ").into_bytes() } else { Vec::new() };
    text.extend_from_slice(line);
    match stream {
        OutputStream::Out => {
            let mut out = std::io::stdout().lock();
            out.write_all(&text)?;
            out.flush()
        }
        OutputStream::Err => std::io::stderr().lock().write_all(&text),
    }
}
