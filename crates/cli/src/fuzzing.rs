//! Reads the files and answers that commands read, for the fuzz targets of fuzz/. Each function takes any
//! input, and panics if a reader breaks a promise.

use ringpull_base::timeline::trace::Trace;
use ringpull_base::{Error, Kind};

use crate::launch::elastic::{fuzz_answer, fuzz_lost};
use crate::launch::hostfile;
use crate::timeline::{account::account, merge::merge, words};
use ringpull_harness::compare::Comparison;
use ringpull_harness::record::Record;
use ringpull_harness::sweep::Sweep;
use ringpull_harness::{compare, sweep};
use ringpull_lab::differ::WorkerRecording;
use ringpull_lab::rehearse::fault;

/// A worker's recording, as `differ` reads it.
pub fn recording(text: &str) {
    let failed = |cause: std::io::Error| Error::io("read", "a recording", &cause);
    for kind in [Kind::DistSyncMpi, Kind::DistSync] {
        drop(WorkerRecording::default().with_lines(text.as_bytes(), kind, &failed));
    }
}

/// Timelines of a job's processes, each a line, as `top` reads them.
pub fn timelines(text: &str) {
    let traces: Vec<Trace> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let Ok(merged) = merge(traces) else { return };
    drop(merged.to_value());
    merged.warnings();
    assert!(!words::render(&account(&merged)).is_empty());
}

/// Results of an earlier `compare`, and the output of a job.
pub fn results(text: &str) {
    if let Ok(results) = serde_json::from_str::<Comparison>(text) {
        drop(compare::report::render(&results));
        drop(compare::table::render(&results));
    }
    if let Ok(results) = serde_json::from_str::<Sweep>(text) {
        drop(sweep::page::render(&[results]));
    }
    drop(Record::parse_list("a job", text));
}

/// The answers of hosts to the launcher of an elastic job, and the messages of `mpirun` about its ranks.
pub fn elastic(text: &str) {
    fuzz_answer(text.as_bytes());
    fuzz_lost(text);
}

/// Lists of hosts.
pub fn hosts(text: &str) {
    hostfile::fuzz(text);
}

/// A file of faults: it is either read or an error.
pub fn faults(text: &str) {
    for fault in fault::read(text).unwrap_or_default() {
        assert!(!fault.to_string().is_empty() && fault.host() != Some(0));
    }
}
