//! Kubernetes manifests of our jobs, and a linter of other people's.
//!
//! - [`options`]: the description of a job, and which kinds of job use which option; `check`: checks that
//!   options fit together; [`specification`]: reads options from the dictionary that Kubeflow pipelines pass;
//!   [`quantity`]: amounts of processor and memory; `names`: the names that Kubernetes accepts; `command`:
//!   the meaning of a command's words; `suitability`: checks that a command suits its kind of job;
//! - `jobs`: the objects of each kind of job; `pod`: the jobs' pods; [`patch`]: merges users' changes into
//!   objects;
//! - [`schema`]: the fields that objects may have; [`security`]: the rules of Pod Security;
//! - [`lint`]: finds the faults of a job; [`convert`]: converts a job to another kind.
//!
//! All manifests expect the image of `mpijob/`, whose entrypoint waits for the hosts and passes the
//! environment on.

#![forbid(unsafe_code)]

mod check;
mod command;
pub mod convert;
mod jobs;
pub mod lint;
mod names;
pub mod options;
pub mod patch;
mod pod;
pub mod quantity;
pub mod schema;
pub mod security;
pub mod specification;
mod suitability;

use serde_json::Value;

use ringpull_base::{Error, Result};

use self::options::{Request, wrong};

/// Returns the objects of the job of `request`, in the order in which to apply them.
pub fn documents(request: &Request) -> Result<Vec<Value>> {
    request.check()?;
    let mut objects = jobs::objects(request);
    // A patch file or a resource's name may have brought in faults.
    for object in &objects {
        if let Some(fault) = schema::check(object).into_iter().next() {
            wrong(format!("{}: {}", fault.path, fault.what), fault.fix)?;
        }
    }
    for patch in request.patch.iter().flat_map(|file| &file.0) {
        patch::apply(&mut objects, patch)?;
    }
    Ok(objects)
}

/// The documents as YAML, divided by `---`.
pub fn to_yaml(documents: &[Value]) -> Result<String> {
    let texts = documents.iter().map(serde_saphyr::to_string).collect::<Result<Vec<String>, _>>();
    let texts = texts.map_err(|cause| Error::io("write", "a manifest", &std::io::Error::other(cause)))?;
    Ok(texts.join("---\n"))
}
