//! Files of models: any text is a list of tensors of countable sizes, or an error that names the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull_workload::models::parse;

fuzz_target!(|text: &str| match parse("model", text) {
    Ok(keys) => assert!(keys.iter().all(|(key, _)| key.len() > 0)),
    Err(error) => assert!(error.to_string().contains("model"), "{error}"),
});
