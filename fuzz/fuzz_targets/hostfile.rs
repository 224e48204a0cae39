//! Hostfiles, lists of hosts and what discovery scripts print: any text is hosts or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::hosts(text));
