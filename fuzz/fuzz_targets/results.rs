//! Results of earlier measurements: any text is a result that can be shown, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::results(text));
