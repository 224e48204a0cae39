//! The command line of `ringpull`: one file for each subcommand, and the code that they share.
//!
//! Data goes to stdout, everything else to stderr. The exit code is 0 for success, 1 for a failure and 2 for
//! an invalid command line. `launch` and `lab exec` exit with the code of the command that they ran.

mod advise;
mod bench;
mod compare;
mod differ;
mod doctor;
mod info;
mod lab;
mod launch;
mod manifest;
mod measured;
#[cfg(test)]
mod page;
mod probe;
mod rehearse;
mod sizes;
mod timeline;
mod top;
mod train;

use std::error::Error as _;
use std::io::Write as _;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as _, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use ringpull::KvStore;
use ringpull_base::config;
use ringpull_base::{DType, Error, Kind, Result, notice};

use crate::launch::elastic::on_host;
use crate::launch::{horovodrun, wrapper};
pub(crate) use ringpull_harness::text::{to_json, to_json_line, write};

/// MXNet's push/pull KVStore on MPI allreduce and on parameter servers, and the comparison of the two.
#[derive(Debug, Parser)]
#[command(name = "ringpull", version, about, max_term_width = 120, help_template = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// `ringpull --help`. A test compares the lines of commands with those of [`Command`].
const HELP: &str = "\
{about-with-newline}
{usage-heading} {usage}

Run a job:
  launch    Start a job: MPI ranks, or the scheduler, servers and workers of a parameter-server job
  top       Show what the ranks of a running job are doing, or where the time of an ended job went
  doctor    Find what would stop a job from running, and how to fix it; check GPUs
  info      Show what this build and this machine can do; print completions and man pages

Compare:
  bench     Measure one job: the ranks that `mpirun` or `launch` starts
  compare   Compare modes and peers in rotating rounds, and write a report
  advise    Predict steps of training on hosts that you do not have yet, and name the fastest mode
  probe     Measure hosts and their network, and write the cluster file that jobs use

Kubernetes:
  manifest  Write Kubernetes manifests of jobs, or check MPIJobs

Develop:
  differ    Run a command with two kinds of store, and show where and why their values differ
  rehearse  Run a command as a job with faults, and show how the job ends
  lab       Emulate hosts: network namespaces on a bridge, with shaped links (root, Linux)

Options:
{options}

RINGPULL_LOG=debug prints more; `ringpull COMMAND --help` shows examples.
";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a job: MPI ranks, or the scheduler, servers and workers of a parameter-server job.
    Launch(launch::LaunchArgs),
    /// Show what the ranks of a running job are doing, or where the time of an ended job went.
    Top(top::TopArgs),
    /// Find what would stop a job from running, and how to fix it; check GPUs.
    Doctor(doctor::DoctorArgs),
    /// Show what this build and this machine can do; print completions and man pages.
    Info(info::InfoArgs),
    /// Measure one job: the ranks that `mpirun` or `launch` starts.
    Bench(bench::BenchArgs),
    /// Compare modes and peers in rotating rounds, and write a report.
    Compare(compare::CompareArgs),
    /// Predict steps of training on hosts that you do not have yet, and name the fastest mode.
    Advise(advise::AdviseArgs),
    /// Measure hosts and their network, and write the cluster file that jobs use.
    Probe(probe::ProbeArgs),
    /// Write Kubernetes manifests of jobs, or check MPIJobs.
    Manifest(Box<manifest::ManifestArgs>),
    /// Run a command with two kinds of store, and show where and why their values differ.
    Differ(differ::DifferArgs),
    /// Run a command as a job with faults, and show how the job ends.
    Rehearse(rehearse::RehearseArgs),
    /// Emulate hosts: network namespaces on a bridge, with shaped links (root, Linux).
    Lab(lab::LabArgs),
    /// Run one rank below `mpirun`, connected to its launcher.
    #[command(hide = true)]
    Rank(wrapper::WrapperArgs),
    /// Answer a launcher on another host that asks about the snapshots of an elastic job.
    #[command(hide = true)]
    Snapshots(on_host::SnapshotsArgs),
}

/// The output of `ringpull` alone.
const FIRST_SCREEN: &str = "\
MXNet's push/pull KVStore on MPI allreduce and on parameter servers, and the comparison of the two.

  ringpull launch -n 4 -- python train.py          start a script as 4 MPI ranks on this host
  ringpull launch -n 4 -s 2 -- python train.py     start it with 2 parameter servers
  ringpull compare --local 4                       measure which of the two is faster on this machine
  ringpull advise --help                           predict the times on hosts that you do not have
  ringpull doctor                                  find what would stop a job from running
  ringpull manifest train --help                   the same job on Kubernetes

`ringpull --help` lists all commands, `ringpull COMMAND --help` shows examples.
";

/// Reads the name of an element type; `--help` and errors list them.
pub(crate) fn dtypes() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(DType::ALL.map(DType::name)).try_map(|name| name.parse::<DType>())
}

/// The format in which a command prints its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}

/// Prints `value` for programs or its `table` for people.
fn print(format: Format, value: &impl serde::Serialize, table: impl FnOnce() -> String) -> Result<()> {
    match format {
        Format::Json => put(&(to_json(value)? + "\n")),
        Format::Table => put(&table()),
    }
    Ok(())
}

/// The exit code of a command.
pub type Status = u8;

/// The command succeeded.
pub(crate) const SUCCESS: Status = 0;
/// The command failed.
pub(crate) const FAILURE: Status = 1;
/// The command line is invalid.
const USAGE: Status = 2;

/// Writes to stdout. If the reader of stdout has ended, as `head` does, the process ends as by SIGPIPE,
/// without a message.
pub(crate) fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(cause) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if cause.kind() != std::io::ErrorKind::BrokenPipe {
            report(&Error::io("write", "stdout", &cause));
            std::process::exit(FAILURE.into());
        }
        std::process::exit(status_of_signal(rustix::process::Signal::PIPE.as_raw()).into());
    }
}

/// The exit code after a signal, as in a shell.
pub(crate) fn status_of_signal(signal: i32) -> Status {
    u8::try_from(128 + signal).unwrap_or(FAILURE)
}

/// Runs the command of this process's arguments, and returns the exit code. An invalid command line ends the
/// process.
pub fn run() -> Status {
    if std::env::args_os().len() < 2 {
        put(FIRST_SCREEN);
        return SUCCESS;
    }
    let mut words: Vec<_> = std::env::args_os().collect();
    if words[1] != "launch" {
        return Cli::parse_from(words).run();
    }
    let rest = words.split_off(2);
    match horovodrun::translated(rest, &launch::LaunchArgs::augment_args(clap::Command::new("launch"))) {
        Ok((rest, warnings)) => {
            warnings.iter().for_each(|warning| eprintln!("{warning}"));
            Cli::parse_from(words.into_iter().chain(rest)).run()
        }
        Err(error) => {
            report(&error);
            USAGE
        }
    }
}

impl Cli {
    /// Runs the command, prints its error to stderr, and returns the exit code.
    pub fn run(self) -> Status {
        match start_log().and_then(|()| self.command.run()) {
            Ok(code) => code,
            Err(error) => {
                report(&error);
                FAILURE
            }
        }
    }
}

impl Command {
    fn run(self) -> Result<Status> {
        match self {
            Command::Launch(args) => launch::run(args),
            Command::Top(args) => top::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Compare(args) => compare::run(&args),
            Command::Advise(args) => advise::run(&args),
            Command::Probe(args) => probe::run(&args),
            Command::Manifest(args) => manifest::run(*args),
            Command::Differ(args) => differ::run(args),
            Command::Rehearse(args) => rehearse::run(&args),
            Command::Lab(args) => lab::run(args),
            Command::Rank(args) => on_host::check_generation().and_then(|()| wrapper::run(&args)),
            Command::Snapshots(args) => on_host::run(&args),
        }
    }
}

/// Creates the store of a measuring process. A server's or the scheduler's process serves in this function,
/// and exits when its job has ended.
fn store(kind: Kind) -> Result<KvStore> {
    if let Some(status) = ringpull::internal::serve(kind.name())? {
        std::process::exit(status);
    }
    ringpull::create(kind.name())
}

fn start_log() -> Result<()> {
    notice::to_stderr();
    let filter = config::log_filter();
    let parsed = filter.parse::<Targets>().map_err(|_| Error::Environment {
        variable: "RINGPULL_LOG".to_owned(),
        value: filter,
        expected: "a filter such as info or ringpull_ps=debug".to_owned(),
        remedy: "correct it, or unset it".to_owned(),
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(config::log_is_colored());
    tracing_subscriber::registry().with(lines).with(parsed).init();
    Ok(())
}

fn report(error: &Error) {
    eprintln!("{}", error.report());
    let mut cause = error.source();
    while let Some(inner) = cause {
        eprintln!("  because: {inner}");
        cause = inner.source();
    }
}
