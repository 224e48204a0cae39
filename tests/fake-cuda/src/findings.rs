//! The reports of the fake driver: mistakes of the program that a real driver would not notice, or would
//! report with a less precise error.

use std::fs::OpenOptions;
use std::io::Write;

use crate::settings::SETTINGS;

/// Writes a finding to stderr and to the log.
pub(crate) fn report(kind: &str, text: &str) {
    let line = format!("fake-cuda: {kind}: {text}\n");
    let mut outputs: Vec<Box<dyn Write>> = vec![Box::new(std::io::stderr())];
    if let Some(log) = &SETTINGS.log {
        match OpenOptions::new().append(true).create(true).open(log) {
            Ok(file) => outputs.push(Box::new(file)),
            Err(cause) => panic!("fake-cuda: {}: {cause}", log.display()),
        }
    }
    for output in &mut outputs {
        // One write, so that lines of several processes stay whole. A closed stderr must not end the process.
        drop(output.write_all(line.as_bytes()));
    }
}
