//! What hosts, `mpirun` and ranks say to the launcher of an elastic job: any text is read.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::elastic(text));
