//! Kubernetes manifests of our jobs, written from flags or from the `distribution_specification` dictionary,
//! and a check of other people's MPIJobs.
//!
//! - [`quantity`]: amounts of processor and memory; [`request`]: what a job is to be, checked; `command`:
//!   what it runs;
//! - [`specification`]: the dictionary that Kubeflow pipelines pass;
//! - `pod`, `replicas`: the objects as typed structs; `shape`: pods from a request; `jobs`: the objects of
//!   each kind;
//! - [`lint`]: what will go wrong with an MPIJob.
//!
//! All manifests expect the image of `mpijob/`, whose entrypoint waits for the hosts and passes the
//! environment on.

mod command;
mod jobs;
pub mod lint;
mod pod;
pub mod quantity;
mod replicas;
pub mod request;
mod shape;
pub mod specification;

use serde::Serialize;
use serde_json::Value;

use ringpull_base::{Error, Result};

use self::request::{Kind, Request};

/// The objects that run what `request` asks for, in the order to apply them in.
pub fn documents(request: &Request) -> Result<Vec<Value>> {
    request.check()?;
    let mut documents = Vec::new();
    if let (Some(claim), Some(size)) = (&request.claim, &request.claim_size) {
        documents.push(jobs::claim(request, claim, size)?);
    }
    match request.kind {
        Kind::Train | Kind::Compare | Kind::Ps => documents.push(jobs::mpijob(request)?),
        Kind::Job => documents.push(jobs::job(request)?),
        Kind::Trainjob => documents.extend([jobs::runtime(request)?, jobs::trainjob(request)?]),
        Kind::Mxjob => documents.push(jobs::mxjob(request)?),
        Kind::Tfjob => documents.push(jobs::tfjob(request)?),
    }
    Ok(documents)
}

/// The documents as YAML, divided by `---`.
pub fn to_yaml(documents: &[Value]) -> Result<String> {
    let texts: Result<Vec<String>> = documents
        .iter()
        .map(|document| {
            serde_saphyr::to_string(document)
                .map_err(|cause| Error::io("write", "a manifest", &std::io::Error::other(cause)))
        })
        .collect();
    Ok(texts?.join("---\n"))
}

/// An object as it is written: what is not set is left out.
fn document<T: Serialize>(object: &T) -> Result<Value> {
    let mut value = serde_json::to_value(object)
        .map_err(|cause| Error::io("write", "a manifest", &std::io::Error::other(cause)))?;
    prune(&mut value);
    Ok(value)
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, field| !field.is_null() && field.as_array().is_none_or(|list| !list.is_empty()));
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}
