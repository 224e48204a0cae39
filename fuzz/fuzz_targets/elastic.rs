//! Messages of hosts, `mpirun` and ranks to the launcher of an elastic job: any text can be read.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| ringpull_cli::fuzzing::elastic(text));
