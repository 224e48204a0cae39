//! Tests options and variables that are invalid, or that are overridden.

use std::process::Command;

/// The exit code and standard error of a command with this value of `RINGPULL_ALGORITHM`.
fn said(algorithm: Option<&str>, words: &str) -> (i32, String) {
    said_with("RINGPULL_ALGORITHM", algorithm, words)
}

/// The exit code and standard error of a command with this value of a variable.
fn said_with(variable: &str, value: Option<&str>, words: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringpull"));
    command.args(words.split(' ')).env_remove(variable);
    value.map(|value| command.env(variable, value));
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A closed stdout, as in `ringpull manifest lint FILE | head`.
#[test]
fn a_command_whose_reader_has_gone_ends_without_a_word() {
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../../mpijob/base/mpijob.yaml");
    for words in [&[][..], &["manifest", "job", "--", "train"], &["manifest", "lint", base]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_ringpull")).args(words).stdout(writer).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.as_str()), (Some(141), ""), "{words:?}");
    }
}

#[test]
fn helpers_of_jobs_that_have_none_are_an_error_that_says_what_to_do() {
    for (words, parts) in [
        ("launch -n 2 -s 2 --helpers 1 -- true", ["--helpers 1 is for jobs without servers", "hint: let the command"]),
        (
            "launch -n 2 --launcher slurm --helpers 1 -- true",
            ["--helpers is for the launchers", "RINGPULL_ROLE=helper"],
        ),
    ] {
        let (code, text) = said(None, words);
        assert_eq!(code, 1, "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{words}: {text}");
    }
    let (code, text) = said_with("RINGPULL_ROLE", Some("helpr"), "bench pushpull --kv-store local --sizes 4 --iters 1");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("RINGPULL_ROLE=\"helpr\"") && text.contains("worker or helper"), "{text}");
}

#[test]
fn options_that_an_elastic_job_with_servers_does_not_have_are_errors() {
    for (options, parts) in [
        ("--min-workers 2", ["needs its number of workers", "-n N"]),
        ("-n 2 --min-workers 3", ["--min-workers 3 is more than -n 2", "with -n"]),
        ("-n 2 --max-workers 3", ["--max-workers is for elastic jobs without servers", "leave it out"]),
        ("-n 2 --launcher mpi", ["for the launchers local, ssh and lab", "dist_sync_mpi"]),
    ] {
        let (code, text) = said(None, &format!("launch --elastic -s 1 {options} -- true --kv-store dist_sync"));
        assert_eq!(code, 1, "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{options}: {text}");
    }
    let (code, text) = said(None, "launch --elastic -n 2 -s 1 -- true --kv-store dist_hybrid");
    assert!(code == 1 && text.contains("dist_hybrid cannot be elastic"), "{text}");
}

#[test]
fn an_invalid_algorithm_in_the_environment_is_an_error_that_lists_the_names() {
    let (code, text) = said(Some("rign"), "bench pushpull --kv-store local --sizes 4 --iters 1");
    assert_eq!(code, 1);
    for part in ["RINGPULL_ALGORITHM=\"rign\"", "auto, ring, direct", "ordered, native", "hint: did you mean ring?"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn an_address_of_metrics_is_checked_and_without_effect_for_kinds_that_have_none() {
    let words = "bench pushpull --kv-store local --sizes 4 --iters 1";
    let (code, text) = said_with("RINGPULL_METRICS", Some("here"), words);
    assert!(code == 1 && text.contains("RINGPULL_METRICS=\"here\"") && text.contains("0.0.0.0:9400"), "{text}");
    let (code, text) = said_with("RINGPULL_METRICS", Some("9400"), words);
    assert!(
        code == 0
            && text.contains(
                "RINGPULL_METRICS has no effect: local is for one process, and only jobs of several have metrics"
            ),
        "{text}"
    );
}

#[test]
fn the_help_lists_every_algorithm_and_a_misspelt_one_gets_a_suggestion() {
    let help = Command::new(env!("CARGO_BIN_EXE_ringpull")).args(["bench", "allreduce", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for name in ringpull_base::AlgorithmChoice::names() {
        assert!(help.contains(name), "{name} in {help}");
    }
    let (code, text) = said(None, "bench allreduce --algorithm rign");
    assert!(code == 2 && text.contains("'ring'") && text.contains("circulant"), "{text}");
}

/// The error names the algorithm that was chosen.
#[test]
fn explain_takes_the_option_before_the_variable() {
    let chosen = |algorithm, words: &str| said(algorithm, &format!("bench allreduce --explain{words}")).1;
    assert!(chosen(None, " --algorithm native").contains("no prediction for native"));
    assert!(chosen(Some("nccl"), "").contains("no prediction for nccl"));
    assert!(said(None, "bench allreduce --algorithm nccl").1.contains("invalid --algorithm nccl"));
    assert!(chosen(Some("ordered"), "").contains("no prediction for ordered"));
    assert!(chosen(Some("ordered"), " --algorithm native").contains("no prediction for native"));
}

#[test]
fn buffers_of_a_check_of_gpus_are_whole_pieces() {
    for wrong in ["0", "4097"] {
        let (code, text) = said(None, &format!("doctor --gpu=sim:1 --bytes {wrong}"));
        assert!(code == 1 && text.contains(&format!("invalid --bytes {wrong}: expected a multiple of 4096")), "{text}");
    }
}

#[test]
fn invalid_times_sizes_and_types_are_errors_that_name_valid_ones() {
    for (words, code, parts) in [
        ("--waiting -1", 1, ["invalid --waiting -1: expected non-negative seconds", "hint: give seconds"]),
        ("--algorithm late:1", 2, ["late:1", "ordered"]),
        ("--rest -1", 1, ["invalid --rest -1: expected non-negative milliseconds", "hint: give milliseconds"]),
        ("--rest inf", 1, ["invalid --rest inf: expected non-negative milliseconds", "hint: give milliseconds"]),
        ("--sizes 0", 1, ["invalid size of 0 bytes: expected whole f32 elements", "a multiple of 4 bytes, at least 4"]),
        ("--sizes 6", 1, ["invalid size of 6 bytes: expected whole f32 elements", "a multiple of 4 bytes, at least 4"]),
        ("--dtype f31", 2, ["f31", "bf16"]),
    ] {
        let (had, text) = said(None, &format!("bench allreduce {words}"));
        assert!(had == code && parts.iter().all(|part| text.contains(part)), "{words}: {had}, {text}");
    }
    for (words, parts) in [
        ("--sparse 1.5", ["invalid --sparse 1.5: expected a part of the rows", "give 0.01 for 1 %"]),
        ("--sparse 0.1 --sizes 4", ["no row of 64 elements", "give a larger size"]),
        ("--sparse 0.1 --compression fp16", ["--sparse measures f32 rows without --compression", "leave these out"]),
    ] {
        let (had, text) = said(None, &format!("bench pushpull --kv-store local {words}"));
        assert!(had == 1 && parts.iter().all(|part| text.contains(part)), "{words}: {had}, {text}");
    }
}

#[test]
fn what_cannot_be_predicted_is_an_error_that_says_what_can() {
    for (words, code, parts) in [
        ("--link none", 1, ["--link none has no rate to predict with", "--link 10gbit"]),
        ("--link 1gbit --latency 50", 2, ["invalid time \"50\"", "such as 50us"]),
        ("--link 1gbit --hosts 0", 1, ["invalid --hosts 0: expected numbers from 1 to 10000", "--hosts 8,64"]),
        ("--link 1gbit --compute 0", 1, ["invalid --compute 0", "such as 2.184"]),
        ("--link 1gbit --modes dist_async:1", 1, ["dist_async:1 has no prediction", "dist_sync:Kshared"]),
    ] {
        let compute = if words.contains("--compute") { "" } else { " --compute 0.1" };
        let (had, text) = said(None, &format!("advise --model resnet50 --scale 0.01 {words}{compute}"));
        assert!(had == code && parts.iter().all(|part| text.contains(part)), "{words}: {had}, {text}");
    }
}

#[test]
fn the_command_alone_shows_where_to_start_and_a_shell_can_complete_it() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ringpull")).args(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run(&[]);
    assert!(first.lines().filter(|line| line.starts_with("  ringpull ")).count() == 6, "{first}");
    let help = run(&["--help"]);
    assert!(help.lines().count() <= 40 && help.contains("Kubernetes:\n  manifest "), "{help}");
    assert!(run(&["info", "--completions", "bash"]).contains("rehearse"));
    let folder = tempfile::tempdir().unwrap();
    run(&["info", "--man", folder.path().to_str().unwrap()]);
    let page = std::fs::read_to_string(folder.path().join("ringpull-launch.1")).unwrap();
    assert!(page.contains("ringpull launch \\-n 4"), "{page}");
}
