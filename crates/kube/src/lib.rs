//! Kubernetes manifests of our jobs, and a linter of other people's MPIJobs.
//!
//! - [`request`]: the description of a job, checked; [`specification`]: the same from the dictionary that
//!   Kubeflow pipelines pass; [`quantity`]: amounts of processor and memory; `command`: what the job's
//!   command says;
//! - `jobs`: the objects of each kind of job; `pod`: their pods;
//! - [`lint`]: what will go wrong with an MPIJob.
//!
//! All manifests expect the image of `mpijob/`, whose entrypoint waits for the hosts and passes the
//! environment on.

mod command;
mod jobs;
pub mod lint;
mod pod;
pub mod quantity;
pub mod request;
pub mod specification;

use serde_json::Value;

use ringpull_base::{Error, Result};

use self::request::{JobKind, Request};

/// The objects that run what `request` asks for, in the order to apply them in.
pub fn documents(request: &Request) -> Result<Vec<Value>> {
    request.check()?;
    let claim = request.claim.as_ref().zip(request.claim_size.as_ref());
    let claim = claim.map(|(name, size)| jobs::claim(request, name, size));
    let job = match request.kind {
        JobKind::Train | JobKind::Compare | JobKind::Ps => vec![jobs::mpijob(request)],
        JobKind::Job => vec![jobs::job(request)],
        JobKind::Trainjob => vec![jobs::runtime(request), jobs::trainjob(request)],
        JobKind::Mxjob => vec![jobs::mxjob(request)],
        JobKind::Tfjob => vec![jobs::tfjob(request)],
    };
    Ok(claim.into_iter().chain(job).collect())
}

/// The documents as YAML, divided by `---`.
pub fn to_yaml(documents: &[Value]) -> Result<String> {
    let texts = documents.iter().map(serde_saphyr::to_string).collect::<Result<Vec<String>, _>>();
    let texts = texts.map_err(|cause| Error::io("write", "a manifest", &std::io::Error::other(cause)))?;
    Ok(texts.join("---\n"))
}
