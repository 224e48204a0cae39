//! `ringpull doctor`: what would keep a job from running here, on the hosts of a hostfile, or on the hosts of
//! a job.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use ringpull_base::{Result, config};

use super::{Format, print, to_json_line};
use crate::doctor::{Finding, Verdict, gather, hosts, judge, probe};
use crate::launch::hostfile;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull doctor                              this host
  ringpull doctor -H hosts                     every host of the file over ssh, and the ways between them
  mpirun -n 8 --map-by node ringpull doctor    the hosts of a job
  ringpull doctor --format json | jq '.[] | select(.verdict != \"good\")'

The exit code is 1 if a job would fail.")]
pub(crate) struct DoctorArgs {
    /// A file with the hosts to look at, one host[:port] [slots=n] a line.
    #[arg(short = 'H', long, value_name = "HOSTFILE")]
    hostfile: Option<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print this host's facts as one line of JSON.
    #[arg(long, hide = true)]
    facts: bool,
    /// The name that this host was reached by.
    #[arg(long, hide = true)]
    called: Option<String>,
    /// The ranks that this host is to take.
    #[arg(long, hide = true)]
    slots: Option<usize>,
    /// A host to look at from here, as name:port.
    #[arg(long, hide = true)]
    towards: Vec<String>,
    /// Be one of the ranks that show what MPI gives them.
    #[arg(long, hide = true)]
    probe: bool,
}

/// Gathers, judges and prints.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    if args.probe {
        return probe::rank().map(|()| ExitCode::SUCCESS);
    }
    if args.facts {
        let facts = gather(args.called.clone(), args.slots, &args.towards, true);
        println!("{}", to_json_line(&facts)?);
        return Ok(ExitCode::SUCCESS);
    }
    let in_job = cfg!(feature = "mpi") && config::launcher_world_size().is_some_and(|(_, ranks)| ranks > 1);
    let findings: Vec<Finding> = match &args.hostfile {
        Some(path) => {
            let (facts, silent) = hosts::ask(&hostfile::read(path)?)?;
            let silent = silent.into_iter().map(|(host, cause)| Finding::silent(&host, &cause));
            silent.chain(judge(&facts)).collect()
        }
        None if in_job => {
            let facts = hosts::of_ranks()?;
            // Every rank knows all; one speaks.
            if !config::is_first_rank() {
                return Ok(ExitCode::SUCCESS);
            }
            judge(&facts)
        }
        None => judge(&[gather(None, None, &[], true)]),
    };
    print(args.format, &findings, || table(&findings))?;
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::Failure);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let word = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "warning",
            Verdict::Failure => "FAILS",
        };
        lines.push(format!("{word:<8} {:<14} {:<14} {}", finding.host, finding.check, finding.what));
        lines.extend(finding.fix.as_ref().map(|fix| format!("{:<8} {:<14} {:<14} fix: {fix}", "", "", "")));
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (warnings, failures) = (count(Verdict::Warning), count(Verdict::Failure));
    lines.push(format!("{} checks, {warnings} warnings, {failures} failures\n", findings.len()));
    lines.join("\n")
}
