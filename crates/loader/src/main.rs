//! The command `ringpull` of a wheel: finds the MPI to use, and runs the command that is built against it.

use std::path::Path;
use std::process::ExitCode;

/// What helps if the package is not beside the command, or cannot be loaded.
const REMEDY: &str = "install the wheel again into an environment: python3 -m venv ENV; ENV/bin/pip install WHEEL.whl";

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(text) => {
            eprintln!("error: {text}\n  hint: {REMEDY}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command of the package that pip has put beside `bin/ringpull`. Returns its exit code.
fn run() -> Result<i32, String> {
    let program = std::env::current_exe().map_err(|cause| format!("this program has no path: {cause}"))?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let variants = ringpull_loader::installed::variants(prefix)
        .ok_or_else(|| format!("the Python package ringpull is not in {}", prefix.display()))?;
    if is_help() {
        ringpull_loader::run_without_mpi(&variants)
    } else {
        ringpull_loader::run(&prefix.join("lib"), &variants)
    }
}

/// Whether the command only prints text of its own, such as help, or stands between `mpirun` and a rank. That
/// needs no MPI, whose loading takes most of the time.
fn is_help() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let needs_none = |word: &std::ffi::OsString| ["help", "rank"].iter().any(|known| word == known);
    let is_asked = |word: &std::ffi::OsString| {
        ["--help", "-h", "--version", "-V", "--completions", "--man"].iter().any(|known| word == known)
    };
    words.first().is_none_or(needs_none) || words.iter().take_while(|word| *word != "--").any(is_asked)
}
