//! One planted mistake in each file of `tests/lint`; its first line names the rule that finds it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringpull_kube::lint::lint;

use super::{read, ringpull, root};

fn fixtures() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join("crates/cli/tests/lint")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text = read(&file);
            let rule = text.lines().next().unwrap().strip_prefix("# finds: ").unwrap().to_owned();
            (file, rule)
        })
        .collect()
}

#[test]
fn each_planted_mistake_is_found_by_its_rule_and_by_no_other() {
    let mut rules = BTreeSet::new();
    for (file, rule) in fixtures() {
        let report = lint(&read(&file));
        let found: BTreeSet<&str> = report.findings.iter().map(|finding| finding.rule).collect();
        let expected: BTreeSet<&str> = if rule == "nothing" { BTreeSet::new() } else { [rule.as_str()].into() };
        assert_eq!(found, expected, "{}: {:?}", file.display(), report.findings);
        assert!(
            report.findings.iter().all(|finding| !finding.fix.contains('\n') && finding.at.contains("document 1: "))
        );
        rules.insert(rule);
    }
    assert!(rules.len() > 15, "{rules:?}");
}

#[test]
fn the_exit_code_tells_errors_from_warnings_and_paths_lead_to_them() {
    let output = ringpull(&[
        "manifest",
        "lint",
        "crates/cli/tests/lint/more-ranks-than-slots.yaml",
        "crates/cli/tests/lint/clean.yaml",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command"), "{text}");
    assert!(text.contains("2 MPIJob(s): 1 error(s), 0 warning(s)"), "{text}");
    let output = ringpull(&["manifest", "lint", "--format", "json", "crates/cli/tests/lint/no-probe.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found[0]["rule"], &found[0]["severity"]), (&"no-probe".into(), &"warning".into()));
}

#[test]
fn several_documents_are_read_from_stdin_and_numbered() {
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n---\n{}",
        read(&root().join("crates/cli/tests/lint/dot-in-the-name.yaml"))
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.yaml");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ringpull"))
        .args(["manifest", "lint", "-"])
        .stdin(Stdio::from(std::fs::File::open(&file).unwrap()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("-: document 2: metadata.name"), "{text}");
}

#[test]
fn a_file_without_an_mpijob_is_an_error() {
    let output = ringpull(&["manifest", "lint", "crates/cli/tests/lint/clean.yaml", "mpijob/job/job.yaml"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: mpijob/job/job.yaml holds no MPIJob") && text.contains("hint:"), "{text}");
}

#[test]
fn numbers_that_no_cluster_has_are_no_reason_to_stop() {
    let text = read(&root().join("crates/cli/tests/lint/clean.yaml"));
    let large = text.replace("slotsPerWorker: 2", "slotsPerWorker: 9223372036854775807");
    assert_eq!(lint(&large).jobs, 1);
    assert_eq!(lint(&text.replace("replicas: 4", "replicas: 9223372036854775807")).jobs, 1);
}
