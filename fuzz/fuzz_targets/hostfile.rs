//! Hostfiles, lists of hosts and the output of discovery scripts: any text is a list of hosts or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::hosts(text));
