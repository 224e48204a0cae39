//! The command `ringpull` of a wheel: finds the MPI to use, and runs the command that is built against it.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Beside `bin/ringpull`, as pip puts it.
    let program = std::env::current_exe();
    let prefix = program.as_deref().ok().and_then(Path::parent).and_then(Path::parent);
    let lib = prefix.map(|prefix| prefix.join("lib"));
    let variants = lib.clone().unwrap_or_default().join("ringpull");
    match ringpull_loader::run(lib.as_deref(), &variants) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(text) => {
            eprintln!("error: {text}\n  hint: install the wheel again: pip install --force-reinstall ringpull");
            ExitCode::FAILURE
        }
    }
}
