//! `ringpull top`: shows what the processes of a running job are doing, which it asks rank 0, or where the
//! time of an ended job went.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use ringpull_base::config::Role;
use ringpull_base::status::{JobStatus, RankStatus};
use ringpull_base::{Error, Result};

use super::{Format, SUCCESS, Status, timeline, to_json};
use ringpull_harness::size::format_size;
use ringpull_harness::text::grid;
use ringpull_lab::status_client::find;

#[derive(Debug, Args)]
#[command(after_help = "\
Without JOB it shows every job of yours whose rank 0 runs on this host. It shows steps, where time goes, bytes,
memory and what each rank does now, and names the ranks that others wait for. Of many ranks it shows those that
differ most, and counts the others.

Columns: step: calls of what was called most often, a push of a key or a collective with a name; computing: the
program was in no call of ours; waiting: it waited in one; moving: an operation was under way, whether or not
the program waited for it.

With the timelines of a job that has ended it merges them, and shows where a step's time went. If
RINGPULL_TIMELINE=FILE is set, every process writes FILE with its rank before the extension, or in place of
{rank}. chrome://tracing and https://ui.perfetto.dev open each of them, and the merged one.

Examples:
  ringpull top                      every job of this host, again each second
  ringpull top 4711                 the job to which process 4711 belongs
  ringpull top h1:9400              the job that was started there with RINGPULL_METRICS=0.0.0.0:9400
  ringpull top --format json | jq '.[0].late'
  RINGPULL_TIMELINE=trace.json ringpull launch -n 4 -- python train.py
  ringpull top trace.*.json --out merged.json         where the time of that job went
  ringpull top trace.*.json --format json | jq .mean")]
pub(crate) struct TopArgs {
    /// A process of the job on this host, or HOST:PORT at which the job serves metrics, or the timelines of
    /// all ranks.
    job: Vec<String>,
    /// Write the events of all timelines, on rank 0's clock, to this file.
    #[arg(long, requires = "job")]
    out: Option<PathBuf>,
    /// A table for people or JSON for programs: a list of jobs, each with what `/status` returns.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The number of ranks that are shown one by one.
const SHOWN: usize = 20;
/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);
pub(crate) fn run(args: &TopArgs) -> Result<Status> {
    let job = match &args.job[..] {
        files if args.out.is_some() || files.len() > 1 || files.iter().any(|file| Path::new(file).is_file()) => {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            return timeline::run(&files, args.out.as_deref(), args.format);
        }
        job => job.first().map(String::as_str),
    };
    let is_live = std::io::stdout().is_terminal() && args.format == Format::Table;
    let mut before = find(job)?;
    loop {
        std::thread::sleep(INTERVAL);
        let now = match find(job) {
            Ok(now) => now,
            // The job was running before, so it has ended.
            Err(cause) if is_live => {
                eprintln!("the job has ended, or cannot be reached: {cause}");
                break;
            }
            Err(cause) => return Err(cause),
        };
        let text = match args.format {
            Format::Json => to_json(&now.iter().map(|(_, status)| status).collect::<Vec<_>>())? + "\n",
            Format::Table => {
                let pages = now.iter().map(|(place, status)| {
                    let before = before.iter().find(|(other, _)| other == place);
                    page(status, before.map(|(_, status)| status))
                });
                pages.collect::<Vec<_>>().join("\n")
            }
        };
        let clear = if is_live { "\x1b[H\x1b[2J" } else { "" };
        print!("{clear}{text}");
        std::io::stdout().flush().map_err(|cause| Error::io("write to", "stdout", &cause))?;
        if !is_live {
            break;
        }
        before = now;
    }
    Ok(SUCCESS)
}

/// The page of a job. Rates are averages since `before`.
fn page(status: &JobStatus, before: Option<&JobStatus>) -> String {
    let first = status.ranks.first().and_then(Option::as_ref);
    let pid = first.map_or_else(String::new, |rank| format!(", rank 0 is process {}", rank.peer.pid));
    let heading = format!("{}, {}{pid}", status.placement, status.library);
    let rows: Vec<ProcessRow> = status.processes().map(|process| ProcessRow::new(process, before)).collect();
    let late = |row: &ProcessRow| {
        row.role == Role::Worker && status.late.as_ref().is_some_and(|late| late.ranks.contains(&row.rank))
    };
    let mut shown: Vec<&ProcessRow> = rows.iter().collect();
    if shown.len() > SHOWN {
        // Ranks that do not answer, are late, or wait least come first.
        shown.sort_by(|a, b| {
            let key = |row: &ProcessRow| (row.now.is_some(), !late(row));
            let waits = |row: &ProcessRow| row.now.as_ref().map_or(0.0, |(_, rates)| rates.waiting);
            key(a).cmp(&key(b)).then(waits(a).total_cmp(&waits(b)))
        });
        shown.truncate(SHOWN);
        shown.sort_by_key(|row| (row.role != Role::Worker, row.rank));
    }
    let head = ["rank", "host", "now", "step", "steps/s", "computing", "waiting", "moving", "sent/s", "memory"];
    let cells = shown.iter().map(|row| row.cells()).collect();
    let more = rows.len() - shown.len();
    let more = (more > 0).then(|| format!("and {more} more ranks, which wait longest"));
    let late = status.late_line().map(|line| format!("late: {line}"));
    let fault = status.fault.as_ref().map(|fault| format!("failed: {fault}"));
    let lines = [Some(heading), Some(grid(head, cells, 3)), more, late, fault];
    lines.into_iter().flatten().map(|line| line + "\n").collect()
}

/// The line of a process.
struct ProcessRow {
    role: Role,
    rank: usize,
    now: Option<(RankStatus, Rates)>,
}

struct Rates {
    steps_per_s: f64,
    waiting: f64,
    moving: f64,
    sent_per_s: f64,
}

impl ProcessRow {
    fn new((role, rank, now): (Role, usize, Option<&RankStatus>), before: Option<&JobStatus>) -> Self {
        let of_now = now.map(|now| {
            // Without an earlier reading, the time counts from the job's start.
            let then = before
                .into_iter()
                .flat_map(JobStatus::processes)
                .find_map(|(_, _, then)| then.filter(|then| then.peer == now.peer));
            let since = |value: fn(&RankStatus) -> f64| value(now) - then.map_or(0.0, value);
            let seconds = since(|rank| rank.seconds).max(1e-3);
            let rates = Rates {
                steps_per_s: since(|rank| rank.steps as f64) / seconds,
                waiting: (since(|rank| rank.waited_s) / seconds).clamp(0.0, 1.0),
                moving: (since(|rank| rank.moving_s) / seconds).clamp(0.0, 1.0),
                sent_per_s: since(|rank| rank.sent_bytes as f64) / seconds,
            };
            (now.clone(), rates)
        });
        ProcessRow { role, rank, now: of_now }
    }

    fn cells(&self) -> Vec<String> {
        let name =
            if self.role == Role::Worker { self.rank.to_string() } else { format!("{} {}", self.role, self.rank) };
        let Some((now, rates)) = &self.now else {
            let mut cells = vec![name, String::new(), "does not answer".to_owned()];
            cells.resize(10, String::new());
            return cells;
        };
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        // A server runs no program that computes or waits.
        let of_program = |part: f64| if self.role == Role::Server { String::new() } else { percent(part) };
        vec![
            name,
            now.peer.host.clone(),
            now.now(),
            now.steps.to_string(),
            format!("{:.1}", rates.steps_per_s),
            of_program(1.0 - rates.waiting),
            of_program(rates.waiting),
            of_program(rates.moving),
            format_size(rates.sent_per_s),
            format_size(now.memory_bytes as f64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use ringpull_base::status::LateRanks;
    use ringpull_base::topology::Peer;

    use super::*;

    fn rank(rank: usize, steps: u64, waited_s: f64) -> RankStatus {
        RankStatus {
            peer: Peer { rank, role: Role::Worker, host: "h1".to_owned(), pid: 7 },
            seconds: 10.0 * steps as f64,
            steps,
            calls: steps,
            waited_s,
            moving_s: 0.0,
            sent_bytes: 1000 * steps,
            received_bytes: 0,
            control_messages: 0,
            memory_bytes: 2_000_000,
            doing: None,
            is_of_set: false,
            waits_s: None,
            site: None,
        }
    }

    fn job(ranks: Vec<Option<RankStatus>>) -> JobStatus {
        JobStatus {
            placement: "2 ranks".to_owned(),
            library: "MPI".to_owned(),
            fault: None,
            ranks,
            helpers: Vec::new(),
            servers: Vec::new(),
            late: None,
        }
    }

    #[test]
    fn rates_are_those_since_the_look_before() {
        let (before, now) = (job(vec![Some(rank(0, 1, 0.0)), None]), job(vec![Some(rank(0, 2, 4.0)), None]));
        let page = page(&now, Some(&before));
        let words: Vec<&str> = page.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words.join(" "), "0 h1 computes 2 0.1 60 % 40 % 0 % 100 B 2 MB");
        assert!(page.contains("does not answer"), "{page}");
    }

    #[test]
    fn of_many_ranks_those_are_shown_that_others_wait_for() {
        let mut many = job((0..100).map(|at| Some(rank(at, 1, if at < 50 { 0.0 } else { 5.0 }))).collect());
        many.late =
            Some(LateRanks { ranks: vec![77], operation: "push of key 3".to_owned(), waiting: 0, waited_s: 2.0 });
        let page = page(&many, None);
        assert!(page.contains("and 80 more ranks"), "{page}");
        assert!(page.lines().any(|line| line.starts_with("77 ")) && page.contains("late: rank 0 has waited"), "{page}");
        assert_eq!(page.lines().count(), 2 + SHOWN + 2);
    }
}
