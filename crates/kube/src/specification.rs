//! The `distribution_specification` dictionary of the train-model-job component of Kubeflow pipelines, read
//! strictly.
//!
//! `distribution_type` is `Job` (also if the dictionary is empty), `MPI`, `TF`, or our `PS`. The component
//! multiplies strings and ignores unknown keys. Here a count may be a number or a string of digits. An
//! unknown key is an error, and so is a key that the distribution does not use. There is one exception:
//! `number_of_workers` of at most 1 is accepted and ignored in a `Job`, because pipelines write it. Options
//! of the command line are for settings that the dictionary lacks.

use serde_json::{Map, Value};

use ringpull_base::{Error, Result};

use crate::options::{JobKind, Request};
use crate::quantity::Quantity;

/// Sets an option from the value of a key.
type Set = fn(&mut Request, &str, &Value) -> Result<()>;

/// The keys beside `distribution_type`, and the options that they set.
const KEYS: [(&str, &str, Set); 6] = [
    ("number_of_workers", "workers", |request, key, value| count(key, value).map(|count| request.workers = count)),
    ("number_of_servers", "servers", |request, key, value| count(key, value).map(|count| request.servers = count)),
    ("worker_cpus", "cpus", |request, key, value| {
        amount(key, value, Quantity::cpus).map(|amount| request.cpus = Some(amount))
    }),
    ("worker_memory", "memory", |request, key, value| {
        amount(key, value, Quantity::memory).map(|amount| request.memory = Some(amount))
    }),
    ("launcher_cpus", "launcher-cpus", |request, key, value| {
        amount(key, value, Quantity::cpus).map(|amount| request.launcher_cpus = Some(amount))
    }),
    ("launcher_memory", "launcher-memory", |request, key, value| {
        amount(key, value, Quantity::memory).map(|amount| request.launcher_memory = Some(amount))
    }),
];

/// Sets `request` by the dictionary, which is JSON or YAML.
pub fn apply(text: &str, request: &mut Request) -> Result<()> {
    let bad = |cause: &str| {
        let keys = KEYS.map(|(key, ..)| key).join(", ");
        Error::argument(
            format!("invalid distribution specification: {cause}"),
            format!("give one dictionary with some of the keys distribution_type, {keys}"),
        )
    };
    let value: Value = if text.trim().is_empty() {
        Value::Null
    } else {
        serde_saphyr::from_str(text).map_err(|cause| bad(cause.to_string().lines().next().unwrap_or("")))?
    };
    let dictionary = match value {
        Value::Null => Map::new(),
        Value::Object(dictionary) => dictionary,
        other => return Err(bad(&format!("{other} is no dictionary"))),
    };
    let known = |key: &str| key == "distribution_type" || KEYS.iter().any(|(other, ..)| *other == key);
    if let Some(key) = dictionary.keys().find(|key| !known(key)) {
        return Err(bad(&format!("unknown key {key}")));
    }
    let kind = &dictionary.get("distribution_type").cloned().unwrap_or_default();
    request.kind = match kind.as_str() {
        None if kind.is_null() => JobKind::Job,
        Some("Job") => JobKind::Job,
        Some("MPI") => JobKind::Train,
        Some("TF") => JobKind::Tfjob,
        Some("PS") => JobKind::Ps,
        _ => {
            return Err(Error::argument(
                format!("unknown distribution_type {kind}"),
                "write Job, MPI, TF or PS, with these capital letters",
            ));
        }
    };
    for (key, option, set) in KEYS {
        let Some(value) = dictionary.get(key).filter(|value| !value.is_null()) else { continue };
        let is_single = || ["0", "1"].contains(&value.to_string().trim_matches('"'));
        if key == "number_of_workers" && request.kind == JobKind::Job && is_single() {
            continue;
        }
        set(request, key, value)?;
        if let Some(word) = request.given.insert(option.to_owned(), key.to_owned()) {
            return Err(Error::argument(
                format!("{key} and {word} set the same"),
                format!("leave out {word}, or {key} in the dictionary"),
            ));
        }
    }
    Ok(())
}

fn count(key: &str, value: &Value) -> Result<u32> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0).ok_or_else(|| {
        Error::argument(format!("invalid {key}: {value}"), "write a whole number of at least 1, such as 4 or \"4\"")
    })
}

fn amount(key: &str, value: &Value, read: fn(&str) -> Result<Quantity>) -> Result<Quantity> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => {
            return Err(Error::argument(
                format!("invalid {key}: {other}"),
                "write a quantity, such as \"4\" or \"8Gi\"",
            ));
        }
    };
    read(&text).map_err(|error| match error {
        Error::InvalidArgument { what, remedy } => Error::argument(format!("{key}: {what}"), remedy),
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request> {
        let mut request = Request::new(JobKind::Job);
        request.command = vec!["python3".to_owned()];
        apply(text, &mut request)?;
        request.check().map(|()| request)
    }

    #[test]
    fn an_empty_dictionary_is_a_job_and_two_workers_are_the_default() {
        let of_notebooks = "{\"distribution_type\": \"Job\", \"number_of_workers\": \"1\"}";
        let texts = ["", "null", "{}", "{\"distribution_type\": \"Job\"}", of_notebooks, "{\"number_of_workers\": 0}"];
        for text in texts {
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
    fn an_option_wins_over_a_default_of_the_dictionary_and_both_are_an_error() {
        let given = |text: &str| {
            let mut request = Request { workers: 5, ..Request::new(JobKind::Job) };
            request.given.insert("workers".to_owned(), "--workers".to_owned());
            apply(text, &mut request).map(|()| request.workers)
        };
        assert_eq!(given("{\"distribution_type\": \"MPI\"}").unwrap(), 5);
        let error = given("{\"distribution_type\": \"MPI\", \"number_of_workers\": 5}").unwrap_err().to_string();
        assert!(error.contains("leave out --workers, or number_of_workers"), "{error}");
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
            ("{\"number_of_workers\": 4}", "no effect on a job"),
            ("{\"distribution_type\": \"Job\", \"number_of_workers\": \"2\"}", "no effect on a job"),
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
