//! Strategic merge: changes an object by a patch, which has only the fields to change.
//!
//! Objects are merged field by field, and null removes a field. A list is merged element by element if its
//! elements have a key (the name of a container, the path of a mount), else it is replaced. `$patch: delete`
//! removes an element or an object, and `$patch: replace` replaces the whole element or object.

use serde_json::Value;

use ringpull_base::Result;

use crate::options::wrong;
use crate::schema::{self, Shape};

/// Merges `patch` into the objects that have its kind, and its name if it has a name.
pub fn apply(objects: &mut [Value], patch: &Value) -> Result<()> {
    let (kind, name) = (patch["kind"].as_str(), patch["metadata"]["name"].as_str());
    let Some(kind) = kind else {
        return wrong("a patch has no kind", "begin it with kind: and that of the object to change");
    };
    let kinds: Vec<String> = objects.iter().filter_map(|object| object["kind"].as_str().map(str::to_owned)).collect();
    let is_meant =
        |object: &Value| object["kind"] == kind && name.is_none_or(|name| object["metadata"]["name"] == name);
    let mut hit = false;
    for object in objects.iter_mut().filter(|object| is_meant(object)) {
        hit = true;
        if patch.get("apiVersion").is_some_and(|version| *version != object["apiVersion"]) {
            return wrong(
                format!(
                    "a patch of {kind} has apiVersion {}, and the object {}",
                    patch["apiVersion"], object["apiVersion"]
                ),
                "leave apiVersion out, or write the object's",
            );
        }
        let shape = schema::shape_of(object);
        merge(object, patch, shape);
        if let Some(fault) = schema::check(object).into_iter().next() {
            return wrong(format!("after the patch of {kind}, {}: {}", fault.path, fault.what), fault.fix);
        }
    }
    if hit {
        return Ok(());
    }
    let named = name.map_or(String::new(), |name| format!(" named {name}"));
    wrong(format!("a patch is for a {kind}{named}, which is not written"), format!("write one of {}", kinds.join(", ")))
}

fn merge(to: &mut Value, patch: &Value, shape: Option<&Shape>) {
    let (Some(own), Some(fields)) = (to.as_object_mut(), patch.as_object()) else {
        *to = patch.clone();
        return;
    };
    if patch["$patch"] == "replace" {
        own.clear();
    }
    for (name, field) in fields.iter().filter(|(name, _)| *name != "$patch") {
        if field.is_null() || field["$patch"] == "delete" {
            own.remove(name);
            continue;
        }
        let shape = shape.and_then(|shape| shape.field(name));
        let target = own
            .entry(name.clone())
            .or_insert_with(|| if field.is_object() { Value::Object(serde_json::Map::new()) } else { Value::Null });
        match (target.as_array_mut(), field.as_array(), shape.and_then(Shape::elements)) {
            (Some(list), Some(changes), Some((of, [key, ..]))) => merge_list(list, changes, key, of),
            _ => merge(target, field, shape),
        }
    }
}

fn merge_list(list: &mut Vec<Value>, changes: &[Value], key: &str, of: &Shape) {
    for change in changes {
        let at = list.iter().position(|own| !own[key].is_null() && own[key] == change[key]);
        match (at, change["$patch"] == "delete") {
            (Some(at), true) => drop(list.remove(at)),
            (Some(at), false) => merge(&mut list[at], change, Some(of)),
            (None, true) => {}
            (None, false) => list.push(change.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(patch: &Value) -> Result<Value> {
        let job: Value = serde_saphyr::from_str(include_str!("../tests/clean.yaml")).unwrap();
        let mut objects = [job];
        apply(&mut objects, patch).map(|()| objects.into_iter().next().unwrap())
    }

    fn worker(patch: &Value) -> Value {
        json!({ "kind": "MPIJob", "spec": { "mpiReplicaSpecs": { "Worker": { "template": { "spec": patch } } } } })
    }

    #[test]
    fn lists_are_merged_by_their_key_and_other_fields_stay() {
        let job = patched(&worker(&json!({
            "terminationGracePeriodSeconds": 90,
            "containers": [{
                "name": "worker",
                "tty": true,
                "volumeMounts": [{ "mountPath": "/scratch", "name": "scratch" }, { "mountPath": "/train", "$patch": "delete" }],
            }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
        })))
        .unwrap();
        let pod = &job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"];
        assert_eq!(pod["terminationGracePeriodSeconds"], 90);
        assert_eq!(pod["volumes"].as_array().unwrap().len(), 3);
        let container = &pod["containers"][0];
        assert_eq!((&container["tty"], &container["image"]), (&json!(true), &json!("registry.example/resnet:3")));
        let mounts: Vec<_> = container["volumeMounts"].as_array().unwrap().iter().map(|it| &it["mountPath"]).collect();
        assert_eq!(mounts, ["/dev/shm", "/scratch"]);
        let job = patched(&json!({ "kind": "MPIJob", "spec": { "runPolicy": { "backoffLimit": null } } })).unwrap();
        assert_eq!(job["spec"]["runPolicy"], json!({ "cleanPodPolicy": "Running" }));
    }

    #[test]
    fn a_patch_that_changes_nothing_known_is_an_error_with_a_remedy() {
        for (patch, expected) in [
            (json!({ "spec": {} }), "begin it with kind"),
            (json!({ "kind": "Job" }), "write one of MPIJob"),
            (json!({ "kind": "MPIJob", "metadata": { "name": "other" } }), "named other"),
            (json!({ "kind": "MPIJob", "apiVersion": "kubeflow.org/v1" }), "leave apiVersion out"),
            (worker(&json!({ "nodeselector": { "a": "b" } })), "write nodeSelector"),
            (worker(&json!({ "terminationGracePeriodSeconds": "90" })), "a whole number"),
        ] {
            let error = patched(&patch).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("hint: "), "{error}");
        }
    }
}
