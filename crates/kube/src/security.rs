//! The rules of Kubernetes' Pod Security Standards, `baseline` and `restricted`, as a table.

use serde_json::Value;

use crate::options::PodSecurity;

/// A requirement for a value.
enum Requirement {
    /// Absent, or one of these.
    BeAbsentOr(&'static [&'static str]),
    /// Anything but this.
    BeOtherThan(&'static str),
    /// One of these.
    Be(&'static [&'static str]),
    /// A list of these words only.
    HaveOnly(&'static str),
    /// A list that has this.
    Have(&'static str),
}

use PodSecurity::{Baseline, Restricted};
use Requirement::{Be, BeAbsentOr, BeOtherThan, Have, HaveOnly};

/// Rules of a pod's specification.
const POD: [(PodSecurity, &str, Requirement); 3] = [
    (Baseline, "hostNetwork", BeAbsentOr(&["false"])),
    (Baseline, "hostPID", BeAbsentOr(&["false"])),
    (Baseline, "hostIPC", BeAbsentOr(&["false"])),
];

/// Rules that must hold both for a pod's specification and for each container.
const BOTH: [(PodSecurity, &str, Requirement); 7] = [
    (Baseline, "securityContext.seccompProfile.type", BeAbsentOr(&["RuntimeDefault", "Localhost"])),
    (Baseline, "securityContext.appArmorProfile.type", BeAbsentOr(&["RuntimeDefault", "Localhost"])),
    (
        Baseline,
        "securityContext.seLinuxOptions.type",
        BeAbsentOr(&["container_t", "container_init_t", "container_kvm_t", "container_engine_t", ""]),
    ),
    (Baseline, "securityContext.seLinuxOptions.user", BeAbsentOr(&[""])),
    (Baseline, "securityContext.seLinuxOptions.role", BeAbsentOr(&[""])),
    (Baseline, "securityContext.windowsOptions.hostProcess", BeAbsentOr(&["false"])),
    (Restricted, "securityContext.runAsUser", BeOtherThan("0")),
];

/// Rules for each container. If the container has no value, the pod's value counts.
const CONTAINER: [(PodSecurity, &str, Requirement); 8] = [
    (Baseline, "securityContext.privileged", BeAbsentOr(&["false"])),
    (Baseline, "securityContext.procMount", BeAbsentOr(&["Default"])),
    (
        Baseline,
        "securityContext.capabilities.add",
        HaveOnly(
            "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL \
             MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT",
        ),
    ),
    (Restricted, "securityContext.allowPrivilegeEscalation", Be(&["false"])),
    (Restricted, "securityContext.runAsNonRoot", Be(&["true"])),
    (Restricted, "securityContext.seccompProfile.type", Be(&["RuntimeDefault", "Localhost"])),
    (Restricted, "securityContext.capabilities.drop", Have("ALL")),
    (Restricted, "securityContext.capabilities.add", HaveOnly("NET_BIND_SERVICE")),
];

/// The kinds of volume that `restricted` allows.
const VOLUMES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

/// Requests of the kubelet, which may not name another host.
const HOOKS: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop"];

/// The kernel's settings (sysctls) that belong to one pod alone, and that `baseline` allows.
const SYSCTLS: &str = "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports \
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout \
    net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time \
    net.ipv4.tcp_rmem net.ipv4.tcp_syncookies net.ipv4.tcp_wmem";

/// A rule that a pod breaks: its level, the path in the pod's specification, and the demand.
pub type Breach = (PodSecurity, String, String);

/// The rules of `level` and below that a pod's specification breaks.
pub fn breaches(pod: &Value, level: PodSecurity) -> Vec<Breach> {
    let mut found = judge(&POD, "", pod, &Value::Null);
    found.extend(judge(&BOTH, "", pod, &Value::Null));
    for (at, sysctl) in pod["securityContext"]["sysctls"].as_array().into_iter().flatten().enumerate() {
        if !sysctl["name"].as_str().is_some_and(|name| SYSCTLS.split(' ').any(|allowed| allowed == name)) {
            let what = "is a sysctl that is not allowed".to_owned();
            found.push((Baseline, format!("securityContext.sysctls[{at}]"), what));
        }
    }
    for list in ["initContainers", "containers"] {
        for (at, container) in pod[list].as_array().into_iter().flatten().enumerate() {
            found.extend(judge(&CONTAINER, &format!("{list}[{at}]."), container, pod));
            found.extend(judge(&BOTH, &format!("{list}[{at}]."), container, &Value::Null));
            for hook in HOOKS.iter().flat_map(|hook| ["httpGet", "tcpSocket"].map(|call| format!("{hook}.{call}.host")))
            {
                let host = container.pointer(&format!("/{}", hook.replace('.', "/"))).and_then(Value::as_str);
                if host.is_some_and(|host| !host.is_empty()) {
                    found.push((Baseline, format!("{list}[{at}].{hook}"), "must not name another host".to_owned()));
                }
            }
            let mut ports = container["ports"].as_array().into_iter().flatten();
            if ports.any(|port| port["hostPort"].as_i64().unwrap_or(0) != 0) {
                found.push((Baseline, format!("{list}[{at}].ports"), "must have no hostPort".to_owned()));
            }
        }
    }
    for (at, volume) in pod["volumes"].as_array().into_iter().flatten().enumerate() {
        for kind in volume.as_object().into_iter().flat_map(serde_json::Map::keys).filter(|kind| *kind != "name") {
            if !VOLUMES.contains(&kind.as_str()) {
                let of = if kind == "hostPath" { Baseline } else { Restricted };
                found.push((of, format!("volumes[{at}].{kind}"), "is a kind of volume that is not allowed".to_owned()));
            }
        }
    }
    found.retain(|(of, ..)| *of <= level);
    found
}

fn judge(rules: &[(PodSecurity, &str, Requirement)], prefix: &str, own: &Value, fallback: &Value) -> Vec<Breach> {
    let breach = |(of, path, must): &(PodSecurity, &str, Requirement)| {
        let at = |value: &Value| value.pointer(&format!("/{}", path.replace('.', "/"))).cloned();
        let value = at(own).or_else(|| at(fallback)).unwrap_or_default();
        must.unmet(&value).map(|demand| (*of, format!("{prefix}{path}"), demand))
    };
    rules.iter().filter_map(breach).collect()
}

impl Requirement {
    /// Returns the requirement that the value does not meet.
    fn unmet(&self, value: &Value) -> Option<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_one = |words: &[&str]| words.contains(&text(value).as_str());
        let mut list = value.as_array().into_iter().flatten().map(text);
        match self {
            BeAbsentOr(words) if !value.is_null() && !is_one(words) => Some(format!("must be {}", words.join(" or "))),
            BeOtherThan(word) if is_one(&[word]) => Some(format!("must not be {word}")),
            Be(words) if !is_one(words) => Some(format!("must be {}", words.join(" or "))),
            HaveOnly(words) => list
                .find(|word| words.split(' ').all(|other| other != word))
                .map(|word| format!("must not have {word}")),
            Have(word) if !list.any(|own| own == *word) => Some(format!("must have {word}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod that passes `restricted`, and the rules that each change of the pod breaks.
    #[test]
    fn each_rule_is_broken_by_a_pod_or_by_one_of_its_containers() {
        let own = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let pod = json!({
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": own}],
        });
        assert_eq!(breaches(&pod, Restricted), []);
        let (own, of_pod) = ("/containers/0/securityContext", "/securityContext");
        for (level, place, name, value) in [
            (Baseline, "", "hostPID", json!(true)),
            (Baseline, own, "privileged", json!(true)),
            (Baseline, own, "seccompProfile", json!({"type": "Unconfined"})),
            (Baseline, of_pod, "appArmorProfile", json!({"type": "Unconfined"})),
            (Baseline, own, "appArmorProfile", json!({"type": "Unconfined"})),
            (Baseline, own, "seLinuxOptions", json!({"type": "spc_t"})),
            (Baseline, of_pod, "seLinuxOptions", json!({"user": "system_u"})),
            (Baseline, of_pod, "sysctls", json!([{"name": "net.core.somaxconn", "value": "1"}])),
            (Baseline, "/containers/0", "readinessProbe", json!({"tcpSocket": {"port": 22, "host": "10.0.0.1"}})),
            (Baseline, "/containers/0", "lifecycle", json!({"preStop": {"httpGet": {"port": 1, "host": "a"}}})),
            (Baseline, "/containers/0", "ports", json!([{"containerPort": 1, "hostPort": 1}])),
            (Restricted, own, "runAsUser", json!(0)),
            (Restricted, of_pod, "runAsUser", json!(0)),
            (Restricted, own, "runAsNonRoot", json!(false)),
            (Restricted, own, "allowPrivilegeEscalation", json!(true)),
        ] {
            let mut changed = pod.clone();
            changed.pointer_mut(place).unwrap()[name] = value;
            let found = breaches(&changed, Restricted);
            assert!(!found.is_empty() && found.iter().all(|breach| breach.0 >= level), "{place} {name}: {found:?}");
            assert_eq!(breaches(&changed, Baseline).is_empty(), level == Restricted, "{place} {name}: {found:?}");
        }
    }
}
