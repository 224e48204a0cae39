//! The `distribution_specification` dictionary of the train-model-job component of Kubeflow pipelines, read
//! strictly.
//!
//! `distribution_type` is `Job` (also if the dictionary is empty), `MPI`, `TF`, or our `PS`; the default of
//! `number_of_workers` is 2. The component multiplies strings and ignores unknown keys; here counts may be
//! numbers or digits, and an unknown key is an error.

use serde::Deserialize;
use serde_json::Value;

use ringpull_base::{Error, Result};

use super::quantity::Quantity;
use super::request::{JobKind, Request};

const KEYS: &str = "distribution_type, number_of_workers, number_of_servers, worker_cpus, worker_memory, launcher_cpus, launcher_memory";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Dictionary {
    distribution_type: Option<String>,
    number_of_workers: Option<Value>,
    number_of_servers: Option<Value>,
    worker_cpus: Option<Value>,
    worker_memory: Option<Value>,
    launcher_cpus: Option<Value>,
    launcher_memory: Option<Value>,
}

/// Sets in `request` what the dictionary, as JSON or YAML, says.
pub fn apply(text: &str, request: &mut Request) -> Result<()> {
    let bad = |cause: &dyn std::fmt::Display| {
        let cause = cause.to_string();
        Error::argument(
            format!("invalid distribution specification: {}", cause.lines().next().unwrap_or("")),
            format!("give one dictionary with some of the keys {KEYS}"),
        )
    };
    let value: Value =
        if text.trim().is_empty() { Value::Null } else { serde_saphyr::from_str(text).map_err(|cause| bad(&cause))? };
    let dictionary: Dictionary = match value {
        Value::Null => Dictionary::default(),
        value => serde_json::from_value(value).map_err(|cause| bad(&cause))?,
    };
    request.kind = match dictionary.distribution_type.as_deref() {
        None | Some("Job") => JobKind::Job,
        Some("MPI") => JobKind::Train,
        Some("TF") => JobKind::Tfjob,
        Some("PS") => JobKind::Ps,
        Some(other) => {
            return Err(Error::argument(
                format!("unknown distribution_type {other:?}"),
                "write Job, MPI, TF or PS, with these capital letters",
            ));
        }
    };
    refuse_unused_keys(&dictionary, request.kind)?;
    request.workers = count("number_of_workers", dictionary.number_of_workers.as_ref())?.unwrap_or(2);
    request.servers = count("number_of_servers", dictionary.number_of_servers.as_ref())?.unwrap_or(0);
    let cpus = amount("worker_cpus", dictionary.worker_cpus.as_ref(), Quantity::cpus)?;
    let memory = amount("worker_memory", dictionary.worker_memory.as_ref(), Quantity::memory)?;
    if cpus.is_some() || memory.is_some() {
        (request.cpus, request.memory) = (cpus, memory);
    }
    request.launcher_cpus = amount("launcher_cpus", dictionary.launcher_cpus.as_ref(), Quantity::cpus)?;
    request.launcher_memory = amount("launcher_memory", dictionary.launcher_memory.as_ref(), Quantity::memory)?;
    Ok(())
}

/// An error if the dictionary has a key that this kind of job does not use.
fn refuse_unused_keys(dictionary: &Dictionary, kind: JobKind) -> Result<()> {
    let (is_job, has_launcher) = (kind == JobKind::Job, matches!(kind, JobKind::Train | JobKind::Ps));
    for (key, given, used) in [
        ("number_of_workers", dictionary.number_of_workers.is_some(), !is_job),
        ("number_of_servers", dictionary.number_of_servers.is_some(), kind == JobKind::Ps),
        ("worker_cpus", dictionary.worker_cpus.is_some(), !is_job),
        ("worker_memory", dictionary.worker_memory.is_some(), !is_job),
        ("launcher_cpus", dictionary.launcher_cpus.is_some(), has_launcher),
        ("launcher_memory", dictionary.launcher_memory.is_some(), has_launcher),
    ] {
        if given && !used {
            let remedy = if is_job {
                "leave it out (--cpus and --memory limit a Job), or add \"distribution_type\": \"MPI\""
            } else {
                "leave it out, or choose another distribution_type"
            };
            let name = dictionary.distribution_type.as_deref().unwrap_or("Job");
            return Err(Error::argument(format!("{key} has no effect in a distribution of type {name}"), remedy));
        }
    }
    Ok(())
}

fn count(key: &str, value: Option<&Value>) -> Result<Option<u32>> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    match number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0) {
        Some(number) => Ok(Some(number)),
        None => Err(Error::argument(
            format!("invalid {key}: {value}"),
            "write a whole number of at least 1, such as 4 or \"4\"",
        )),
    }
}

fn amount(key: &str, value: Option<&Value>, read: fn(&str) -> Result<Quantity>) -> Result<Option<Quantity>> {
    let text = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(other) => {
            return Err(Error::argument(
                format!("invalid {key}: {other}"),
                "write a quantity, such as \"4\" or \"8Gi\"",
            ));
        }
    };
    match read(&text) {
        Ok(quantity) => Ok(Some(quantity)),
        Err(Error::InvalidArgument { what, remedy }) => Err(Error::argument(format!("{key}: {what}"), remedy)),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request> {
        let mut request = Request::new(JobKind::Job);
        apply(text, &mut request).map(|()| request)
    }

    #[test]
    fn an_empty_dictionary_is_a_job_and_two_workers_are_the_default() {
        for text in ["", "null", "{}", "{\"distribution_type\": \"Job\"}"] {
            assert_eq!(read(text).unwrap().kind, JobKind::Job, "{text}");
        }
        let request = read("{\"distribution_type\": \"MPI\"}").unwrap();
        assert_eq!((request.kind, request.workers), (JobKind::Train, 2));
    }

    #[test]
    fn counts_may_be_digits_in_a_string() {
        let text = "{\"distribution_type\": \"PS\", \"number_of_workers\": \"8\", \"number_of_servers\": 2, \"worker_cpus\": 4, \"worker_memory\": \"8Gi\", \"launcher_memory\": \"512Mi\"}";
        let request = read(text).unwrap();
        assert_eq!((request.kind, request.workers, request.servers), (JobKind::Ps, 8, 2));
        assert_eq!(request.memory.unwrap().to_string(), "8Gi");
        assert_eq!(request.cpus.unwrap().to_string(), "4");
        assert_eq!(request.launcher_memory.unwrap().to_string(), "512Mi");
    }

    #[test]
    fn input_that_the_component_would_ignore_is_an_error_with_a_remedy() {
        for (text, expected) in [
            ("{\"distribution_type\": \"mpi\"}", "Job, MPI, TF or PS"),
            ("{\"distribution_type\": \"MPI\", \"workers\": 2}", "number_of_workers"),
            ("{\"distribution_type\": \"MPI\", \"number_of_workers\": \"many\"}", "whole number"),
            ("{\"distribution_type\": \"MPI\", \"number_of_workers\": 0}", "at least 1"),
            ("{\"distribution_type\": \"MPI\", \"number_of_workers\": 1.5}", "whole number"),
            ("{\"distribution_type\": \"MPI\", \"worker_memory\": \"8GB\"}", "write 8G"),
            ("{\"distribution_type\": \"MPI\", \"worker_memory\": [1]}", "quantity"),
            ("{\"number_of_workers\": 4}", "\"MPI\""),
            ("{\"distribution_type\": \"TF\", \"launcher_cpus\": \"1\"}", "no effect"),
            ("{\"distribution_type\": \"MPI\", \"number_of_servers\": 1}", "no effect"),
            ("[1]", "one dictionary"),
            ("{\"distribution_type\": ", "one dictionary"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("hint: "), "{text}: {error}");
        }
    }
}
