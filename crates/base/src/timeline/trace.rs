//! The timeline's file. It has Chrome's trace events as one JSON object, which `chrome://tracing` and
//! Perfetto open.
//!
//! Times are microseconds since the process's recorder was switched on. `otherData` has the process and its
//! job, the time of its zero by its own clock, and the lead of this clock over rank 0's.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::recorder::Event;
use crate::config::Role;
use crate::{Error, Result, file_limit};

/// The first process number of servers and schedulers. A worker's number is its rank.
const NUMBERS_OF_SERVERS: u32 = 100_000;
const NUMBERS_OF_SCHEDULERS: u32 = 200_000;
const NUMBERS_OF_HELPERS: u32 = 300_000;

/// A whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The events, in no particular order.
    #[serde(rename = "traceEvents")]
    pub events: Vec<TraceEvent>,
    /// The viewer's unit of time.
    #[serde(rename = "displayTimeUnit", default)]
    pub unit: String,
    /// The process of the events.
    #[serde(rename = "otherData")]
    pub about: About,
}

/// The description of a process by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// This crate's version.
    pub ringpull: String,
    /// Its role in the job.
    pub role: Role,
    /// The rank in its role, or `None` if the process ended before it had one.
    pub rank: Option<usize>,
    /// The number of workers.
    pub size: usize,
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its zero in nanoseconds since 1970, by its own clock.
    pub zero_unix_ns: u64,
    /// The lead of the process's clock over rank 0's.
    pub ahead_ns: i64,
    /// The round trip of the messages that measured the clock, or `None` if it was not measured.
    pub round_trip_ns: Option<u64>,
    /// Spans that were left out because there were too many.
    pub left_out: u64,
}

/// One event, as the format has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// The subject of the event.
    pub name: String,
    /// The phase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// `X` for a span, `b` and `e` for the ends of one that overlaps others, `M` for names.
    pub ph: String,
    /// The time of the event, in microseconds.
    #[serde(default)]
    pub ts: f64,
    /// The duration, in microseconds. Viewers use it in an `X`. A `b` has it only for code here that reads
    /// the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// The process of the job.
    pub pid: u32,
    /// The thread of the process.
    pub tid: u32,
    /// The number that pairs a `b` with its `e`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The event's arguments.
    #[serde(default, skip_serializing_if = "Args::is_empty")]
    pub args: Args,
}

/// The arguments of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Args {
    /// Payload bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The name that an `M` event gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Args {
    fn is_empty(&self) -> bool {
        *self == Args::default()
    }
}

/// One thread's spans.
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) events: Vec<Event>,
}

impl About {
    /// Returns a worker that has no rank yet.
    pub(super) fn new(host: String, zero_unix_ns: u64) -> Self {
        About {
            ringpull: env!("CARGO_PKG_VERSION").to_owned(),
            role: Role::Worker,
            rank: None,
            size: 1,
            host,
            pid: std::process::id(),
            zero_unix_ns,
            ahead_ns: 0,
            round_trip_ns: None,
            left_out: 0,
        }
    }

    /// The process's number in a trace.
    pub fn number(&self) -> u32 {
        let rank = self.rank.map_or(self.pid, |rank| u32::try_from(rank).unwrap_or(u32::MAX));
        let first = match self.role {
            Role::Worker => 0,
            Role::Server => NUMBERS_OF_SERVERS,
            Role::Scheduler => NUMBERS_OF_SCHEDULERS,
            Role::Helper => NUMBERS_OF_HELPERS,
        };
        rank.saturating_add(first)
    }

    /// The process in words.
    pub fn words(&self) -> String {
        let rank = self.rank.map_or_else(|| format!("pid {}", self.pid), |rank| rank.to_string());
        let role = if self.role == Role::Worker { "rank".to_owned() } else { self.role.to_string() };
        format!("{role} {rank} on {}", self.host)
    }
}

impl Trace {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|cause| Error::io("read", path.display(), &cause))?;
        serde_json::from_str(&text).map_err(|cause| {
            Error::argument(
                format!("{} is not a timeline of ringpull ({cause})", path.display()),
                "name files that a run with RINGPULL_TIMELINE=FILE has written",
            )
        })
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |cause: std::io::Error| Error::io("write", path.display(), &cause);
        file_limit::without_signal(|| {
            let mut out = BufWriter::new(std::fs::File::create(path).map_err(failed)?);
            serde_json::to_writer(&mut out, self).map_err(|cause| failed(cause.into()))?;
            out.flush().map_err(failed)
        })
    }
}

/// Returns the name of one process's file. `{rank}` in the pattern is replaced by the rank. Without it the
/// rank is put before the extension.
pub fn file_name(pattern: &str, about: &About) -> String {
    let rank = about.rank.map_or_else(|| format!("pid{}", about.pid), |rank| rank.to_string());
    let rank = if about.role == Role::Worker { rank } else { format!("{}{rank}", about.role) };
    if pattern.contains("{rank}") {
        return pattern.replace("{rank}", &rank);
    }
    let (folder, file) = pattern.rfind('/').map_or(("", pattern), |at| pattern.split_at(at + 1));
    match file.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => format!("{folder}{stem}.{rank}.{extension}"),
        _ => format!("{folder}{file}.{rank}"),
    }
}

/// Returns the folder of a pattern's files, up to the part that differs between ranks.
pub(super) fn folder(pattern: &str) -> &Path {
    let folder = pattern.rfind('/').map_or(".", |at| &pattern[..=at]);
    let is_common = |folder: &&Path| !folder.to_string_lossy().contains("{rank}");
    Path::new(folder)
        .ancestors()
        .find(is_common)
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Makes the folder if it does not exist. Returns an error if nothing can be written in it.
pub(super) fn try_folder(folder: &Path) -> Result<()> {
    let failed = |cause: std::io::Error| Error::io("write timelines in", folder.display(), &cause);
    std::fs::create_dir_all(folder).map_err(failed)?;
    crate::files::try_folder(folder).map_err(failed)
}

pub(super) fn write(path: &Path, about: About, threads: &[Thread]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|cause| Error::io("make the folder", folder.display(), &cause))?;
    }
    let pid = about.number();
    let mut events = vec![naming("process_name", pid, 0, about.words())];
    for (index, thread) in threads.iter().enumerate() {
        let tid = index as u32 + 1;
        events.push(naming("thread_name", pid, tid, thread.name.clone()));
        for (at, event) in thread.events.iter().enumerate() {
            put(&mut events, event, pid, tid, at);
        }
    }
    Trace { events, unit: "ms".to_owned(), about }.write(path)
}

fn naming(what: &str, pid: u32, tid: u32, name: String) -> TraceEvent {
    let args = Args { name: Some(name), bytes: None };
    TraceEvent {
        name: what.to_owned(),
        cat: String::new(),
        ph: "M".to_owned(),
        ts: 0.0,
        dur: None,
        pid,
        tid,
        id: None,
        args,
    }
}

fn put(events: &mut Vec<TraceEvent>, event: &Event, pid: u32, tid: u32, at: usize) {
    let micros = |ns: u64| ns as f64 / 1e3;
    let overlaps = event.phase.overlaps();
    let first = TraceEvent {
        name: event.name.to_string(),
        cat: event.phase.name().to_owned(),
        ph: if overlaps { "b" } else { "X" }.to_owned(),
        ts: micros(event.since_ns),
        dur: Some(micros(event.length_ns)),
        pid,
        tid,
        id: overlaps.then(|| format!("{pid}.{tid}.{at}")),
        args: Args { bytes: Some(event.bytes).filter(|bytes| *bytes > 0), name: None },
    };
    let ts = micros(event.since_ns + event.length_ns);
    let last =
        overlaps.then(|| TraceEvent { ph: "e".to_owned(), ts, dur: None, args: Args::default(), ..first.clone() });
    events.extend([Some(first), last].into_iter().flatten());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Name, Phase};

    fn about(role: Role, rank: Option<usize>) -> About {
        About { role, rank, pid: 77, ..About::new("h1".to_owned(), 5) }
    }

    #[test]
    fn a_folder_that_is_not_there_is_made_and_one_that_cannot_be_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let of = |rest: &str| format!("{}/{rest}", place.path().display());
        for (pattern, common) in
            [("t.json", "."), ("a/{rank}/b/t.json", "a"), ("{rank}/t", "."), ("a/", "a"), ("/t", "/")]
        {
            assert_eq!(folder(pattern), Path::new(common), "{pattern}");
        }
        let pattern = of("new/{rank}/t.json");
        try_folder(folder(&pattern)).unwrap();
        write(Path::new(&file_name(&pattern, &about(Role::Worker, Some(2)))), about(Role::Worker, Some(2)), &[])
            .unwrap();
        assert!(place.path().join("new/2/t.json").is_file());
        let error = try_folder(folder(&of("new/2/t.json/below/t.json"))).unwrap_err().to_string();
        assert!(error.contains("write timelines in") && error.contains("below"), "{error}");
    }

    #[test]
    fn every_process_of_a_job_has_a_file_of_its_own() {
        let of = |pattern: &str, role, rank| file_name(pattern, &about(role, rank));
        assert_eq!(of("out/t.json", Role::Worker, Some(3)), "out/t.3.json");
        assert_eq!(of("out.d/trace", Role::Worker, Some(0)), "out.d/trace.0");
        assert_eq!(of("t-{rank}.json", Role::Server, Some(1)), "t-server1.json");
        assert_eq!(of(".json", Role::Worker, None), ".json.pid77");
    }

    #[test]
    fn what_is_written_reads_itself_back_and_spans_that_overlap_have_two_ends() {
        let event = |phase, name: &'static str, since_ns| Event {
            phase,
            name: Name::Word(name),
            since_ns,
            length_ns: 2500,
            bytes: 8,
        };
        let events = vec![event(Phase::Push, "w", 1000), event(Phase::Send, "rank 1", 2000)];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        write(&path, about(Role::Worker, Some(2)), &[Thread { name: "caller".to_owned(), events }]).unwrap();
        let trace = Trace::read(&path).unwrap();
        let shown: Vec<(&str, &str, f64)> =
            trace.events.iter().map(|event| (event.ph.as_str(), event.name.as_str(), event.ts)).collect();
        let expected = [
            ("M", "process_name", 0.0),
            ("M", "thread_name", 0.0),
            ("X", "w", 1.0),
            ("b", "rank 1", 2.0),
            ("e", "rank 1", 4.5),
        ];
        assert_eq!(shown, expected);
        assert_eq!((trace.events[2].dur, trace.events[2].pid), (Some(2.5), 2));
        assert_eq!(trace.events[3].id, trace.events[4].id);
        assert_eq!(trace.about, about(Role::Worker, Some(2)));
    }
}
