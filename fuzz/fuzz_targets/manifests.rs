//! YAML from people: the linter of manifests and the reader of the pipeline's dictionary take any text
//! without a panic. The linter's findings are the same each time, and a dictionary that is accepted asks for
//! a job that can be checked.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ringpull_kube::lint::{Report, lint};
use ringpull_kube::options::{JobKind, Request};
use ringpull_kube::{documents, specification};

fuzz_target!(|text: &str| {
    let Some(first) = text.chars().next() else { return };
    let rest = &text[first.len_utf8()..];
    if first == '{' {
        let mut request = TRAIN.clone();
        match specification::apply(text, &mut request) {
            Ok(()) => drop(documents(&request)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    // Complete the text to a valid job, so that the rules are reached.
    if first == '#' {
        check(&format!("{JOB}{rest}"));
    } else {
        check(text);
    }
});

/// Its flags are parsed once only, which is slow.
static TRAIN: LazyLock<Request> = LazyLock::new(|| {
    let command = vec!["python".to_owned(), "train.py".to_owned()];
    Request { command, ..Request::new(JobKind::Train) }
});

const JOB: &str = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: a}\nspec:\n";

fn check(text: &str) {
    let report: Report = lint(text, None);
    for finding in &report.findings {
        assert!(!finding.at.is_empty() && !finding.rule.is_empty());
    }
    assert!(report.jobs > 0 || report.findings.len() <= 1, "{report:?}");
}
