//! `ringpull manifest`: writes Kubernetes manifests of our jobs, and checks other people's.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use ringpull_base::{Error, Result};
use ringpull_kube::lint::{self, Finding, Severity};
use ringpull_kube::request::{JobKind, Request};
use ringpull_kube::{documents, specification, to_yaml};

use super::{FAILURE, SUCCESS, Status};
use super::{Format, to_json};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  ringpull manifest train --workers 4 --image reg/ringpull:1 --claim data -- train --kv-store dist_sync_mpi --data /train/data
  ringpull manifest train --workers 4 --claim data -- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors --resume-if-any
  ringpull manifest train --workers 2 --gpus 8 --rdma rdma/ib --gang volcano -- python3 train.py
  ringpull manifest compare --workers 4 -- --modes dist_sync_mpi,dist_sync:4shared --bytes 100MB
  ringpull manifest specification '{\"distribution_type\": \"MPI\", \"number_of_workers\": 4}' -- train --kv-store dist_sync_mpi
  ringpull manifest train -- train --kv-store dist_sync_mpi | kubectl apply -f -
  ringpull manifest lint job.yaml                  what will go wrong with an MPIJob; exit code 1 if it would fail, or if the file has no MPIJob")]
pub(crate) struct ManifestArgs {
    #[command(subcommand)]
    other: Option<ManifestCommand>,
    /// The kind of job.
    #[arg(value_enum, required = true)]
    kind: Option<JobKind>,
    #[command(flatten)]
    job: Request,
}

#[derive(Debug, Subcommand)]
enum ManifestCommand {
    /// Write the job that a `distribution_specification` of Kubeflow pipelines describes.
    Specification(Box<SpecificationArgs>),
    /// Check MPIJobs: what will go wrong, and the fix.
    Lint(LintArgs),
}

#[derive(Debug, Args)]
struct SpecificationArgs {
    /// The dictionary as JSON or YAML, a file with it, or - for stdin.
    specification: String,
    #[command(flatten)]
    job: Request,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull manifest lint job.yaml
  kubectl get mpijob my-job -o yaml | ringpull manifest lint - --format json")]
struct LintArgs {
    /// YAML files with one or several documents; - for stdin.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A table for people or JSON for programs.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Prints the manifest, or what lint found.
pub(crate) fn run(args: ManifestArgs) -> Result<Status> {
    let request = match args.other {
        None => Request { kind: args.kind.unwrap_or(args.job.kind), ..args.job },
        Some(ManifestCommand::Specification(args)) => {
            let mut request = args.job;
            specification::apply(&dictionary(&args.specification)?, &mut request)?;
            request
        }
        Some(ManifestCommand::Lint(args)) => return run_lint(&args),
    };
    let text = to_yaml(&documents(&request)?)?;
    if let Some(doubt) = request.doubt() {
        eprintln!("warning: {doubt}");
    }
    print!("{text}");
    Ok(SUCCESS)
}

/// The text of a dictionary, given as such, as a file, or on stdin.
fn dictionary(given: &str) -> Result<String> {
    let is_text = given.trim().is_empty() || given.trim() == "null" || given.contains(['{', ':']);
    if is_text { Ok(given.to_owned()) } else { read(Path::new(given)) }
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|cause| Error::io("read", "stdin", &cause))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|cause| Error::io("read", path.display(), &cause))
}

#[derive(Debug, Serialize)]
struct InFile<'a> {
    file: String,
    #[serde(flatten)]
    finding: &'a Finding,
}

fn run_lint(args: &LintArgs) -> Result<Status> {
    let mut reports = Vec::new();
    for path in &args.files {
        reports.push((path.display().to_string(), lint::lint(&read(path)?)));
    }
    let found = || reports.iter().flat_map(|(file, report)| report.findings.iter().map(move |one| (file, one)));
    let errors = found().filter(|(_, finding)| finding.severity == Severity::Error).count();
    match args.format {
        Format::Json => {
            let all: Vec<InFile> = found().map(|(file, finding)| InFile { file: file.clone(), finding }).collect();
            println!("{}", to_json(&all)?);
        }
        Format::Table => {
            for (file, one) in found() {
                let severity = if one.severity == Severity::Error { "error" } else { "warning" };
                println!("{file}: {}\n  {severity}: {} [{}]\n  fix: {}", one.at, one.what, one.rule, one.fix);
            }
            let jobs: usize = reports.iter().map(|(_, report)| report.jobs).sum();
            let warnings = found().count() - errors;
            println!("{jobs} MPIJob(s): {errors} error(s), {warnings} warning(s)");
        }
    }
    let empty = reports.iter().filter(|(_, report)| report.jobs == 0 && report.findings.is_empty());
    let empty: Vec<&String> = empty.map(|(file, _)| file).collect();
    for file in &empty {
        eprintln!(
            "error: {file} holds no MPIJob, so nothing was checked\n  hint: lint checks only objects of kind: MPIJob"
        );
    }
    Ok(if errors > 0 || !empty.is_empty() { FAILURE } else { SUCCESS })
}
