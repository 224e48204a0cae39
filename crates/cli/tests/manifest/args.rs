//! Reads the words of a manifest's containers with the same types as the programs themselves.

use clap::Parser as _;
use serde_json::Value;

use ringpull_cli::commands::Cli;
use ringpull_examples::training::Options;

/// Asserts that the program in each container's words can parse these words.
pub(crate) fn assert_understood(document: &Value) {
    for words in containers(document) {
        understood(&words);
    }
}

fn understood(words: &[String]) {
    let name = |word: &String| word.rsplit('/').next().unwrap_or("").to_owned();
    let Some(first) = words.first().map(name) else { return };
    let rest = || words[1..].to_vec();
    match first.as_str() {
        "mpirun" => {
            // The options that we write take at most one word.
            let mut rest = rest().into_iter().peekable();
            while let Some(word) = rest.next_if(|word| word.starts_with('-')) {
                assert!(["--bind-to", "--map-by"].contains(&word.as_str()), "mpirun {word}");
                rest.next();
            }
            understood(&rest.collect::<Vec<_>>());
        }
        "ringpull" => {
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
            if let Some(at) = words.iter().position(|word| word == "--") {
                understood(&words[at + 1..]);
            }
        }
        "train" => {
            let parsed = Options::try_parse_from(words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
        "sshd" => assert_eq!(rest(), ["-De"]),
        "python3" => assert!(words.len() > 1),
        other => panic!("{other} is no program of the image"),
    }
}

/// The words of every container. A container is an object with an image, or the trainer of a TrainJob.
fn containers(value: &Value) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    if value.get("image").is_some() {
        let words = |field: &str| {
            value[field]
                .as_array()
                .into_iter()
                .flatten()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        found.push([words("command"), words("args")].concat());
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|field| found.extend(containers(field))),
        Value::Array(list) => list.iter().for_each(|element| found.extend(containers(element))),
        _ => {}
    }
    found
}
