//! Loads the chosen MPI, and the plugin that is built against its interface.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::choice::{self, MissingMpi};
use crate::family::MpiFamily;
use crate::process::{self, Process};
use crate::table::Api;

include!(concat!(env!("OUT_DIR"), "/plugins.rs"));

/// The version of the table that this code calls.
const VERSION: u32 = 2;

static API: Mutex<Option<&'static Api>> = Mutex::new(None);
static PREFIX: OnceLock<PathBuf> = OnceLock::new();

/// Sets the environment in which this process runs (Python's `sys.prefix`), because its `lib` may have an
/// MPI. To be called before [`load`]. The default is the parent of the program's folder.
pub fn run_in(prefix: PathBuf) {
    PREFIX.get_or_init(|| prefix);
}

/// Returns the MPI that this process uses. The first call that finds one loads it, visible to all libraries
/// that are loaded later. Later calls return the same MPI. If there is none, the error has the reason and a
/// remedy, and the next call looks again.
pub fn load() -> Result<&'static Api, MissingMpi> {
    let mut loaded = API.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded.is_none() {
        *loaded = Some(find()?);
    }
    Ok(loaded.expect("it was found"))
}

/// Returns true if a launcher of a known MPI has made this process a rank.
pub fn is_rank() -> bool {
    process::family_of_launcher().is_some()
}

fn find() -> Result<&'static Api, MissingMpi> {
    let program = std::env::current_exe().unwrap_or_default();
    let prefix = PREFIX.get().map(PathBuf::as_path).or_else(|| program.parent().and_then(Path::parent));
    let process = Process::this(prefix.map(|prefix| prefix.join("lib")).as_deref());
    let (mut failures, mut not_built) = (Vec::new(), None);
    for candidate in choice::candidates(&process)? {
        let (family, path) = (candidate.family, &candidate.path);
        let Some((_, code)) = PLUGINS.iter().find(|(name, _)| *name == family.interface()) else {
            // For a name without a path it is not known if there is such a library.
            if path.is_absolute() || PLUGINS.is_empty() {
                not_built.get_or_insert(family);
            }
            continue;
        };
        // SAFETY: loading an MPI library does nothing that loading another library would not do.
        match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                keep(library);
                let (table, plugin) = open(family, code).map_err(|cause| unloadable(family, &cause))?;
                keep(plugin);
                // SAFETY: the plugin stays, and nobody writes to the constant.
                let api: &'static Api = unsafe { &*table };
                check_family(api, family, path)?;
                return Ok(api);
            }
            Err(cause) if path.is_absolute() => failures.push(text_of(&cause)),
            Err(_) => {}
        }
    }
    Err(match not_built {
        Some(family) => choice::not_built(family, PLUGINS.iter().map(|(name, _)| *name)),
        None => choice::missing(&process, &failures, &choice::of_another_family(&process)),
    })
}

/// Returns an error if the functions that the plugin has found belong to another library than the chosen one.
/// The reason is another MPI, which the process has loaded before, visible to all libraries.
fn check_family(api: &Api, family: MpiFamily, path: &Path) -> Result<(), MissingMpi> {
    let mut text = vec![0u8; 16384];
    let mut len = 0;
    // SAFETY: may be called at any time; the text is longer than MPI_MAX_LIBRARY_VERSION_STRING of any MPI.
    unsafe { (api.get_library_version)(text.as_mut_ptr().cast(), &raw mut len) };
    let text = String::from_utf8_lossy(&text);
    if (family == MpiFamily::OpenMpi) == text.starts_with("Open MPI") || family == MpiFamily::Standard {
        return Ok(());
    }
    let first = text.split(['\0', '\n', ',']).next().unwrap_or_default().trim();
    Err(MissingMpi {
        reason: format!("two MPIs are in this process: {}, and {first}, which comes first", path.display()),
        remedy: "start the program with the mpirun of the MPI that it loads itself, by a library or LD_PRELOAD"
            .to_owned(),
    })
}

fn unloadable(family: MpiFamily, cause: &str) -> MissingMpi {
    MissingMpi {
        reason: format!("the part of ringpull that calls {family} cannot be loaded: {cause}"),
        remedy: "let TMPDIR name a folder from which programs may run, and start the program again".to_owned(),
    }
}

/// Loads a plugin from memory, or from a file if memory cannot be executed. Returns its table, and the
/// library, which must stay loaded.
fn open(family: MpiFamily, code: &[u8]) -> Result<(*const Api, Library), String> {
    let name = format!("ringpull-mpi-{}", family.interface());
    let in_memory = memfd_create(&*name, MemfdFlags::CLOEXEC).map_err(|cause| cause.to_string()).and_then(|memory| {
        let mut memory = std::fs::File::from(memory);
        memory.write_all(code).map_err(|cause| cause.to_string())?;
        open_file(format!("/proc/self/fd/{}", memory.as_raw_fd()).as_ref())
    });
    in_memory.or_else(|cause| {
        let mut file = tempfile::NamedTempFile::new().map_err(|other| format!("{cause}; {other}"))?;
        file.write_all(code).map_err(|other| format!("{cause}; {other}"))?;
        open_file(file.path().as_os_str()).map_err(|other| format!("{cause}; {other}"))
    })
}

fn open_file(path: &OsStr) -> Result<(*const Api, Library), String> {
    // SAFETY: a plugin has no code that runs when it is loaded.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|cause| text_of(&cause))?;
    // SAFETY: `plugin.c` has a constant of this name, which begins with its version.
    let table = unsafe { library.get::<*const Api>(b"ringpull_mpi\0") };
    let table = table.map_err(|cause| text_of(&cause))?.into_raw().cast::<Api>();
    // SAFETY: as above. The loader may give another library that was once loaded by this path.
    let version = unsafe { (*table).version };
    if version == VERSION { Ok((table, library)) } else { Err(format!("its table has version {version}")) }
}

/// Keeps a library loaded until the process ends, because it has threads and functions that run at exit.
fn keep(library: Library) {
    std::mem::forget(library);
}

fn text_of(cause: &libloading::Error) -> String {
    let detail = std::error::Error::source(cause).map(ToString::to_string);
    detail.unwrap_or_else(|| cause.to_string())
}
