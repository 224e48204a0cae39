//! The command `ringpull` of a wheel: finds the MPI to use, and runs the command that is built against it.

use std::path::Path;
use std::process::ExitCode;

/// What helps if files of the wheel are not beside the command.
const REMEDY: &str = "install the wheel again into an environment (python3 -m venv ENV; ENV/bin/pip install \
                      --force-reinstall WHEEL.whl); pip install --target leaves out what the command needs";

fn main() -> ExitCode {
    // Beside `bin/ringpull`, as pip puts it.
    let program = std::env::current_exe();
    let prefix = program.as_deref().ok().and_then(Path::parent).and_then(Path::parent);
    let lib = prefix.map(|prefix| prefix.join("lib"));
    let variants = lib.clone().unwrap_or_default().join("ringpull");
    let result = if is_help() {
        ringpull_loader::run_without_mpi(&variants)
    } else {
        ringpull_loader::run(lib.as_deref(), &variants)
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(text) => {
            eprintln!("error: {text}\n  hint: {REMEDY}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the command only prints text of its own, such as help. That needs no MPI, whose loading takes most
/// of the time.
fn is_help() -> bool {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let of_shells = |word: &std::ffi::OsString| ["help", "completions", "man"].iter().any(|known| word == known);
    let is_asked = |word: &std::ffi::OsString| ["--help", "-h", "--version", "-V"].iter().any(|known| word == known);
    words.first().is_none_or(of_shells) || words.iter().take_while(|word| *word != "--").any(is_asked)
}
