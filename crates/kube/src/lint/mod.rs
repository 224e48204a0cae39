//! The linter of jobs: it finds faults before a job runs, and names the fix.
//!
//! First each object is compared with the schema of its kind; then the rules of [`rules`] are tried on it.
//! - `node`: a value of a document, with its path; `lines`: the line of a value in the text; `job`: the jobs
//!   as the rules see them;
//! - `structure`: settings that the operators refuse or silently ignore; `ssh`: users, keys and their modes,
//!   sshd;
//! - `launcher`: the command line of `mpirun`; `mpi`: checks that it is a command line of the right MPI;
//! - `elastic`: the needs of a job that goes on when pods are lost;
//! - `store`: the kind of store and its servers; `pods`: devices, memory, volumes, network;
//! - `trainer`: the changes of a TrainJob to its runtime.

mod elastic;
mod job;
mod launcher;
mod lines;
mod mpi;
mod node;
mod pods;
pub mod rules;
mod ssh;
mod store;
mod structure;
mod trainer;

use serde::Serialize;
use serde_json::Value;

use self::job::{Job, MpiJobSpec};
use self::lines::SourceLines;
use self::node::Node;
pub use self::rules::LintLevel;
use crate::options::PodSecurity;
use crate::schema;

/// Something that will go wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The level of the finding.
    pub level: LintLevel,
    /// The rule's name.
    pub rule: &'static str,
    /// The place: the number of the document, counted from 1, and the path in it.
    pub at: String,
    /// The line of this place in the text, counted from 1.
    pub line: u64,
    /// The fault.
    pub what: String,
    /// The change that mends the fault, in one line.
    pub fix: String,
}

/// The findings of the rules so far.
#[derive(Debug, Default)]
struct Findings {
    document: usize,
    lines: SourceLines,
    list: Vec<Finding>,
}

impl Findings {
    /// A finding of the rule of this name, which mends it as the rule says.
    fn found(&mut self, rule: &'static str, at: &Node, what: impl Into<String>) {
        self.add(rule, at, what, rules::rule_of(rule).map_or("", |rule| rule.fix));
    }

    /// A finding of the rule of this name, which `rules` must have, with a fix of its own.
    fn add(&mut self, rule: &'static str, at: &Node, what: impl Into<String>, fix: impl Into<String>) {
        let level = rules::rule_of(rule).map_or(LintLevel::Error, |rule| rule.level);
        let line = self.lines.line(self.document, &at.path);
        let at = format!("document {}: {}", self.document, at.path);
        self.list.push(Finding { level, rule, at, line, what: what.into(), fix: fix.into() });
    }

    /// Moves findings of a TrainJob's trainer to their place in the TrainJob. It was found in the runtime
    /// that runs it.
    fn move_to_trainer(&mut self, runtime: &Node, number: usize, trainjob: &Node) {
        for finding in &mut self.list {
            let path = finding.at.split_once(": ").and_then(|(_, path)| job::in_trainer(path, runtime, trainjob));
            if let Some(path) = path {
                finding.line = self.lines.line(number, &path);
                finding.at = format!("document {number}: {path}");
            }
        }
    }
}

/// The jobs that were read, and the findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The number of jobs and runtimes.
    pub jobs: usize,
    /// The findings, errors first within each document.
    pub findings: Vec<Finding>,
}

/// The kinds that are checked.
pub const KINDS: [&str; 6] = ["MPIJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "MXJob", "TFJob"];

/// Checks every job of a YAML stream, and its pods against a level of Pod Security if one is given. Invalid
/// YAML is a finding too.
pub fn lint(text: &str, security: Option<PodSecurity>) -> Report {
    let mut findings = Findings { document: 1, lines: SourceLines::of(text), list: Vec::new() };
    let documents: Vec<Value> = match serde_saphyr::from_multiple(text) {
        Ok(documents) => documents,
        Err(cause) => {
            let line = cause.location().map_or(1, |location| location.line().max(1));
            let cause = cause.to_string();
            let nowhere = Node { value: &Value::Null, path: "(text)".to_owned() };
            let fix = if text.contains("{{") {
                "this is a template: check what it becomes, such as by helm template"
            } else {
                "correct that line; a key may occur once, and indentation is blanks"
            };
            let cause = cause.lines().next().unwrap_or("").trim_start_matches("error: ");
            findings.add("yaml", &nowhere, cause, fix);
            findings.list.iter_mut().for_each(|finding| finding.line = line);
            return Report { jobs: 0, findings: findings.list };
        }
    };
    let mut jobs = 0;
    let mut sorted = Vec::new();
    let objects: Vec<(usize, Node)> = documents
        .iter()
        .enumerate()
        .flat_map(|(at, document)| objects_of(document).into_iter().map(move |object| (at + 1, object)))
        .filter(|(_, object)| object.get("kind").text().is_some_and(|kind| KINDS.contains(&kind)))
        .collect();
    for (number, object) in &objects {
        findings.document = *number;
        jobs += 1;
        // A TrainJob in the same stream decides what the runtime runs.
        let trainjob = objects.iter().find(|(_, other)| job::is_of(other, object));
        let joined = trainjob.map(|(_, trainjob)| job::joined(object.value, trainjob.value));
        let whole = joined.as_ref().map_or(object.clone(), |joined| Node { value: joined, path: object.path.clone() });
        check(object, &whole, security, &mut findings);
        if let Some((number, trainjob)) = trainjob {
            findings.move_to_trainer(object, *number, trainjob);
        }
        if let Some((_, runtime)) = objects.iter().find(|(_, other)| job::is_of(object, other)) {
            trainer::check(object, runtime, &mut findings);
        }
        findings.list.sort_by_key(|finding| finding.level);
        sorted.append(&mut findings.list);
    }
    Report { jobs, findings: sorted }
}

/// Returns the document itself, or the items of its list.
fn objects_of(document: &Value) -> Vec<Node<'_>> {
    match document.get("items").and_then(Value::as_array) {
        Some(items) => {
            let item = |(at, value)| Node { value, path: format!("items[{at}]") };
            items.iter().enumerate().map(item).collect()
        }
        None => vec![Node { value: document, path: String::new() }],
    }
}

fn check(object: &Node, whole: &Node, security: Option<PodSecurity>, findings: &mut Findings) {
    if !structure::is_known_version(object, findings) {
        return;
    }
    for fault in schema::check(object.value) {
        let dot = if object.path.is_empty() || fault.path.is_empty() { "" } else { "." };
        let at = Node { value: &Value::Null, path: format!("{}{dot}{}", object.path, fault.path) };
        findings.add("schema", &at, fault.what, fault.fix);
    }
    structure::no_negative_numbers(object, findings);
    let job = Job::of(whole);
    structure::check(&job, findings);
    pods::check(&job, security, findings);
    store::check_pods(&job, findings);
    if let Some(mpi) = MpiJobSpec::of(&job) {
        structure::check_mpi(&mpi, findings);
        ssh::check(&mpi, findings);
        pods::check_mpi(&mpi, findings);
        if mpi.launcher.template.is_there() {
            launcher::check(&mpi, findings);
            elastic::check(&mpi, findings);
            mpi::check(&mpi, findings);
            store::check(&mpi, findings);
        }
    }
}
