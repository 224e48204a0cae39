//! Recordings: any text is a recording with values that can be compared, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::recording(text));
