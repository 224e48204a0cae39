//! Files of faults: any text is faults that can be said, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::faults(text));
