//! What Kubernetes' Pod Security Standards allow: the rules of `baseline` and `restricted`, as a table.

use serde_json::Value;

use crate::options::PodSecurity;

/// What a value has to be.
enum Must {
    /// Absent, or one of these.
    BeAbsentOr(&'static [&'static str]),
    /// One of these.
    Be(&'static [&'static str]),
    /// A list of these only.
    HaveOnly(&'static [&'static str]),
    /// A list that has this.
    Have(&'static str),
}

use Must::{Be, BeAbsentOr, Have, HaveOnly};
use PodSecurity::{Baseline, Restricted};

/// Rules of a pod's specification.
const POD: [(PodSecurity, &str, Must); 5] = [
    (Baseline, "hostNetwork", BeAbsentOr(&["false"])),
    (Baseline, "hostPID", BeAbsentOr(&["false"])),
    (Baseline, "hostIPC", BeAbsentOr(&["false"])),
    (Baseline, "securityContext.seccompProfile.type", BeAbsentOr(&["RuntimeDefault", "Localhost"])),
    (Baseline, "securityContext.windowsOptions.hostProcess", BeAbsentOr(&["false"])),
];

/// Rules of each container. A value that the container does not have is the pod's.
const CONTAINER: [(PodSecurity, &str, Must); 8] = [
    (Baseline, "securityContext.privileged", BeAbsentOr(&["false"])),
    (Baseline, "securityContext.procMount", BeAbsentOr(&["Default"])),
    (
        Baseline,
        "securityContext.capabilities.add",
        HaveOnly(&[
            "AUDIT_WRITE",
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "FSETID",
            "KILL",
            "MKNOD",
            "NET_BIND_SERVICE",
            "SETFCAP",
            "SETGID",
            "SETPCAP",
            "SETUID",
            "SYS_CHROOT",
        ]),
    ),
    (Restricted, "securityContext.allowPrivilegeEscalation", Be(&["false"])),
    (Restricted, "securityContext.runAsNonRoot", Be(&["true"])),
    (Restricted, "securityContext.seccompProfile.type", Be(&["RuntimeDefault", "Localhost"])),
    (Restricted, "securityContext.capabilities.drop", Have("ALL")),
    (Restricted, "securityContext.capabilities.add", HaveOnly(&["NET_BIND_SERVICE"])),
];

/// The kinds of volume that `restricted` allows.
const VOLUMES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

/// A rule that a pod breaks: its level, the path in the pod's specification, and what it demands.
pub type Breach = (PodSecurity, String, String);

/// The rules of `level` and below that a pod's specification breaks.
pub fn breaches(pod: &Value, level: PodSecurity) -> Vec<Breach> {
    let mut found = judge(&POD, "", pod, &Value::Null);
    for list in ["initContainers", "containers"] {
        for (at, container) in pod[list].as_array().into_iter().flatten().enumerate() {
            found.extend(judge(&CONTAINER, &format!("{list}[{at}]."), container, pod));
            if container["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|port| port["hostPort"].as_i64().unwrap_or(0) != 0)
            {
                found.push((Baseline, format!("{list}[{at}].ports"), "must have no hostPort".to_owned()));
            }
        }
    }
    for (at, volume) in pod["volumes"].as_array().into_iter().flatten().enumerate() {
        for kind in volume.as_object().into_iter().flat_map(serde_json::Map::keys).filter(|kind| *kind != "name") {
            if !VOLUMES.contains(&kind.as_str()) {
                let of = if kind == "hostPath" { Baseline } else { Restricted };
                found.push((of, format!("volumes[{at}].{kind}"), "is no volume that is allowed".to_owned()));
            }
        }
    }
    let user = pod["securityContext"]["runAsUser"].as_i64();
    if user == Some(0) {
        found.push((Restricted, "securityContext.runAsUser".to_owned(), "must not be 0".to_owned()));
    }
    found.retain(|(of, ..)| *of <= level);
    found
}

fn judge(rules: &[(PodSecurity, &str, Must)], prefix: &str, own: &Value, fallback: &Value) -> Vec<Breach> {
    let breach = |(of, path, must): &(PodSecurity, &str, Must)| {
        let at = |value: &Value| value.pointer(&format!("/{}", path.replace('.', "/"))).cloned();
        let value = at(own).or_else(|| at(fallback)).unwrap_or_default();
        must.unmet(&value).map(|demand| (*of, format!("{prefix}{path}"), demand))
    };
    rules.iter().filter_map(breach).collect()
}

impl Must {
    /// What the value does not meet.
    fn unmet(&self, value: &Value) -> Option<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_one = |words: &[&str]| words.contains(&text(value).as_str());
        let mut list = value.as_array().into_iter().flatten().map(text);
        match self {
            BeAbsentOr(words) if !value.is_null() && !is_one(words) => Some(format!("must be {}", words.join(" or "))),
            Be(words) if !is_one(words) => Some(format!("must be {}", words.join(" or "))),
            HaveOnly(words) => {
                list.find(|word| !words.contains(&word.as_str())).map(|word| format!("must not have {word}"))
            }
            Have(word) if !list.any(|own| own == *word) => Some(format!("must have {word}")),
            _ => None,
        }
    }
}
