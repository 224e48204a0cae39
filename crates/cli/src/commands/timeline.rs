//! `ringpull top FILES`: merges the ranks' timelines, and shows where a step's time went.

use std::path::{Path, PathBuf};

use ringpull_base::timeline::trace::Trace;
use ringpull_base::{Error, Result};

use super::{Format, print, to_json_line, write};
use super::{SUCCESS, Status};
use crate::timeline::account::account;
use crate::timeline::{merge, words};

/// The number of listed keys.
const KEYS: usize = 10;

/// Merges the timelines, and prints where the time went.
pub(super) fn run(files: &[PathBuf], out: Option<&Path>, format: Format) -> Result<Status> {
    let traces = files.iter().map(|file| Trace::read(file)).collect::<Result<Vec<_>>>()?;
    let merged = merge::merge(traces)?;
    if let Some(path) = out {
        write(path, &to_json_line(&merged.to_value())?)?;
        eprintln!("merged: {}", path.display());
    }
    for doubt in merged.warnings() {
        eprintln!("warning: {doubt}");
    }
    let mut found = account(&merged);
    if found.ranks.iter().all(|rank| rank.steps == 0) {
        return Err(Error::argument(
            "these files have no step: no rank pushed anything",
            "give the files of the workers",
        ));
    }
    found.keys.truncate(KEYS);
    print(format, &found, || words::render(&found))?;
    Ok(SUCCESS)
}
