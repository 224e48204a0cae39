//! Tests `ringpull manifest lint` as a command. Its rules are tested in `crates/kube/tests`.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{read, ringpull, root};

const CLEAN: &str = "crates/kube/tests/clean.yaml";

#[test]
fn the_exit_code_tells_errors_from_warnings_and_paths_lead_to_them() {
    let clean = read(&root().join(CLEAN));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, was: &str, is: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, clean.replace(was, is)).unwrap();
        path.display().to_string()
    };
    let wrong = write("wrong.yaml", "-np, \"8\"", "-np, \"16\"");
    let output = ringpull(&["manifest", "lint", &wrong, CLEAN]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command"), "{text}");
    assert!(text.contains("2 job(s): 1 error(s), 0 warning(s)"), "{text}");
    let doubtful =
        write("doubtful.yaml", "readinessProbe:\n              tcpSocket:\n                port: 2222", "tty: false");
    let of = |words: &[&str]| {
        let output = ringpull(&[&["manifest", "lint", "--format", "json", &doubtful], words].concat());
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let found = of(&["--level", "note"]);
    assert_eq!((&found[0]["rule"], &found[0]["level"]), (&"no-probe".into(), &"note".into()));
    assert_eq!(
        (of(&[]), of(&["--level", "note", "--ignore", "no-probe"])),
        (serde_json::json!([]), serde_json::json!([]))
    );
    let output = ringpull(&["manifest", "lint", "--format", "sarif", &wrong]);
    let sarif: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(
        (output.status.code(), &result["ruleId"], &result["level"]),
        (Some(1), &"too-few-slots".into(), &"error".into())
    );
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{wrong}:"))?.split(':').next()?.parse().ok());
    let region = &result["locations"][0]["physicalLocation"]["region"];
    assert_eq!(region["startLine"].as_u64(), line);
    let written = read(Path::new(&wrong));
    let at = written.lines().position(|line| line.trim_start().starts_with("command:")).unwrap() as u64 + 1;
    assert_eq!(line, Some(at), "{region} {text}");
    // The line at which the text itself is wrong.
    std::fs::write(folder.path().join("broken.yaml"), "kind: MPIJob\nspec:\n  a: 1\n  a: 2\n").unwrap();
    let broken = folder.path().join("broken.yaml").display().to_string();
    let output = ringpull(&["manifest", "lint", &broken]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with(&format!("{broken}:4: ")), "{text}");
    assert_eq!(ringpull(&["manifest", "lint", "--ignore", "too-few-slots", &wrong]).status.code(), Some(0));
    let output = ringpull(&["manifest", "lint", "--pod-security", "restricted", CLEAN]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("[pod-security]"), "{text}");
    let output = ringpull(&["manifest", "lint", "--ignore", "too-few-slot", &wrong]);
    assert!(
        output.status.code() == Some(2)
            && String::from_utf8_lossy(&output.stderr).contains("did you mean too-few-slots")
    );
}

#[test]
fn stdin_is_linted_too_and_a_file_without_a_job_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_ringpull"))
        .args(["manifest", "lint", "-"])
        .stdin(Stdio::from(std::fs::File::open(root().join(CLEAN)).unwrap()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 job(s): 0 error(s)"), "{text}");
    let output = ringpull(&["manifest", "lint", CLEAN, "mpijob/claim/claim.yaml"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: mpijob/claim/claim.yaml holds no job") && text.contains("hint:"), "{text}");
}
