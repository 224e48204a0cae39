//! What `ringpull` answers to words and variables that it cannot use, or that others overrule.

use std::process::Command;

/// The exit code and standard error, of a command with this value of `RINGPULL_ALGORITHM`.
fn said(algorithm: Option<&str>, words: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(words.split(' ')).env_remove("RINGPULL_ALGORITHM");
    algorithm.map(|name| command.env("RINGPULL_ALGORITHM", name));
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_wrong_algorithm_in_the_environment_is_told_with_its_variable_and_the_names() {
    let (code, text) = said(Some("rign"), "bench pushpull --kv-store local --sizes 4 --iters 1");
    assert_eq!(code, 1);
    for part in ["RINGPULL_ALGORITHM=\"rign\"", "auto, ring, direct", "ordered, native", "hint: did you mean ring?"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn the_help_lists_every_algorithm_and_another_word_is_told_the_closest() {
    let help = Command::new(env!("CARGO_BIN_EXE_ringpull")).args(["bench", "allreduce", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for name in ringpull_base::config::ALGORITHMS {
        assert!(help.contains(name), "{name} in {help}");
    }
    let (code, text) = said(None, "bench allreduce --algorithm rign");
    assert!(code == 2 && text.contains("'ring'") && text.contains("circulant"), "{text}");
}

/// The error comes before any MPI, and shows which algorithm was heard.
#[test]
fn explain_hears_the_option_and_the_variable_and_the_option_wins() {
    let heard = |algorithm, words: &str| said(algorithm, &format!("bench allreduce --explain{words}")).1;
    assert!(heard(None, " --algorithm native").contains("nothing is predicted for native"));
    assert!(heard(Some("nccl"), "").contains("nothing is predicted for nccl"));
    assert!(said(None, "bench allreduce --algorithm nccl").1.contains("which nccl does not sum"));
    assert!(heard(Some("ordered"), "").contains("nothing is predicted for ordered"));
    assert!(heard(Some("ordered"), " --algorithm native").contains("nothing is predicted for native"));
}

#[test]
fn times_sizes_and_types_that_cannot_be_are_told_with_what_can() {
    for (words, code, parts) in [
        ("--late -1", 1, ["--late -1 is no time", "give seconds, such as 0.25"]),
        ("--rest -1", 1, ["--rest -1 is no time", "give milliseconds, such as 2"]),
        ("--rest inf", 1, ["--rest inf is no time", "give milliseconds, such as 2"]),
        ("--sizes 0", 1, ["0 bytes are no whole number of f32 elements", "a multiple of 4 bytes, at least 4"]),
        ("--sizes 6", 1, ["6 bytes are no whole number of f32 elements", "a multiple of 4 bytes, at least 4"]),
        ("--dtype f31", 2, ["f31", "bf16"]),
    ] {
        let (had, text) = said(None, &format!("bench allreduce {words}"));
        assert!(had == code && parts.iter().all(|part| text.contains(part)), "{words}: {had}, {text}");
    }
}
