//! Loads the MPI that was chosen, and the code that is built against it.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use crate::choice::{self, Missing};
use crate::family::Family;
use crate::process::Process;

/// The file with the functions that stand in for MPI's.
const NONE: &str = "none/libnone.so";

/// The file that stands in for Python in the command, which runs without an interpreter.
pub(crate) const NO_PYTHON: &str = "none/libnopython.so";

/// Loads the MPI that this process should use, for all libraries that are loaded later. `lib` is the
/// environment's folder for libraries, `variants` the folder with the code for each family. Returns the
/// family whose code is to be loaded next.
///
/// Without a usable MPI the code for MPICH is loaded with functions that fail. An error only if that cannot
/// be loaded either, or if a library of MPI breaks when it is loaded.
pub fn load(lib: Option<&Path>, variants: &Path) -> Result<Family, String> {
    let process = Process::this(lib);
    let missing = match choice::candidates(&process) {
        Err(missing) => missing,
        Ok(candidates) => {
            let mut failures = Vec::new();
            for candidate in candidates {
                // SAFETY: loading an MPI library does nothing that loading another library would not do.
                match unsafe { Library::open(Some(&candidate.path), RTLD_NOW | RTLD_GLOBAL) } {
                    Ok(library) => {
                        keep(library);
                        return Ok(candidate.family);
                    }
                    Err(cause) if candidate.path.is_absolute() => failures.push(text_of(&cause)),
                    Err(_) => {}
                }
            }
            choice::missing(&process, &failures, &choice::of_another_family(&process))
        }
    };
    load_without(&missing, &variants.join(NONE))?;
    Ok(Family::Mpich)
}

/// Loads the functions that stand in for MPI's, and with them the code that calls them, and nobody else's.
fn load_without(missing: &Missing, path: &Path) -> Result<(), String> {
    let fail = |cause: &libloading::Error| format!("{} cannot be loaded: {}", path.display(), text_of(cause));
    // SAFETY: it has no code of its own that runs when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.map_err(|cause| fail(&cause))?;
    let text = format!("{}\n{}", missing.reason, missing.remedy);
    let text = CString::new(text.replace('\0', " ")).map_err(|cause| cause.to_string())?;
    // SAFETY: the function has this type (scripts/wheel writes it), and copies the text.
    unsafe {
        let tell = library
            .get::<unsafe extern "C" fn(*const c_char)>(b"ringpull_why_no_mpi\0")
            .map_err(|cause| fail(&cause))?;
        tell(text.as_ptr());
    }
    keep(library);
    Ok(())
}

/// Runs the command in `variants`, and returns its exit code. `lib` is as for [`load`].
pub fn run(lib: &Path, variants: &Path) -> Result<c_int, String> {
    load_no_python(variants)?;
    run_from(load(Some(lib), variants)?, variants)
}

/// Runs the command in `variants` without looking for an MPI.
pub fn run_without_mpi(variants: &Path) -> Result<c_int, String> {
    load_no_python(variants)?;
    let missing = Missing { reason: "help was asked for".to_owned(), remedy: "run the command".to_owned() };
    load_without(&missing, &variants.join(NONE))?;
    run_from(Family::Mpich, variants)
}

/// The code is also the native part of the Python package, and names what Python has. The command uses none
/// of it.
fn load_no_python(variants: &Path) -> Result<(), String> {
    let path = variants.join(NO_PYTHON);
    // SAFETY: nothing in it runs when it is loaded.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
    keep(library.map_err(|cause| format!("{} cannot be loaded: {}", path.display(), text_of(&cause)))?);
    Ok(())
}

fn run_from(family: Family, variants: &Path) -> Result<c_int, String> {
    let path = variants.join(family.folder()).join("_native.abi3.so");
    let fail = |cause: &libloading::Error| format!("{} cannot be loaded: {}", path.display(), text_of(cause));
    // SAFETY: it is the code of this package, whose `ringpull_main` has this type.
    unsafe {
        let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(|cause| fail(&cause))?;
        let code = {
            let main = library.get::<unsafe extern "C" fn() -> c_int>(b"ringpull_main\0");
            main.map_err(|cause| fail(&cause))?()
        };
        keep(library);
        Ok(code)
    }
}

/// A library stays until the process ends: it has threads and functions that run at exit.
fn keep(library: Library) {
    std::mem::forget(library);
}

fn text_of(cause: &libloading::Error) -> String {
    let detail = std::error::Error::source(cause).map(ToString::to_string);
    detail.unwrap_or_else(|| cause.to_string())
}
