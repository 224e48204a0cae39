//! Timelines of a job's processes: any text is merged and evaluated, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::timelines(text));
