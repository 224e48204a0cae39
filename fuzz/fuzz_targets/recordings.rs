//! Recordings: any text is one, whose values are compared, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::recording(text));
