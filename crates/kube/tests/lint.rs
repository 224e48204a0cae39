//! The linter finds each mistake of `mistakes.yaml` by its rule and by no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use ringpull_kube::lint::{LintLevel, Report, rules::RULES};
use ringpull_kube::options::PodSecurity;
use ringpull_kube::to_yaml;

const CLEAN: &str = include_str!("clean.yaml");

fn lint(text: &str) -> Report {
    ringpull_kube::lint::lint(text, None)
}

/// A change of the clean job, and the rule that must find it.
#[derive(Deserialize)]
struct Mistake {
    rule: String,
    why: String,
    set: BTreeMap<String, Value>,
}

/// Sets the field at this path, or removes it.
fn set(job: &mut Value, path: &str, value: &Value) {
    let role = |name: &str| format!("spec mpiReplicaSpecs {name}");
    let (first, rest) = path.split_once(' ').unwrap_or((path, ""));
    let path = match first {
        "Launcher" | "Worker" => format!("{} {rest}", role(first)),
        "L" => format!("{} template spec containers 0 {rest}", role("Launcher")),
        "W" => format!("{} template spec containers 0 {rest}", role("Worker")),
        _ => path.to_owned(),
    };
    let (parents, last) = path.trim().rsplit_once(' ').unwrap_or(("", path.trim()));
    let parent = parents.split_whitespace().fold(job, |value, name| match name.parse::<usize>() {
        Ok(index) => &mut value[index],
        Err(_) => &mut value[name],
    });
    match (parent, value) {
        (Value::Object(fields), Value::Null) => assert!(fields.remove(last).is_some(), "{path} is not there"),
        (Value::Array(list), Value::Null) => drop(list.remove(last.parse().unwrap())),
        (Value::Array(list), value) if last.parse() == Ok(list.len()) => list.push(value.clone()),
        (Value::Array(list), value) => list[last.parse::<usize>().unwrap()] = value.clone(),
        (parent, value) => parent[last] = value.clone(),
    }
}

#[test]
fn each_mistake_is_found_by_its_rule_and_by_no_other() {
    let clean: Value = serde_saphyr::from_str(CLEAN).unwrap();
    assert_eq!(lint(CLEAN).findings, []);
    let mistakes: Vec<Mistake> = serde_saphyr::from_str(include_str!("mistakes.yaml")).unwrap();
    assert!(mistakes.len() > 35);
    for Mistake { rule, why, set: changes } in mistakes {
        let mut job = clean.clone();
        // The old role is removed after the new role has got its contents.
        let replicas = job["spec"]["mpiReplicaSpecs"]["Worker"].clone();
        for (path, value) in &changes {
            let value = if path == "spec mpiReplicaSpecs worker" { &replicas } else { value };
            set(&mut job, path, value);
        }
        let report = lint(&to_yaml(&[job]).unwrap());
        let found: BTreeSet<&str> = report.findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(found, BTreeSet::from([rule.as_str()]), "{why}: {:?}", report.findings);
        let is_one_line = |text: &str| !text.contains('\n');
        assert!(report.findings.iter().all(|it| is_one_line(&it.fix) && it.at.contains("document 1: ")), "{why}");
    }
}

#[test]
fn every_rule_is_tested_and_every_finding_has_a_rule() {
    let mistakes: Vec<Mistake> = serde_saphyr::from_str(include_str!("mistakes.yaml")).unwrap();
    let of_others: Vec<OfOther> = serde_saphyr::from_str(include_str!("others.yaml")).unwrap();
    let mut tested: BTreeSet<&str> = mistakes.iter().map(|it| it.rule.as_str()).collect();
    tested.extend(of_others.iter().map(|it| it.rule.as_str()));
    // Tested in other functions below.
    tested.extend(["yaml", "pod-security"]);
    assert_eq!(tested, RULES.iter().map(|rule| rule.name).collect());
}

/// A whole job of another kind than an MPIJob, and a rule that must find something in it.
#[derive(Deserialize)]
struct OfOther {
    rule: String,
    why: String,
    objects: Vec<Value>,
}

#[test]
fn mistakes_in_jobs_of_other_kinds_are_found() {
    let jobs: Vec<OfOther> = serde_saphyr::from_str(include_str!("others.yaml")).unwrap();
    for OfOther { rule, why, objects } in jobs {
        let report = lint(&to_yaml(&objects).unwrap());
        let found: BTreeSet<&str> = report
            .findings
            .iter()
            .filter(|it| it.level < LintLevel::Note || it.rule == rule)
            .map(|it| it.rule)
            .collect();
        assert_eq!(found, BTreeSet::from([rule.as_str()]), "{why}: {:?}", report.findings);
        // A fault of a TrainJob is reported in the TrainJob, not in its runtime.
        let found = report.findings.iter().find(|it| it.rule == rule).unwrap();
        let is_joined = objects.len() == 2;
        assert!(!is_joined || found.at.starts_with("document 2: spec.trainer."), "{why}: {found:?}");
    }
}

#[test]
fn samples_of_the_operators_have_no_error_and_few_warnings() {
    let text = include_str!("samples.yaml");
    let report = lint(text);
    let errors: Vec<_> = report.findings.iter().filter(|it| it.level == LintLevel::Error).collect();
    assert!(report.jobs == 11 && errors.is_empty(), "{errors:?}");
    // A script that waits by itself needs no other wait for its workers. It also reads the workers'
    // variables.
    assert!(report.findings.iter().all(|it| !it.at.starts_with("document 11: ")), "{:?}", report.findings);
    for number in 1..=10 {
        let of = format!("document {number}: ");
        let warnings = report.findings.iter().filter(|it| it.level == LintLevel::Warning && it.at.starts_with(&of));
        let warnings: Vec<_> = warnings.collect();
        assert!(warnings.len() < 2, "{warnings:?}");
    }
}

#[test]
fn pod_security_is_reported_by_level() {
    let found = |level| ringpull_kube::lint::lint(CLEAN, Some(level)).findings;
    assert_eq!(found(PodSecurity::Baseline), []);
    let restricted = found(PodSecurity::Restricted);
    assert!(restricted.iter().all(|it| it.rule == "pod-security") && restricted.len() == 8, "{restricted:?}");
    let host = CLEAN
        .replace("emptyDir:\n              medium: Memory\n              sizeLimit: 8Gi", "hostPath: {path: /dev/shm}");
    let found = ringpull_kube::lint::lint(&host, Some(PodSecurity::Baseline)).findings;
    assert_eq!(found.iter().filter(|it| it.rule == "pod-security").count(), 1, "{found:?}");
}

/// The book's page of rules.
#[test]
fn the_page_of_rules_has_every_rule() {
    let mut page = "# What the linter finds\n\n`ringpull manifest lint` compares each object with the schema of its kind, then tries these rules on it. An\nerror means that the job fails or does not do what its manifest says. A warning means that the job works, but\nwastes something or is probably not what its author meant. A note depends on the image or the cluster;\n`--level note` shows notes too.\n".to_owned();
    for (level, title) in [(LintLevel::Error, "Errors"), (LintLevel::Warning, "Warnings"), (LintLevel::Note, "Notes")] {
        write!(page, "\n## {title}\n\n| rule | what it finds |\n| --- | --- |\n").unwrap();
        for rule in RULES.iter().filter(|rule| rule.level == level) {
            writeln!(page, "| <a id=\"{0}\"></a>`{0}` | {1} |", rule.name, rule.finds).unwrap();
        }
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/lint.md");
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(std::fs::read_to_string(&path).unwrap_or_default() == page, "{} is stale: RENEW=1", path.display());
}

#[test]
fn a_key_that_occurs_twice_is_an_error() {
    let report = lint(&CLEAN.replace("  slotsPerWorker: 2\n", "  slotsPerWorker: 2\n  slotsPerWorker: 4\n"));
    assert_eq!((report.jobs, report.findings[0].rule), (0, "yaml"));
    assert!(report.findings[0].fix.contains("may occur once"), "{:?}", report.findings);
    let template = lint(&CLEAN.replace("name: resnet\n", "name: {{ .Release.Name }}\n"));
    assert!(template.findings[0].fix.contains("helm template"), "{:?}", template.findings);
    let variable = lint(&CLEAN.replace("replicas: 4", "replicas: ${WORKERS}"));
    assert_eq!(variable.findings.iter().map(|it| it.rule).collect::<Vec<_>>(), ["schema"]);
}

#[test]
fn several_documents_are_numbered() {
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n";
    let report = lint(&format!("{other}{}", CLEAN.replace("name: resnet\n", "name: resnet.v2\n")));
    assert_eq!(report.findings[0].at, "document 2: metadata.name");
}

#[test]
fn huge_numbers_do_not_stop_the_linter() {
    for number in ["slotsPerWorker: 2", "replicas: 4"] {
        let (name, _) = number.split_once(' ').unwrap();
        assert_eq!(lint(&CLEAN.replace(number, &format!("{name} 9223372036854775807"))).jobs, 1);
    }
}

/// A job like one in a public repository, with the rules that find something in it.
#[derive(Deserialize)]
struct PublicJob {
    like: String,
    finds: BTreeSet<String>,
    objects: Vec<Value>,
}

#[test]
fn jobs_like_those_in_public_have_no_false_error_and_their_faults_are_found() {
    let jobs: Vec<PublicJob> = serde_saphyr::from_str(include_str!("field.yaml")).unwrap();
    assert_eq!(jobs.len(), 53);
    let mut wrong = String::new();
    for PublicJob { like, finds, objects } in jobs {
        let report = lint(&to_yaml(&objects).unwrap());
        let found: BTreeSet<String> =
            report.findings.iter().filter(|it| it.level < LintLevel::Note).map(|it| it.rule.to_owned()).collect();
        if found != finds {
            writeln!(wrong, "{like}: {finds:?} expected, {:?}", report.findings).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
