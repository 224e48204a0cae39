//! The part of Kubeflow's job objects that our manifests write: replicas and what becomes of them.

use serde::{Deserialize, Serialize};

use super::pod::{Metadata, PodTemplate};

/// One role of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Replica {
    pub(crate) replicas: Option<u32>,
    pub(crate) restart_policy: Option<String>,
    pub(crate) template: PodTemplate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RunPolicy {
    pub(crate) clean_pod_policy: Option<String>,
    pub(crate) backoff_limit: Option<u32>,
    pub(crate) active_deadline_seconds: Option<u32>,
    pub(crate) ttl_seconds_after_finished: Option<u32>,
    pub(crate) scheduling_policy: Option<SchedulingPolicy>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SchedulingPolicy {
    pub(crate) min_available: Option<u32>,
    pub(crate) queue: Option<String>,
    pub(crate) schedule_timeout_seconds: Option<u32>,
}

/// `kubeflow.org/v2beta1` MPIJob.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MpiSpec {
    pub(crate) slots_per_worker: Option<u32>,
    pub(crate) run_launcher_as_worker: Option<bool>,
    pub(crate) ssh_auth_mount_path: Option<String>,
    pub(crate) launcher_creation_policy: Option<String>,
    pub(crate) mpi_implementation: Option<String>,
    pub(crate) run_policy: RunPolicy,
    pub(crate) mpi_replica_specs: MpiReplicas,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub(crate) struct MpiReplicas {
    pub(crate) launcher: Replica,
    pub worker: Option<Replica>,
}

/// `kubeflow.org/v1` MXJob, which training-operator ran up to 1.8.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MxSpec {
    pub(crate) job_mode: String,
    pub(crate) run_policy: RunPolicy,
    pub(crate) mx_replica_specs: MxReplicas,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub(crate) struct MxReplicas {
    pub(crate) scheduler: Replica,
    pub(crate) server: Replica,
    pub worker: Replica,
}

/// `kubeflow.org/v1` TFJob.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TfSpec {
    pub(crate) run_policy: RunPolicy,
    pub(crate) tf_replica_specs: TfReplicas,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub(crate) struct TfReplicas {
    #[serde(rename = "PS")]
    pub(crate) ps: Option<Replica>,
    pub worker: Replica,
}

/// `trainer.kubeflow.org/v1alpha1` ClusterTrainingRuntime.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RuntimeSpec {
    pub(crate) ml_policy: MlPolicy,
    pub(crate) template: JobSet,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MlPolicy {
    pub(crate) num_nodes: Option<u32>,
    pub(crate) mpi: MpiPolicy,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct MpiPolicy {
    pub(crate) num_proc_per_node: Option<u32>,
    pub(crate) mpi_implementation: Option<String>,
    pub(crate) ssh_auth_mount_path: Option<String>,
    pub(crate) run_launcher_as_node: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct JobSet {
    pub(crate) spec: JobSetSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct JobSetSpec {
    pub(crate) network: Option<Network>,
    pub(crate) success_policy: Option<SuccessPolicy>,
    pub(crate) replicated_jobs: Vec<ReplicatedJob>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Network {
    pub(crate) publish_not_ready_addresses: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SuccessPolicy {
    pub(crate) operator: String,
    pub(crate) target_replicated_jobs: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ReplicatedJob {
    pub(crate) name: String,
    pub(crate) depends_on: Vec<DependsOn>,
    pub(crate) template: JobTemplate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DependsOn {
    pub(crate) name: String,
    pub(crate) status: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct JobTemplate {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: super::pod::JobSpec,
}

/// `trainer.kubeflow.org/v1alpha1` TrainJob.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TrainJobSpec {
    pub(crate) runtime_ref: RuntimeRef,
    pub(crate) trainer: Trainer,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RuntimeRef {
    pub(crate) api_group: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Trainer {
    pub(crate) image: String,
    pub(crate) args: Vec<String>,
    pub(crate) num_nodes: Option<u32>,
    pub(crate) num_proc_per_node: Option<u32>,
}
