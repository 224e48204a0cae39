//! `ringpull top`: what the processes of a running job are doing, asked of its rank 0, or where the time of an
//! ended one went.

use std::io::{IsTerminal, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::process::Pid;

use ringpull_base::config::Role;
use ringpull_base::status::{self, JobStatus, RankStatus};
use ringpull_base::{Error, Result};

use super::{Format, SUCCESS, Status, timeline, to_json};
use crate::size::format_size;
use crate::text::grid;

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
    /// A process of the job on this host, or HOST:PORT where it serves metrics, or the timelines of all ranks.
    job: Vec<String>,
    /// Write the events of all timelines, on rank 0's clock, to this file.
    #[arg(long, requires = "job")]
    out: Option<PathBuf>,
    /// A table for people or JSON for programs: a list of jobs, each with what `/status` returns.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Where a job's rank 0 listens.
#[derive(Debug, Clone, PartialEq)]
enum Place {
    Socket(PathBuf),
    Port(String),
}

/// Ranks shown one by one.
const SHOWN: usize = 20;
/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Rank 0 takes up to a second for an answer, and another if somebody else asks it at the same time.
const PATIENCE: Duration = Duration::from_secs(4);

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
            // It was there: it has ended.
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

type SeenJob = (Place, JobStatus);

/// The jobs that are meant, each asked; an error if there is none.
fn find(job: Option<&str>) -> Result<Vec<SeenJob>> {
    if let Some(address) = job.filter(|job| job.contains(':')) {
        let place = Place::Port(address.to_owned());
        let status = ask(&place)?;
        return Ok(vec![(place, status)]);
    }
    let pid = match job {
        None => None,
        Some(job) => Some(job.parse::<u32>().map_err(|_| {
            Error::argument(
                format!("{job:?} is neither the number of a process nor HOST:PORT"),
                "run `ringpull top` alone to see all jobs of this host",
            )
        })?),
    };
    let folder = status::folder();
    let sockets = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| Place::Socket(entry.path()));
    let answers = sockets.filter_map(|place| Some((ask(&place).ok()?, place)));
    let mut found: Vec<SeenJob> = answers.map(|(status, place)| (place, status)).collect();
    let host = ringpull_base::topology::host_name();
    if let Some(pid) = pid {
        found.retain(|(place, status)| {
            let is_rank_0s = matches!(place, Place::Socket(path) if path.ends_with(pid.to_string()));
            is_rank_0s
                || status
                    .processes()
                    .filter_map(|(_, _, process)| process)
                    .any(|process| process.peer.pid == pid && process.peer.host == host)
        });
    }
    found.sort_by_key(|(place, _)| if let Place::Socket(path) = place { path.clone() } else { PathBuf::new() });
    if found.is_empty() {
        let what = pid.map_or_else(
            || "no job has its rank 0 on this host under this user".to_owned(),
            |pid| format!("process {pid} belongs to no job with rank 0 on this host"),
        );
        return Err(Error::argument(
            what,
            "look on the host of rank 0, or start the job with RINGPULL_METRICS=0.0.0.0:9400 and give HOST:9400",
        ));
    }
    Ok(found)
}

fn ask(place: &Place) -> Result<JobStatus> {
    let name = match place {
        Place::Socket(path) => path.display().to_string(),
        Place::Port(address) => address.clone(),
    };
    let failed = |cause: std::io::Error| Error::io("ask", &name, &cause);
    let answer = match place {
        Place::Socket(path) => {
            let stream = UnixStream::connect(path).map_err(failed)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            converse(stream)
        }
        Place::Port(address) => {
            let mut addresses = address.to_socket_addrs().map_err(failed)?;
            let address = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
            let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            converse(stream)
        }
    };
    let answer = answer.map_err(failed)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body)
        .map_err(|cause| failed(std::io::Error::other(format!("no ringpull job answered: {cause}"))))
}

fn converse(mut stream: impl Read + Write) -> std::io::Result<String> {
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: ringpull\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The step of the process, if it is rank 0 of a job on this machine.
pub(crate) fn step_of(pid: Pid) -> Option<u64> {
    let socket = status::folder().join(pid.as_raw_nonzero().to_string());
    let status = ask(&Place::Socket(socket)).ok()?;
    Some(status.ranks.first()?.as_ref()?.steps)
}

/// A job's page: rates are those since `before`.
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
        // Those that do not answer, are late, or wait least come first.
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
            // Without an earlier look: since the job began.
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
