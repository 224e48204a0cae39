//! Files of faults: any text is a list of faults that can be printed, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::faults(text));
