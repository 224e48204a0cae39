//! Recordings: any text is one, with a job that can be replayed, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::recording(text));
