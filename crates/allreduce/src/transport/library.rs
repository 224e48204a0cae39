//! The MPI library behind the wire: its name, its parameters and its errors.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use ringpull_base::{Error, Result, config};
use ringpull_mpi::Api;

use super::peer_memory;

/// Returns the functions of this process's MPI library, which the first call loads. The error explains why
/// there is none.
pub(super) fn api() -> Result<&'static Api> {
    ringpull_mpi::load().map_err(|missing| Error::KindUnavailable {
        kind: "dist_sync_mpi".to_owned(),
        reason: missing.reason,
        remedy: missing.remedy,
    })
}

pub(super) fn check(call: &str, rank: usize, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(library_error(call, rank, code)) }
}

pub(super) fn library_error(call: &str, rank: usize, code: c_int) -> Error {
    Error::Library {
        library: library_name(),
        call: call.to_owned(),
        code: code.into(),
        text: error_text(code),
        rank: Some(rank),
    }
}

pub(super) fn error_text(code: c_int) -> String {
    let mut text = vec![0u8; 1024];
    let mut len: c_int = 0;
    if let Ok(api) = api() {
        // SAFETY: `text` is longer than MPI_MAX_ERROR_STRING of any MPI (at most 512).
        unsafe { (api.error_string)(code, text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    }
    String::from_utf8_lossy(&text[..len as usize]).into_owned()
}

/// `Open MPI 4.1.4` or `MPICH 4.0.2`: name and version from the library's own text.
pub(super) fn library_name() -> String {
    mpi_library().unwrap_or_else(|_| "MPI".to_owned())
}

fn first_words(text: &str) -> String {
    let words = text.split(['\n', ',']).next().unwrap_or("MPI").trim();
    let plain = words.replacen("Open MPI v", "Open MPI ", 1).replacen("MPICH Version:", "MPICH", 1);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn library_text(api: &Api) -> String {
    let mut text = vec![0u8; 16384];
    let mut len: c_int = 0;
    // SAFETY: may be called at any time; `text` is longer than MPI_MAX_LIBRARY_VERSION_STRING of any MPI (at
    // most 8192).
    unsafe { (api.get_library_version)(text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(0));
    String::from_utf8_lossy(&text).replace('\t', " ")
}

/// Returns the name and the version of this process's MPI library, such as `Open MPI 4.1.4`.
///
/// Loads it if necessary. The error explains why there is none.
pub fn mpi_library() -> Result<String> {
    Ok(first_words(&library_text(api()?)))
}

/// Returns an error if the launcher is the `mpirun` of another MPI. Every process would then be rank 0 of its
/// own world.
pub(super) fn check_launcher(size: usize) -> Result<()> {
    match config::launcher_world_size() {
        Some((name, told)) if told != size => Err(Error::KindUnavailable {
            kind: "dist_sync_mpi".to_owned(),
            reason: format!("{name} says {told} ranks, but this program's {} sees {size}", library_name()),
            remedy: match name {
                "WORLD_SIZE" => "torchrun starts no ranks of MPI: start it with mpirun or `ringpull launch`".to_owned(),
                "SLURM_STEP_NUM_TASKS" => super::identity::srun_remedy(config::process_manager(&library_name())),
                _ => "start it with the mpirun of the MPI it uses; a Python program that imports mpi4py imports ringpull before \
                      it, and both use the MPI of this mpirun"
                    .to_owned(),
            },
        }),
        _ => Ok(()),
    }
}

/// Initialises MPI with the highest level of threads and finalises it. Returns the number of ranks, and the
/// level that the library gives (`single`, `funneled`, `serialized` or `multiple`). For a process that does
/// nothing else with MPI. Collective.
pub fn initialise_once() -> Result<(usize, &'static str)> {
    let api = api()?;
    let (mut provided, mut size): (c_int, c_int) = (0, 0);
    // SAFETY: nobody else calls MPI in this process; the out-pointers are valid.
    unsafe {
        check("MPI_Init_thread", 0, (api.init_thread)(api.thread_multiple, &raw mut provided))?;
        check("MPI_Comm_size", 0, (api.comm_size)((api.world)(), &raw mut size))?;
        check("MPI_Finalize", 0, (api.finalize)())?;
    }
    let levels = [
        (api.thread_multiple, "multiple"),
        (api.thread_serialized, "serialized"),
        (api.thread_funneled, "funneled"),
        (api.thread_single, "single"),
    ];
    let level = levels.iter().find(|(level, _)| provided >= *level).map_or("unknown", |(_, name)| name);
    Ok((size as usize, level))
}

static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// Records that the program too may call MPI, from other threads, after MPI is initialised here. A Python
/// program that imports mpi4py later does so. To be called before the initialisation.
pub fn share_mpi() {
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// Returns the level of threads to ask for. It is FUNNELED, because one thread of ringpull makes all calls,
/// or MULTIPLE if the program may call MPI too. MULTIPLE costs an uncontended lock in each call, which is
/// little beside a message, but a library may also leave out a faster path. So ringpull asks for MULTIPLE
/// only if it expects calls of others. It does not in a job that goes on without lost ranks, because Open MPI
/// does not promise MULTIPLE there.
pub(super) fn level_wanted(api: &Api, is_elastic: bool) -> c_int {
    if IS_SHARED.load(Ordering::Relaxed) && !is_elastic { api.thread_multiple } else { api.thread_funneled }
}

/// Returns an error if the library lacks the level of threads that this design needs. It needs FUNNELED if
/// the comm thread has initialised MPI, as that thread makes all calls. It needs MULTIPLE if the program has
/// initialised MPI, as the program may call MPI at the same time as the comm thread.
pub(super) fn check_threads(api: &Api, is_initialised_here: bool, provided: c_int) -> Result<()> {
    let levels = [
        ("MPI_THREAD_SINGLE", api.thread_single),
        ("MPI_THREAD_FUNNELED", api.thread_funneled),
        ("MPI_THREAD_SERIALIZED", api.thread_serialized),
        ("MPI_THREAD_MULTIPLE", api.thread_multiple),
    ];
    let (needed, remedy) = if is_initialised_here {
        (levels[1], format!("use an MPI that is built with support for threads; this is {}", library_name()))
    } else {
        let remedy = "initialise MPI by MPI_Init_thread with MPI_THREAD_MULTIPLE, as mpi4py does unless mpi4py.rc says \
                      otherwise; or leave it to create()";
        (levels[3], remedy.to_owned())
    };
    // The standard orders the levels by their numbers.
    if provided >= needed.1 {
        return Ok(());
    }
    let provided = levels.iter().find(|(_, level)| *level == provided).map_or("an unknown level", |(name, _)| name);
    let who = if is_initialised_here { "gives" } else { "was initialised by this program with" };
    Err(Error::KindUnavailable {
        kind: "dist_sync_mpi".to_owned(),
        reason: format!("MPI {who} the thread level {provided}, but the thread that sums needs {}", needed.0),
        remedy,
    })
}

/// Returns true if the library yields the processor whenever nothing has arrived. Open MPI does so if
/// `mpirun` finds that there are more ranks than cores, or is told so. A second yield would then cost another
/// turn of all other processes.
pub(super) fn yields_when_idle(library: &str) -> bool {
    let says =
        |name| config::text(name).map(|value| !matches!(value.as_str(), "0" | "f" | "false" | "n" | "no" | "disabled"));
    let asked = says("OMPI_MCA_mpi_yield_when_idle").or_else(|| says("OMPI_MCA_mpi_oversubscribe"));
    library.starts_with("Open MPI") && asked.unwrap_or(false)
}

/// Sets parameters of the library that the user has not set. Over TCP a message above the eager limit is sent
/// only after a round trip. With a limit above our segments, sums took 1.07 of the bandwidth bound; with Open
/// MPI's 64 KiB they took up to 4.8. Under MPICH they took 1.05; with UCX's limit they took 1.37.
pub(super) fn set_parameters(eager_bytes: Option<usize>) {
    for (name, value) in config::library_settings(eager_bytes) {
        set_parameter(name, &value);
    }
    if !peer_memory::can_read(std::process::id(), peer_memory::probe()) {
        // A filter of system calls forbids it. Open MPI 4 would still try it for each message, with a line on
        // stderr.
        set_parameter("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    }
    if let Some((name, value)) = config::security_mode(&library_name()) {
        set_variable(name, value);
    }
}

/// Sets a parameter that the user has not set, before the library is initialised.
pub(super) fn set_parameter(name: &str, value: &str) {
    if config::text(name).is_none() {
        set_variable(name, value);
    }
}

fn set_variable(name: &str, value: &str) {
    // SAFETY: this runs before MPI starts any thread, on the thread that creates the store's engine, while the
    // caller waits for it.
    unsafe { std::env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_level_below_what_the_comm_thread_needs_is_an_error() {
        let Ok(api) = api() else { return eprintln!("skipped: no MPI") };
        let (single, funneled, serialized, multiple) =
            (api.thread_single, api.thread_funneled, api.thread_serialized, api.thread_multiple);
        for level in [funneled, serialized, multiple] {
            assert_eq!(check_threads(api, true, level), Ok(()));
        }
        assert_eq!(check_threads(api, false, multiple), Ok(()));
        let said = |is_initialised_here, level| check_threads(api, is_initialised_here, level).unwrap_err().to_string();
        let text = said(true, single);
        assert!(text.contains("MPI_THREAD_SINGLE") && text.contains("needs MPI_THREAD_FUNNELED"), "{text}");
        for (level, name) in [(funneled, "MPI_THREAD_FUNNELED"), (serialized, "MPI_THREAD_SERIALIZED")] {
            let text = said(false, level);
            assert!(text.contains(name) && text.contains("needs MPI_THREAD_MULTIPLE"), "{text}");
            assert!(text.contains("hint: initialise MPI by MPI_Init_thread"), "{text}");
        }
    }

    #[test]
    fn a_library_is_called_by_its_name_and_version() {
        assert_eq!(first_words("Open MPI v4.1.4, package: Debian"), "Open MPI 4.1.4");
        assert_eq!(first_words("MPICH Version:      4.0.2\nMPICH Release date:"), "MPICH 4.0.2");
    }
}
