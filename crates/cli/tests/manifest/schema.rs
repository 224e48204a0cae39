//! A strict reading of the structural schemas that CustomResourceDefinitions carry: an unknown field is an
//! error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use super::{parse, read, root};

/// Schemas by `apiVersion` and `kind`; none where the folder is absent.
pub(crate) fn schemas() -> Option<&'static BTreeMap<(String, String), Value>> {
    static LOADED: OnceLock<Option<BTreeMap<(String, String), Value>>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref()
}

fn load() -> Option<BTreeMap<(String, String), Value>> {
    let folder = std::env::var_os("RINGPULL_CRDS").map_or_else(|| root().join("../shared/crds"), PathBuf::from);
    if !folder.is_dir() {
        println!("skipped: {} is absent; name a folder of Kubeflow's CRDs with RINGPULL_CRDS", folder.display());
        return None;
    }
    let files = [
        "mpi-operator-v0.8.2/kubeflow.org_mpijobs.yaml",
        "training-operator-v1.8.1/kubeflow.org_mxjobs.yaml",
        "training-operator-v1.9.4/kubeflow.org_tfjobs.yaml",
        "trainer-v2.3.0/trainer.kubeflow.org_clustertrainingruntimes.yaml",
        "trainer-v2.3.0/trainer.kubeflow.org_trainjobs.yaml",
    ];
    let mut found = BTreeMap::new();
    for file in files {
        for definition in parse(&read(&folder.join(file))) {
            let spec = &definition["spec"];
            for version in spec["versions"].as_array().unwrap() {
                let name = format!("{}/{}", spec["group"].as_str().unwrap(), version["name"].as_str().unwrap());
                let kind = spec["names"]["kind"].as_str().unwrap().to_owned();
                found.insert((name, kind), version["schema"]["openAPIV3Schema"].clone());
            }
        }
    }
    Some(found)
}

/// What is wrong with an object; nothing if its kind is one of Kubernetes itself, or its schema is missing.
pub(crate) fn faults(object: &Value) -> Vec<String> {
    let Some(schemas) = schemas() else { return Vec::new() };
    let name = (text(&object["apiVersion"]), text(&object["kind"]));
    if let Some(schema) = schemas.get(&name) {
        return check(object, schema);
    }
    // A Job's pod is an MPIJob's; its own fields are few.
    let pod = &schemas[&("kubeflow.org/v2beta1".to_owned(), "MPIJob".to_owned())]["properties"]["spec"]["properties"]["mpiReplicaSpecs"]
        ["additionalProperties"]["properties"]["template"];
    match (name.0.as_str(), name.1.as_str()) {
        ("batch/v1", "Job") => {
            let known = ["backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "template"];
            let fields = object["spec"].as_object().unwrap().keys();
            let unknown = fields.filter(|field| !known.contains(&field.as_str())).map(|field| format!("spec.{field}"));
            unknown.chain(check(&object["spec"]["template"], pod)).collect()
        }
        ("v1", "PersistentVolumeClaim") => {
            let known = ["accessModes", "storageClassName", "resources"];
            let fields = object["spec"].as_object().unwrap().keys();
            fields.filter(|field| !known.contains(&field.as_str())).map(|field| format!("spec.{field}")).collect()
        }
        ("v1", "ConfigMap") => Vec::new(),
        _ => vec![format!("{name:?} has no schema")],
    }
}

fn check(value: &Value, schema: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    walk(value, schema, "", &mut faults);
    faults
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn walk(value: &Value, schema: &Value, path: &str, faults: &mut Vec<String>) {
    if schema["x-kubernetes-int-or-string"] == true {
        if !value.is_i64() && !value.is_string() {
            faults.push(format!("{path}: {value} is neither a whole number nor a text"));
        } else if let (Some(pattern), Some(text)) = (schema["pattern"].as_str(), value.as_str()) {
            let quantity = text.parse::<ringpull_kube::quantity::Quantity>();
            if pattern.contains("KMGTPE") && quantity.is_err() {
                faults.push(format!("{path}: {text:?} is not a quantity"));
            }
        }
        return;
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        faults.push(format!("{path}: {value} is no {}", schema["type"]));
        return;
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        faults.push(format!("{path}: {value} is none of {}", schema["enum"]));
    }
    if schema["minimum"].as_f64().is_some_and(|least| value.as_f64().is_some_and(|number| number < least)) {
        faults.push(format!("{path}: {value} is below {}", schema["minimum"]));
    }
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(required).is_none() {
            faults.push(format!("{path}: {required} is missing"));
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let within = format!("{path}.{name}");
        if let Some(known) = schema["properties"].get(name) {
            walk(field, known, &within, faults);
        } else if schema["additionalProperties"].is_object() {
            walk(field, &schema["additionalProperties"], &within, faults);
        } else if schema["x-kubernetes-preserve-unknown-fields"] != true
            && !(path.ends_with("metadata") || name == "apiVersion" || name == "kind")
        {
            faults.push(format!("{within}: unknown field"));
        }
    }
    for (at, element) in value.as_array().into_iter().flatten().enumerate() {
        walk(element, &schema["items"], &format!("{path}[{at}]"), faults);
    }
}

#[test]
fn the_reading_of_schemas_is_strict() {
    let schema = serde_json::json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x"]}, "c": {"type": "array", "items": {"type": "string"}},
        "d": {"x-kubernetes-int-or-string": true}, "e": {"additionalProperties": {"type": "boolean"}, "type": "object"}}});
    let faults = |value: Value| check(&value, &schema);
    assert!(faults(serde_json::json!({"a": 1, "b": "x", "c": ["y"], "d": "50%", "e": {"f": true}})).is_empty());
    for wrong in [
        serde_json::json!({}),
        serde_json::json!({"a": -1}),
        serde_json::json!({"a": "1"}),
        serde_json::json!({"a": 1, "b": "y"}),
        serde_json::json!({"a": 1, "c": [1]}),
        serde_json::json!({"a": 1, "d": true}),
        serde_json::json!({"a": 1, "e": {"f": 1}}),
        serde_json::json!({"a": 1, "z": 1}),
    ] {
        assert_eq!(faults(wrong.clone()).len(), 1, "{wrong}");
    }
}
