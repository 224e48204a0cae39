//! A fault and its moment, read from the command line or from an entry of a file.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ringpull_base::config::Role;
use ringpull_base::{Error, Result};

use ringpull_harness::link::LinkRate;

/// A fault that a job meets.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub what: FaultKind,
    pub at: Moment,
    /// The required end. Without it any end is accepted except a hang.
    pub expect: Option<ExpectedEnd>,
}

/// The kind of a fault.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// SIGKILL of a process.
    Kill(Member),
    /// A process ends with [`FAILED`] before its program begins, once.
    Fail(Member),
    /// A process begins its program later than the others.
    Delay(Member, Duration),
    /// SIGSTOP of a process, and SIGCONT after this time.
    Stop(Member, Duration),
    /// SIGTERM of a process, and SIGKILL after this grace period.
    Terminate(Member, Duration),
    /// A process gets no more address space than it has, for this time.
    Limit(Member, Duration),
    /// The link of an emulated host is down, for this time or to the end.
    Cut(usize, Option<Duration>),
    /// The data that an emulated host sends to the others is lost, for this time or to the end.
    Block(usize, Option<Duration>),
    /// The connections of an emulated host are reset.
    Reset(usize),
    /// The link of an emulated host has another rate, for this time or to the end.
    Slow(usize, LinkRate, Option<Duration>),
    /// The file system of this folder is full for this time.
    Fill(PathBuf, Duration),
    /// Nothing can be written in this folder, from the start.
    Forbid(PathBuf),
    /// Another user has made this file or folder before the start.
    Plant(PathBuf, PlantedFile),
}

/// The exit code of a process that is to fail.
pub const FAILED: i32 = 3;

/// A file of another user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlantedFile {
    /// A link to a file that must stay as it is.
    #[default]
    Link,
    /// A file that must stay as it is.
    File,
    /// A folder in which everybody may write.
    Folder,
}

/// A process of the job: `rank 2`, which is worker 2 of a job with servers, `server 0`, `helper 0` or
/// `scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub role: Role,
    pub index: usize,
}

/// The moment of a fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment {
    /// In a job of MPI ranks: at its second step, or while it runs if it makes no steps. In another job:
    /// [`USUAL`] after its start, or in the middle of a job that is shorter.
    Usual,
    /// This time after the processes have started.
    After(Duration),
    /// Once rank 0 has made this many steps.
    Step(u64),
}

/// The end that is required of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedEnd {
    /// With exit code 0.
    GoesOn,
    /// With an error.
    Ends,
    /// With one of these exit codes; with `None`, with any exit code. It is for random faults, which may come
    /// before the program has begun.
    #[serde(skip)]
    Codes(Option<Vec<i32>>),
}

/// An entry of a file of faults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultEntry {
    kill: Option<String>,
    fail: Option<String>,
    delay: Option<String>,
    stop: Option<String>,
    terminate: Option<String>,
    limit: Option<String>,
    cut: Option<String>,
    block: Option<String>,
    reset: Option<String>,
    slow: Option<String>,
    fill: Option<String>,
    forbid: Option<String>,
    plant: Option<String>,
    at: Option<String>,
    r#for: Option<String>,
    to: Option<LinkRate>,
    r#as: Option<PlantedFile>,
    expect: Option<ExpectedEnd>,
}

/// The moment of a fault that gives none, in a job whose steps cannot be counted.
pub const USUAL: Duration = Duration::from_secs(3);
/// The time that Kubernetes grants a pod between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(10);

/// Reads a file of faults: a YAML list.
pub fn read(text: &str) -> Result<Vec<Fault>> {
    let wrong = |what: String| Error::argument(what, "see the examples of `ringpull rehearse --help`");
    let entries: Vec<FaultEntry> =
        serde_saphyr::from_str(text).map_err(|cause| wrong(format!("the faults cannot be read: {cause}")))?;
    if entries.is_empty() {
        return Err(wrong("the list of faults is empty".to_owned()));
    }
    let numbered = entries.into_iter().enumerate();
    numbered.map(|(at, entry)| fault(&entry).map_err(|cause| wrong(format!("fault {}: {cause}", at + 1)))).collect()
}

fn fault(entry: &FaultEntry) -> std::result::Result<Fault, String> {
    let FaultEntry { at, r#for: time, to, r#as: planted, expect, .. } = entry;
    let time = time.as_deref().map(seconds).transpose()?;
    let named = [
        ("kill", &entry.kill),
        ("fail", &entry.fail),
        ("delay", &entry.delay),
        ("stop", &entry.stop),
        ("terminate", &entry.terminate),
        ("limit", &entry.limit),
        ("cut", &entry.cut),
        ("block", &entry.block),
        ("reset", &entry.reset),
        ("slow", &entry.slow),
        ("fill", &entry.fill),
        ("forbid", &entry.forbid),
        ("plant", &entry.plant),
    ];
    let mut given = named.iter().filter_map(|(name, of)| Some((*name, of.as_deref()?)));
    let (Some((name, of)), None) = (given.next(), given.next()) else {
        return Err(format!("give one of {}", named.map(|(name, _)| name).join(", ")));
    };
    let what = match name {
        "kill" => FaultKind::Kill(of.parse()?),
        "fail" => FaultKind::Fail(of.parse()?),
        "delay" => FaultKind::Delay(of.parse()?, time.unwrap_or(LONG)),
        "stop" => FaultKind::Stop(of.parse()?, time.unwrap_or(LONG)),
        "terminate" => FaultKind::Terminate(of.parse()?, time.unwrap_or(GRACE)),
        "limit" => FaultKind::Limit(of.parse()?, time.unwrap_or(LONG)),
        "cut" => FaultKind::Cut(number(of)?, time),
        "block" => FaultKind::Block(number(of)?, time),
        "reset" => FaultKind::Reset(number(of)?),
        "slow" => {
            FaultKind::Slow(number(of)?, to.ok_or("slow needs the rate of the link, such as `to: 10mbit`")?, time)
        }
        "fill" => FaultKind::Fill(of.into(), time.unwrap_or(LONG)),
        "forbid" => FaultKind::Forbid(of.into()),
        _ => FaultKind::Plant(of.into(), planted.unwrap_or_default()),
    };
    if time.is_some() && ["kill", "fail", "reset", "forbid", "plant"].contains(&name) {
        return Err(format!("{name} takes no `for`"));
    }
    if at.is_some() && what.is_from_the_start() {
        return Err(format!("{name} takes no `at`: the fault is there from the start of the job"));
    }
    if to.is_some() && name != "slow" {
        return Err("`to` is for slow".to_owned());
    }
    if planted.is_some() && name != "plant" {
        return Err("`as` is for plant".to_owned());
    }
    let at = at.as_deref().map_or(Ok(Moment::Usual), str::parse)?;
    Ok(Fault { what, at, expect: expect.clone() })
}

/// Faults that every job should survive or report, for ranks on one host or on emulated hosts. An elastic job
/// can go on without lost ranks.
pub fn usual(ranks: usize, servers: usize, hosts: usize, is_elastic: bool) -> Vec<Fault> {
    let last = Member { role: Role::Worker, index: ranks - 1 };
    let first = Member { role: Role::Worker, index: 0 };
    let goes_on = Some(ExpectedEnd::GoesOn);
    let without_a_rank = Some(if is_elastic { ExpectedEnd::GoesOn } else { ExpectedEnd::Ends });
    let fault = |what, expect| Fault { what, at: Moment::Usual, expect };
    let mut faults = vec![
        fault(FaultKind::Kill(last), without_a_rank.clone()),
        fault(FaultKind::Kill(first), without_a_rank),
        fault(FaultKind::Stop(last, Duration::from_secs(8)), goes_on.clone()),
        fault(FaultKind::Terminate(last, GRACE), None),
    ];
    if servers > 0 {
        faults.push(fault(FaultKind::Kill(Member { role: Role::Server, index: 0 }), Some(ExpectedEnd::Ends)));
    }
    if hosts > 1 {
        faults.push(fault(FaultKind::Cut(hosts, Some(Duration::from_secs(5))), goes_on));
        faults.push(fault(FaultKind::Cut(hosts, None), if is_elastic { None } else { Some(ExpectedEnd::Ends) }));
    }
    faults
}

impl FaultKind {
    /// Returns true if the fault is present when the job starts.
    pub fn is_from_the_start(&self) -> bool {
        matches!(self, FaultKind::Fail(_) | FaultKind::Delay(..) | FaultKind::Forbid(_) | FaultKind::Plant(..))
    }

    /// The process that the fault disturbs.
    pub fn member(&self) -> Option<Member> {
        match self {
            FaultKind::Kill(who)
            | FaultKind::Fail(who)
            | FaultKind::Delay(who, _)
            | FaultKind::Stop(who, _)
            | FaultKind::Terminate(who, _)
            | FaultKind::Limit(who, _) => Some(*who),
            _ => None,
        }
    }

    /// The name of the fault in a file of faults.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Kill(_) => "kill",
            FaultKind::Fail(_) => "fail",
            FaultKind::Delay(..) => "delay",
            FaultKind::Stop(..) => "stop",
            FaultKind::Terminate(..) => "terminate",
            FaultKind::Limit(..) => "limit",
            FaultKind::Cut(..) => "cut",
            FaultKind::Block(..) => "block",
            FaultKind::Reset(_) => "reset",
            FaultKind::Slow(..) => "slow",
            FaultKind::Fill(..) => "fill",
            FaultKind::Forbid(_) => "forbid",
            FaultKind::Plant(..) => "plant",
        }
    }
}

impl Fault {
    /// The time that a job may take beyond an undisturbed job, because of the fault.
    pub fn delay(&self) -> Duration {
        match self.what {
            FaultKind::Kill(_)
            | FaultKind::Fail(_)
            | FaultKind::Reset(_)
            | FaultKind::Forbid(_)
            | FaultKind::Plant(..) => Duration::ZERO,
            FaultKind::Delay(_, time)
            | FaultKind::Stop(_, time)
            | FaultKind::Terminate(_, time)
            | FaultKind::Limit(_, time)
            | FaultKind::Fill(_, time) => time,
            FaultKind::Cut(_, time) | FaultKind::Block(_, time) | FaultKind::Slow(_, _, time) => {
                time.unwrap_or_default()
            }
        }
    }

    /// The delay, and the time until the fault comes.
    pub fn time(&self) -> Duration {
        self.delay() + if let Moment::After(time) = self.at { time } else { Duration::ZERO }
    }

    /// The emulated host that the fault needs, counted from 1.
    pub fn host(&self) -> Option<usize> {
        match self.what {
            FaultKind::Cut(host, _)
            | FaultKind::Block(host, _)
            | FaultKind::Reset(host)
            | FaultKind::Slow(host, ..) => Some(host),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let for_time =
            |time: Option<Duration>| time.map_or_else(String::new, |time| format!(" for {} s", time.as_secs_f64()));
        let name = self.what.name();
        match &self.what {
            FaultKind::Kill(who) | FaultKind::Fail(who) => write!(out, "{name} {who}")?,
            FaultKind::Delay(who, time) | FaultKind::Stop(who, time) | FaultKind::Limit(who, time) => {
                write!(out, "{name} {who}{}", for_time(Some(*time)))?;
            }
            FaultKind::Terminate(who, grace) => write!(out, "{name} {who}, {} s of grace", grace.as_secs_f64())?,
            FaultKind::Cut(host, time) | FaultKind::Block(host, time) => {
                write!(out, "{name} h{host}{}", for_time(*time))?;
            }
            FaultKind::Reset(host) => write!(out, "{name} h{host}")?,
            FaultKind::Slow(host, rate, time) => write!(out, "{name} h{host} to {rate}{}", for_time(*time))?,
            FaultKind::Fill(folder, time) => write!(out, "{name} {}{}", folder.display(), for_time(Some(*time)))?,
            FaultKind::Forbid(folder) => write!(out, "{name} {}", folder.display())?,
            FaultKind::Plant(path, kind) => {
                write!(out, "{name} {} as {}", path.display(), format!("{kind:?}").to_lowercase())?;
            }
        }
        match self.at {
            Moment::Usual => Ok(()),
            Moment::After(time) => write!(out, ", after {} s", time.as_millis() as f64 / 1000.0),
            Moment::Step(step) => write!(out, ", at step {step}"),
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Worker => write!(out, "rank {}", self.index),
            Role::Server => write!(out, "server {}", self.index),
            Role::Scheduler => out.write_str("scheduler"),
            Role::Helper => write!(out, "helper {}", self.index),
        }
    }
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (role, index) = text.split_once(' ').unwrap_or((text, ""));
        let role = match role {
            "rank" | "worker" => Role::Worker,
            "server" => Role::Server,
            "helper" => Role::Helper,
            "scheduler" if index.is_empty() => return Ok(Member { role: Role::Scheduler, index: 0 }),
            _ => return Err(format!("unknown process {text:?}: give rank N, server N, helper N or scheduler")),
        };
        let index = index.trim().parse().map_err(|_| format!("{text:?} has no number: give rank N"))?;
        Ok(Member { role, index })
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.strip_prefix("step ") {
            Some(step) => {
                let step = step.trim().parse().map_err(|_| format!("{text:?} has no number: give step N"))?;
                Ok(Moment::Step(step))
            }
            None => seconds(text).map(Moment::After),
        }
    }
}

/// Reads a time: `3s`, `500ms`, `2min`, or seconds alone.
fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let text = text.trim();
    let (digits, unit_s) = [("ms", 1e-3), ("min", 60.0), ("s", 1.0)]
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .unwrap_or((text, 1.0));
    let value: f64 = digits.trim().parse().map_err(|_| format!("{text:?} is not a time: give one such as 3s"))?;
    Duration::try_from_secs_f64(value * unit_s).map_err(|_| format!("{text:?} is not a time: give one such as 3s"))
}

/// The number of an emulated host: `h3`, or `3`.
fn number(text: &str) -> std::result::Result<usize, String> {
    let number = text.strip_prefix('h').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is not a host: give h1 or another"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_faults_is_read_as_it_is_printed() {
        let text = "
- kill: rank 2
  at: step 5
  expect: ends
- {stop: rank 1, at: 500ms, for: 14s, expect: goes-on}
- terminate: rank 0
- {cut: h3, for: 20s}
- {slow: 4, to: 10mbit}
- {fill: /tmp/checkpoints, at: 1min, for: 45}
- kill: server 1
- fail: helper 0
- {delay: scheduler, for: 5s}
- {limit: rank 1, at: 0s}
- {block: h2, for: 1s}
- reset: h2
- forbid: TMPDIR
- {plant: TMPDIR/name, as: folder}
";
        let faults = read(text).unwrap();
        let words: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "kill rank 2, at step 5",
                "stop rank 1 for 14 s, after 0.5 s",
                "terminate rank 0, 30 s of grace",
                "cut h3 for 20 s",
                "slow h4 to 10mbit",
                "fill /tmp/checkpoints for 45 s, after 60 s",
                "kill server 1",
                "fail helper 0",
                "delay scheduler for 5 s",
                "limit rank 1 for 10 s, after 0 s",
                "block h2 for 1 s",
                "reset h2",
                "forbid TMPDIR",
                "plant TMPDIR/name as folder",
            ]
        );
        let expected = [&faults[0], &faults[1]].map(|fault| fault.expect.clone());
        assert_eq!(expected, [Some(ExpectedEnd::Ends), Some(ExpectedEnd::GoesOn)]);
    }

    #[test]
    fn a_wrong_fault_is_an_error_that_names_it() {
        for (text, part) in [
            ("[]", "empty"),
            ("- kil: rank 2", "kil"),
            ("- kill: rank", "no number"),
            ("- kill: node 2", "rank N"),
            ("- {kill: rank 2, for: 3s}", "no `for`"),
            ("- {kill: rank 2, stop: rank 1}", "one of kill"),
            ("- at: 3s", "one of kill"),
            ("- {kill: rank 2}\n- {slow: h2}", "fault 2: slow needs"),
            ("- {stop: rank 2, to: 10mbit}", "`to` is for slow"),
            ("- {stop: rank 2, at: soon}", "not a time"),
            ("- {stop: rank 2, for: -3s}", "not a time"),
            ("- {cut: h0}", "not a host"),
            ("- {kill: rank 2, expect: maybe}", "maybe"),
            ("- {fail: rank 2, at: 3s}", "no `at`"),
            ("- {kill: rank 2, as: link}", "`as` is for plant"),
            ("- {plant: x, as: pipe}", "pipe"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn usual_faults_expect_that_a_job_goes_on_without_what_it_can_spare() {
        let killed = |is_elastic| {
            let kills = usual(4, 2, 0, is_elastic).into_iter().filter(|fault| matches!(fault.what, FaultKind::Kill(_)));
            kills.map(|fault| fault.expect).collect::<Vec<_>>()
        };
        let (ends, goes_on) = (Some(ExpectedEnd::Ends), Some(ExpectedEnd::GoesOn));
        assert_eq!(killed(false), [ends.clone(), ends.clone(), ends.clone()]);
        assert_eq!(killed(true), [goes_on.clone(), goes_on, ends]);
    }
}
