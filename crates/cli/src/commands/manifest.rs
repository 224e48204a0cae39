//! `ringpull manifest`: writes Kubernetes manifests of our jobs, and checks and converts other people's.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use ringpull_base::{Error, Result};
use ringpull_kube::convert::{self, Target};
use ringpull_kube::lint::rules::{RULES, rule_of};
use ringpull_kube::lint::{self, Finding, KINDS, LintLevel};
use ringpull_kube::options::{JobKind, JobRequest, PodSecurity, Request};
use ringpull_kube::{documents, specification, to_yaml};

use super::{FAILURE, SUCCESS, Status};
use super::{put, to_json};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  ringpull manifest claim --claim data --claim-size 10Gi | kubectl apply -f -
  ringpull manifest train --workers 4 --image reg/ringpull:1 --claim data -- train --kv-store dist_sync_mpi --data /train/data
  ringpull manifest train --workers 4 --claim data -- train --kv-store dist_sync_mpi --checkpoint /train/run.safetensors --resume-if-any
  ringpull manifest train --workers 2 --gpus 8 --rdma rdma/ib --gang volcano -- python3 train.py
  ringpull manifest train --non-root --kueue team --patch mine.yaml -- train --kv-store dist_sync_mpi
  ringpull manifest compare --workers 4 -- --modes dist_sync_mpi,dist_sync:4shared --bytes 100MB
  ringpull manifest specification '{\"distribution_type\": \"MPI\", \"number_of_workers\": 4}' -- train --kv-store dist_sync_mpi
  ringpull manifest lint job.yaml                  what will go wrong with a job; exit code 1 if it would fail, or if there is none
  ringpull manifest convert job.yaml --to trainjob  an MPIJob as a TrainJob")]
pub(crate) struct ManifestArgs {
    #[command(subcommand)]
    other: Option<ManifestCommand>,
    /// The kind of job.
    #[arg(value_enum, required = true)]
    kind: Option<JobKind>,
    #[command(flatten)]
    job: JobRequest,
}

#[derive(Debug, Subcommand)]
enum ManifestCommand {
    /// Write the job that a `distribution_specification` of Kubeflow pipelines describes.
    Specification(Box<SpecificationArgs>),
    /// Check jobs of Kubeflow's operators: find their faults, and the fix of each.
    Lint(LintArgs),
    /// Convert an MPIJob or an MXJob to another kind. Settings that the other kind lacks are listed on
    /// stderr.
    Convert(ConvertArgs),
}

#[derive(Debug, Args)]
struct SpecificationArgs {
    /// The dictionary as JSON or YAML, a file with it, or - for stdin.
    specification: String,
    #[command(flatten)]
    job: JobRequest,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull manifest lint job.yaml
  ringpull manifest lint --level error --ignore mesh --format sarif jobs/*.yaml > lint.sarif
  ringpull manifest lint --pod-security restricted job.yaml
  kubectl get mpijob my-job -o yaml | ringpull manifest lint - --format json")]
struct LintArgs {
    /// YAML files with one or several documents; - for stdin.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A list for people, JSON for programs, or SARIF for code scanners.
    #[arg(long, value_enum, default_value_t)]
    format: LintFormat,
    /// The findings to report: only errors, also warnings, or also notes, which depend on the image or the
    /// cluster.
    #[arg(long, value_enum, default_value = "warning")]
    level: LintLevel,
    /// Leave out the findings of a rule.
    #[arg(long, value_name = "RULE", value_parser = rule)]
    ignore: Vec<String>,
    /// Report what this level of Pod Security does not allow.
    #[arg(long, value_enum)]
    pod_security: Option<PodSecurity>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringpull manifest convert mpijob.yaml --to trainjob
  ringpull manifest convert mxjob.yaml --to mpijob | kubectl apply -f -")]
struct ConvertArgs {
    /// A YAML file with the job; - for stdin.
    file: PathBuf,
    /// The kind to write.
    #[arg(long, value_enum)]
    to: Target,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LintFormat {
    #[default]
    Table,
    Json,
    Sarif,
}

fn rule(name: &str) -> Result<String, String> {
    if rule_of(name).is_some() {
        return Ok(name.to_owned());
    }
    let near = ringpull_base::closest(name, RULES.iter().map(|rule| rule.name));
    Err(near.map_or("no rule has this name".to_owned(), |near| format!("did you mean {near}?")))
}

/// Prints the manifest, or what lint found.
pub(crate) fn run(args: ManifestArgs) -> Result<Status> {
    let request = match args.other {
        None => Request { kind: args.kind.unwrap_or(args.job.0.kind), ..args.job.0 },
        Some(ManifestCommand::Specification(args)) => {
            let mut request = args.job.0;
            specification::apply(&dictionary(&args.specification)?, &mut request)?;
            request
        }
        Some(ManifestCommand::Lint(args)) => return run_lint(&args),
        Some(ManifestCommand::Convert(args)) => {
            let converted = convert::convert(&read(&args.file)?, args.to)?;
            converted.lost.iter().for_each(|lost| eprintln!("warning: {lost}"));
            put(&to_yaml(&converted.objects)?);
            return Ok(SUCCESS);
        }
    };
    let text = to_yaml(&documents(&request)?)?;
    if let Some(doubt) = request.doubt() {
        eprintln!("warning: {doubt}");
    }
    put(&text);
    Ok(SUCCESS)
}

/// The text of a dictionary, which is given as an argument, in a file, or on stdin.
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
    let (mut all, mut jobs, mut empty) = (Vec::new(), 0, Vec::new());
    let mut reports = Vec::new();
    for path in &args.files {
        reports.push((path.display().to_string(), lint::lint(&read(path)?, args.pod_security)));
    }
    for (file, report) in &reports {
        jobs += report.jobs;
        if report.jobs == 0 && report.findings.is_empty() {
            empty.push(file);
        }
        let shown = report
            .findings
            .iter()
            .filter(|it| it.level <= args.level && !args.ignore.iter().any(|rule| rule == it.rule));
        all.extend(shown.map(|finding| InFile { file: file.clone(), finding }));
    }
    let count = |level| all.iter().filter(|one| one.finding.level == level).count();
    match args.format {
        LintFormat::Json => put(&(to_json(&all)? + "\n")),
        LintFormat::Sarif => put(&(to_json(&sarif(&all))? + "\n")),
        LintFormat::Table => {
            for InFile { file, finding } in &all {
                let Finding { level, rule, at, line, what, fix } = finding;
                put(&format!("{file}:{line}: {at}\n  {}: {what} [{rule}]\n  fix: {fix}\n", level_name(*level)));
            }
            let (errors, warnings, notes) =
                (count(LintLevel::Error), count(LintLevel::Warning), count(LintLevel::Note));
            let notes = if args.level == LintLevel::Note { format!(", {notes} note(s)") } else { String::new() };
            put(&format!("{jobs} job(s): {errors} error(s), {warnings} warning(s){notes}\n"));
        }
    }
    for file in &empty {
        eprintln!("error: {file} holds no job, so nothing was checked\n  hint: lint checks only {}", KINDS.join(", "));
    }
    Ok(if count(LintLevel::Error) > 0 || !empty.is_empty() { FAILURE } else { SUCCESS })
}

fn level_name(level: LintLevel) -> &'static str {
    match level {
        LintLevel::Error => "error",
        LintLevel::Warning => "warning",
        LintLevel::Note => "note",
    }
}

/// The page of the book that explains the rules.
const BOOK: &str = "docs/reference/lint.md";

/// The findings in the format of code scanners (SARIF 2.1.0).
fn sarif(all: &[InFile]) -> Value {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.name,
                "shortDescription": { "text": rule.finds },
                "help": { "text": format!("{BOOK}#{}", rule.name) },
                "defaultConfiguration": { "level": level_name(rule.level) },
            })
        })
        .collect();
    let result = |InFile { file, finding }: &InFile| {
        json!({
            "ruleId": finding.rule,
            "level": level_name(finding.level),
            "message": { "text": format!("{}; fix: {}", finding.what, finding.fix) },
            "locations": [{
                "physicalLocation": { "artifactLocation": { "uri": file }, "region": { "startLine": finding.line } },
                "logicalLocations": [{ "fullyQualifiedName": finding.at }],
            }],
        })
    };
    json!({
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{
            "tool": { "driver": { "name": "ringpull manifest lint", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "results": all.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}
