//! The linter finds each mistake of `mistakes.yaml` by its rule and by no other.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use ringpull_kube::lint::lint;
use ringpull_kube::to_yaml;

const CLEAN: &str = include_str!("clean.yaml");

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
        // The old role is removed after its contents are used by the new one.
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
fn a_key_that_occurs_twice_is_an_error() {
    let report = lint(&CLEAN.replace("  slotsPerWorker: 2\n", "  slotsPerWorker: 2\n  slotsPerWorker: 4\n"));
    assert_eq!((report.jobs, report.findings[0].rule), (0, "yaml"));
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
