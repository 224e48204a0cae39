//! The part of Kubernetes' core objects that our manifests write. Unknown fields are errors.
//!
//! A field that is `None` or an empty list is left out of the YAML; see `document` in the folder's root.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::quantity::Quantity;

pub(crate) type Words = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: Words,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: Words,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PodTemplate {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: PodSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PodSpec {
    pub(crate) restart_policy: Option<String>,
    pub(crate) enable_service_links: Option<bool>,
    pub(crate) automount_service_account_token: Option<bool>,
    pub(crate) host_network: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) node_selector: Words,
    pub(crate) affinity: Option<Affinity>,
    pub(crate) security_context: Option<PodSecurity>,
    pub(crate) containers: Vec<Container>,
    pub(crate) volumes: Vec<Volume>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PodSecurity {
    pub(crate) run_as_non_root: Option<bool>,
    pub(crate) run_as_user: Option<u32>,
    pub(crate) run_as_group: Option<u32>,
    pub(crate) fs_group: Option<u32>,
    pub(crate) fs_group_change_policy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) image: Option<String>,
    pub(crate) image_pull_policy: Option<String>,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) ports: Vec<Port>,
    pub(crate) readiness_probe: Option<Probe>,
    pub(crate) resources: Option<Resources>,
    pub(crate) security_context: Option<Security>,
    pub(crate) volume_mounts: Vec<Mount>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct EnvVar {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Port {
    pub(crate) name: Option<String>,
    pub(crate) container_port: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Probe {
    pub(crate) tcp_socket: TcpSocket,
    pub(crate) initial_delay_seconds: Option<u32>,
    pub(crate) period_seconds: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TcpSocket {
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) limits: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) requests: BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Security {
    pub(crate) allow_privilege_escalation: Option<bool>,
    pub(crate) capabilities: Option<Capabilities>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Capabilities {
    pub(crate) add: Vec<String>,
    pub(crate) drop: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Mount {
    pub(crate) name: String,
    #[serde(rename = "mountPath")]
    pub(crate) path: String,
    pub(crate) read_only: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
    pub(crate) empty_dir: Option<EmptyDir>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct EmptyDir {
    pub(crate) medium: Option<String>,
    pub(crate) size_limit: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Affinity {
    pub(crate) pod_anti_affinity: Option<PodAntiAffinity>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PodAntiAffinity {
    pub(crate) required_during_scheduling_ignored_during_execution: Vec<AffinityTerm>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AffinityTerm {
    pub(crate) label_selector: LabelSelector,
    pub(crate) topology_key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LabelSelector {
    pub(crate) match_labels: Words,
}

/// An object of any kind: what stands around its `spec`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Object<S> {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: S,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct JobSpec {
    pub(crate) backoff_limit: Option<u32>,
    pub(crate) active_deadline_seconds: Option<u32>,
    pub(crate) ttl_seconds_after_finished: Option<u32>,
    pub(crate) template: PodTemplate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ClaimSpec {
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) resources: Resources,
}
