//! The linter of MPIJobs: what will go wrong, and the fix.
//!
//! - `node`: a value of a document, with its path; `job`: an MPIJob as the rules see it;
//! - `structure`: what the operator refuses or silently ignores; `ssh`: users, keys and their modes, sshd;
//! - `launcher`: the command line of `mpirun`; `mpi`: whether it is that of the right MPI;
//! - `store`: the kind of store and its servers; `pods`: devices, memory, volumes, network.
//!
//! A finding is an error if the job would fail or not do what it says, else a warning.

mod job;
mod launcher;
mod mpi;
mod node;
mod pods;
mod ssh;
mod store;
mod structure;

use serde::Serialize;
use serde_json::Value;

use self::job::Job;
use self::node::Node;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The job would fail, or not do what it says.
    Error,
    /// It works here and now, and costs something or fails elsewhere.
    Warning,
}

/// Something that will go wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule's name.
    pub rule: &'static str,
    /// Where: the number of the document, counted from 1, and the path in it.
    pub at: String,
    /// What will go wrong.
    pub what: String,
    /// What to change, in a line.
    pub fix: String,
}

/// What the rules found so far.
#[derive(Debug, Default)]
struct Findings {
    document: usize,
    list: Vec<Finding>,
}

impl Findings {
    fn error(&mut self, rule: &'static str, at: &Node, what: impl Into<String>, fix: impl Into<String>) {
        self.add(Severity::Error, rule, at, what.into(), fix.into());
    }

    fn warn(&mut self, rule: &'static str, at: &Node, what: impl Into<String>, fix: impl Into<String>) {
        self.add(Severity::Warning, rule, at, what.into(), fix.into());
    }

    fn add(&mut self, severity: Severity, rule: &'static str, at: &Node, what: String, fix: String) {
        let at = format!("document {}: {}", self.document, at.path);
        self.list.push(Finding { severity, rule, at, what, fix });
    }
}

/// What was read and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many MPIJobs there were.
    pub jobs: usize,
    /// The findings, errors first within each document.
    pub findings: Vec<Finding>,
}

/// Checks every MPIJob of a YAML stream. Invalid YAML is a finding too.
pub fn lint(text: &str) -> Report {
    let mut findings = Findings { document: 1, list: Vec::new() };
    let documents: Vec<Value> = match serde_saphyr::from_multiple(text) {
        Ok(documents) => documents,
        Err(cause) => {
            let cause = cause.to_string();
            let nowhere = Node { value: &Value::Null, path: "(text)".to_owned() };
            let fix = "correct that line; a key may occur once, and indentation is blanks";
            findings.error("yaml", &nowhere, cause.lines().next().unwrap_or(""), fix);
            return Report { jobs: 0, findings: findings.list };
        }
    };
    let mut jobs = 0;
    let mut sorted = Vec::new();
    for (number, document) in documents.iter().enumerate() {
        findings.document = number + 1;
        let listed = document.get("items").and_then(Value::as_array);
        let root = |path: String, value| Node { value, path };
        let objects: Vec<Node> = match listed {
            Some(items) => items.iter().enumerate().map(|(at, item)| root(format!("items[{at}]"), item)).collect(),
            None => vec![root(String::new(), document)],
        };
        for object in objects.iter().filter(|object| object.get("kind").text() == Some("MPIJob")) {
            jobs += 1;
            check(object, &mut findings);
        }
        findings.list.sort_by_key(|finding| finding.severity);
        sorted.append(&mut findings.list);
    }
    Report { jobs, findings: sorted }
}

fn check(object: &Node, findings: &mut Findings) {
    if !structure::is_v2(object, findings) {
        return;
    }
    let job = Job::of(object);
    structure::check(&job, findings);
    ssh::check(&job, findings);
    if job.launcher.replica.is_there() {
        launcher::check(&job, findings);
        mpi::check(&job, findings);
        store::check(&job, findings);
    }
    pods::check(&job, findings);
}
