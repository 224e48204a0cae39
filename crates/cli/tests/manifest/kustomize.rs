//! The part of kustomize that `mpijob/` uses: resources and JSON patches. If kustomize itself is installed,
//! its output is compared with this.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{parse, read};

/// The objects that `kustomize build` makes from a folder.
pub(crate) fn render(folder: &Path) -> Vec<Value> {
    let mut objects = Vec::new();
    build(folder, &mut objects);
    objects
}

fn build(folder: &Path, objects: &mut Vec<Value>) {
    let settings = parse(&read(&folder.join("kustomization.yaml"))).remove(0);
    for (field, _) in settings.as_object().unwrap() {
        let known = ["apiVersion", "kind", "resources", "patches", "configurations"];
        assert!(known.contains(&field.as_str()), "{}: {field} is not rendered here", folder.display());
    }
    for resource in list(&settings["resources"]) {
        let path = folder.join(resource.as_str().unwrap());
        if path.is_dir() { build(&path, objects) } else { objects.extend(parse(&read(&path))) }
    }
    for patch in list(&settings["patches"]) {
        let kind = &patch["target"]["kind"];
        let mut hit = false;
        for object in objects.iter_mut().filter(|object| object["kind"] == *kind) {
            hit = true;
            for step in parse(patch["patch"].as_str().unwrap()).remove(0).as_array().unwrap() {
                apply(object, step);
            }
        }
        assert!(hit, "{}: no {kind} to patch", folder.display());
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// One step of RFC 6902: `add` and `replace`.
fn apply(object: &mut Value, step: &Value) {
    let path = step["path"].as_str().unwrap();
    let value = step["value"].clone();
    let (parent, last) = path.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{path} leads nowhere"));
    match (step["op"].as_str(), parent) {
        (Some("add"), Value::Array(elements)) if last == "-" => elements.push(value),
        (Some("add"), Value::Array(elements)) => elements.insert(last.parse().unwrap(), value),
        (Some("replace"), Value::Array(elements)) => elements[last.parse::<usize>().unwrap()] = value,
        (Some("add"), Value::Object(fields)) => drop(fields.insert(last, value)),
        (Some("replace"), Value::Object(fields)) => {
            assert!(fields.insert(last, value).is_some(), "{path}: there is nothing to replace");
        }
        (other, _) => panic!("{path}: {other:?} is not rendered here"),
    }
}

/// The objects that an installed kustomize makes from the folder.
pub(crate) fn installed(folder: &Path) -> Option<Vec<Value>> {
    let commands: [&[&str]; 2] = [&["kustomize", "build"], &["kubectl", "kustomize"]];
    let output = commands.iter().find_map(|words| {
        let output = Command::new(words[0]).arg(words[1]).arg(folder).output().ok()?;
        // An old kubectl does not know every field.
        (output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("unknown")).then_some(output)
    })?;
    assert!(output.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
    Some(parse(&String::from_utf8(output.stdout).unwrap()))
}
