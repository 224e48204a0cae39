//! The command `ringpull` of a wheel. Its code is in the native part of the Python package, so that the wheel
//! has the code only once.
#![allow(unsafe_code)]

mod installed;

use std::ffi::c_int;
use std::path::Path;
use std::process::ExitCode;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// The hint for a package that is not beside the command, or cannot be loaded.
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
fn run() -> Result<c_int, String> {
    let program = std::env::current_exe().map_err(|cause| format!("this program has no path: {cause}"))?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let package = installed::package(prefix)
        .ok_or_else(|| format!("the Python package ringpull is not in {}", prefix.display()))?;
    // The library needs names that Python defines, although the command uses none of them.
    let names = load(&package.join(installed::NO_PYTHON), RTLD_GLOBAL)?;
    let code = load(&package.join("_native.abi3.so"), RTLD_LOCAL)?;
    // SAFETY: the package is of the command's own version, whose `ringpull_main` has this type.
    let main = unsafe { code.get::<unsafe extern "C" fn() -> c_int>(b"ringpull_main\0") };
    let main = main.map_err(|cause| cause.to_string())?;
    // SAFETY: as above.
    let status = unsafe { main() };
    // The library is not unloaded: it has threads, and functions that run at exit.
    std::mem::forget((names, code));
    Ok(status)
}

fn load(path: &Path, scope: c_int) -> Result<Library, String> {
    // SAFETY: the code of this package does nothing when it is loaded.
    unsafe { Library::open(Some(path), RTLD_NOW | scope) }.map_err(|cause| {
        let detail = std::error::Error::source(&cause).map(ToString::to_string);
        format!("{} cannot be loaded: {}", path.display(), detail.unwrap_or_else(|| cause.to_string()))
    })
}
