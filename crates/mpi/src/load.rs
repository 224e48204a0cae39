//! Loads the MPI that was chosen, and the plugin that is built against its interface.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::choice::{self, Missing};
use crate::family::Family;
use crate::process::Process;
use crate::table::Api;

include!(concat!(env!("OUT_DIR"), "/plugins.rs"));

/// The version of the table that this code calls.
const VERSION: u32 = 1;

static API: OnceLock<Result<&'static Api, Missing>> = OnceLock::new();
static PREFIX: OnceLock<PathBuf> = OnceLock::new();

/// Sets the environment that this process runs in, `sys.prefix` of Python: its `lib` may have an MPI. To be
/// called before [`load`]. The default is the folder above that of the program.
pub fn run_in(prefix: PathBuf) {
    PREFIX.get_or_init(|| prefix);
}

/// Returns the MPI that this process uses. The first call loads it, for all libraries that are loaded later;
/// later calls return the same. The error explains why there is none.
pub fn load() -> Result<&'static Api, Missing> {
    API.get_or_init(find).clone()
}

fn find() -> Result<&'static Api, Missing> {
    let program = std::env::current_exe().unwrap_or_default();
    let prefix = PREFIX.get().map(PathBuf::as_path).or_else(|| program.parent().and_then(Path::parent));
    let process = Process::this(prefix.map(|prefix| prefix.join("lib")).as_deref());
    let mut failures = Vec::new();
    for candidate in choice::candidates(&process)? {
        // SAFETY: loading an MPI library does nothing that loading another library would not do.
        match unsafe { Library::open(Some(&candidate.path), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                keep(library);
                return plugin(candidate.family);
            }
            Err(cause) if candidate.path.is_absolute() => failures.push(text_of(&cause)),
            Err(_) => {}
        }
    }
    Err(choice::missing(&process, &failures, &choice::of_another_family(&process)))
}

/// The table of a family's plugin, whose library of MPI is loaded.
fn plugin(family: Family) -> Result<&'static Api, Missing> {
    let Some((_, code)) = PLUGINS.iter().find(|(name, _)| *name == family.interface()) else {
        let known: Vec<&str> = PLUGINS.iter().map(|(name, _)| *name).collect();
        return Err(Missing {
            reason: format!("this ringpull was built without {family} (it was built with: {})", list(&known)),
            remedy: format!("install the compiler `mpicc` of {family}, touch crates/mpi/build.rs, and build it again"),
        });
    };
    let failed = |cause: String| Missing {
        reason: format!("the part that calls {family} cannot be loaded: {cause}"),
        remedy: "report this with the output of `ringpull info`".to_owned(),
    };
    let library = open(family, code).map_err(failed)?;
    // SAFETY: the plugin is this crate's own: `plugin.c` has this constant.
    let table = unsafe { library.get::<*const Api>(b"ringpull_mpi\0") };
    let table = table.map_err(|cause| failed(text_of(&cause)))?.into_raw().cast::<Api>();
    keep(library);
    // SAFETY: the library stays, and nobody writes to the constant.
    let api: &'static Api = unsafe { &*table };
    if api.version == VERSION { Ok(api) } else { Err(failed(format!("its table has version {}", api.version))) }
}

/// Loads a plugin from memory, or from a file where memory cannot be executed.
fn open(family: Family, code: &[u8]) -> Result<Library, String> {
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

fn open_file(path: &OsStr) -> Result<Library, String> {
    // SAFETY: a plugin has no code that runs when it is loaded.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|cause| text_of(&cause))
}

/// Keeps a library until the process ends: it has threads and functions that run at exit.
fn keep(library: Library) {
    std::mem::forget(library);
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn text_of(cause: &libloading::Error) -> String {
    let detail = std::error::Error::source(cause).map(ToString::to_string);
    detail.unwrap_or_else(|| cause.to_string())
}
