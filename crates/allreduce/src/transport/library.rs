//! The MPI library behind the wire: its name, its words and its errors.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use mpi::ffi;

use ringpull_base::{Error, Result, config};

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
    // SAFETY: `text` is longer than MPI_MAX_ERROR_STRING of any MPI (at most 512).
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    String::from_utf8_lossy(&text[..len as usize]).into_owned()
}

/// `Open MPI 4.1.4` or `MPICH 4.0.2`: name and version from the library's own text.
pub(super) fn library_name() -> String {
    first_words(&library_text())
}

fn first_words(text: &str) -> String {
    let words = text.split(['\n', ',']).next().unwrap_or("MPI").trim();
    let plain = words.replacen("Open MPI v", "Open MPI ", 1).replacen("MPICH Version:", "MPICH", 1);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn library_text() -> String {
    let mut text = vec![0u8; 16384];
    let mut len: c_int = 0;
    // SAFETY: may be called at any time; `text` is longer than MPI_MAX_LIBRARY_VERSION_STRING of any MPI (at
    // most 8192).
    unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &raw mut len) };
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(0));
    String::from_utf8_lossy(&text).replace('\t', " ")
}

/// The name and the version of this process's MPI library, such as `Open MPI 4.1.4`.
///
/// An error if it has none: a wheel's code finds its library when it is loaded, and without one the functions
/// of MPI are `crates/loader`'s, whose version is the reason.
pub fn mpi_library() -> Result<String> {
    named(&library_text())
}

fn named(text: &str) -> Result<String> {
    let Some(why) = text.strip_prefix("no MPI\n") else { return Ok(first_words(text)) };
    let (reason, remedy) = why.split_once('\n').unwrap_or((why, "install Open MPI or MPICH"));
    Err(Error::KindUnavailable {
        kind: "dist_sync_mpi".to_owned(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// With another MPI's `mpirun` every process is rank 0 of a world of its own.
pub(super) fn check_launcher(size: usize) -> Result<()> {
    match config::launcher_world_size() {
        Some((name, told)) if told != size => Err(Error::KindUnavailable {
            kind: "dist_sync_mpi".to_owned(),
            reason: format!("{name} says {told} ranks, but this program's {} sees {size}", library_name()),
            remedy: match name {
                "WORLD_SIZE" => "torchrun starts no ranks of MPI: start it with mpirun or `ringpull launch`".to_owned(),
                "SLURM_STEP_NUM_TASKS" => {
                    "let srun start ranks of this MPI (srun --mpi=pmix or pmi2), or start it with \
                                           its mpirun"
                        .to_owned()
                }
                _ => "start it with the mpirun of the MPI it uses; a Python program that imports mpi4py imports ringpull before \
                      it, and both use the MPI of this mpirun"
                    .to_owned(),
            },
        }),
        _ => Ok(()),
    }
}

static IS_SHARED: AtomicBool = AtomicBool::new(false);

/// The program may call MPI too, from other threads, once it is initialised here, as one in Python does that
/// imports mpi4py later. To be called before.
pub fn share_mpi() {
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// The level of threads to ask for. One thread of ours makes all calls, which is FUNNELED; MULTIPLE if the
/// program may call MPI too. It costs a lock that nobody contends for in each call, and one call moves a
/// segment or looks after many; so it costs nothing that matters beside a message, but a library may leave out
/// a faster path. So it is asked for only where calls of others are to be expected, and not in a job that goes
/// on without lost ranks, for which Open MPI does not promise it.
pub(super) fn level_wanted(is_elastic: bool) -> c_int {
    // SAFETY: constants of the library.
    unsafe {
        if IS_SHARED.load(Ordering::Relaxed) && !is_elastic {
            ffi::RSMPI_THREAD_MULTIPLE
        } else {
            ffi::RSMPI_THREAD_FUNNELED
        }
    }
}

/// An error unless the library, initialised by the comm thread or by the program before, has the level that
/// this design needs. A comm thread that initialises MPI makes all calls itself: FUNNELED. If the program has
/// initialised it, calls of its own may come at the same time as those of the comm thread, and nothing keeps
/// them apart: MULTIPLE.
pub(super) fn check_threads(is_initialised_here: bool, provided: c_int) -> Result<()> {
    // SAFETY: constants of the library.
    let levels = unsafe {
        [
            ("MPI_THREAD_SINGLE", ffi::RSMPI_THREAD_SINGLE),
            ("MPI_THREAD_FUNNELED", ffi::RSMPI_THREAD_FUNNELED),
            ("MPI_THREAD_SERIALIZED", ffi::RSMPI_THREAD_SERIALIZED),
            ("MPI_THREAD_MULTIPLE", ffi::RSMPI_THREAD_MULTIPLE),
        ]
    };
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

/// Whether the library yields the processor whenever nothing has come, as Open MPI does where `mpirun` finds
/// or knows that there are more ranks than cores. Yielding once more would cost another turn of all others.
pub(super) fn yields_when_idle(library: &str) -> bool {
    let says =
        |name| config::text(name).map(|value| !matches!(value.as_str(), "0" | "f" | "false" | "n" | "no" | "disabled"));
    let asked = says("OMPI_MCA_mpi_yield_when_idle").or_else(|| says("OMPI_MCA_mpi_oversubscribe"));
    library.starts_with("Open MPI") && asked.unwrap_or(false)
}

/// What the library named so calls `MPI_IN_PLACE`, a macro of C that rsmpi does not hand on: what Open MPI's
/// header says, and what the common ABI of MPICH 3 to 5 and of Intel MPI says.
pub(super) fn in_place(library: &str) -> Option<*const c_void> {
    const FIRST: *const c_void = std::ptr::without_provenance(1);
    const LAST: *const c_void = std::ptr::without_provenance(usize::MAX);
    if library.starts_with("Open MPI") {
        return Some(FIRST);
    }
    ["MPICH 3.", "MPICH 4.", "MPICH 5.", "Intel(R) MPI"].iter().any(|name| library.starts_with(name)).then_some(LAST)
}

/// Over TCP a message above the eager limit is sent only after a round trip. A limit above our segments
/// measured 1.07 of the bandwidth bound where Open MPI's 64 KiB took up to 4.8, and 1.05 where UCX's took
/// 1.37 under MPICH. What the user has set is left as it is.
pub(super) fn set_parameters(eager_bytes: Option<usize>) {
    for (name, value) in config::library_settings(eager_bytes) {
        set_parameter(name, &value);
    }
}

/// Sets a parameter that the user has not set, before the library is initialised.
pub(super) fn set_parameter(name: &str, value: &str) {
    if config::text(name).is_none() {
        // SAFETY: this runs before MPI starts any thread, on the thread that creates the store's engine,
        // while the caller waits for it.
        unsafe { std::env::set_var(name, value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_level_below_what_the_comm_thread_needs_is_an_error() {
        // SAFETY: constants of the library.
        let (single, funneled, serialized, multiple) = unsafe {
            (
                ffi::RSMPI_THREAD_SINGLE,
                ffi::RSMPI_THREAD_FUNNELED,
                ffi::RSMPI_THREAD_SERIALIZED,
                ffi::RSMPI_THREAD_MULTIPLE,
            )
        };
        for level in [funneled, serialized, multiple] {
            assert_eq!(check_threads(true, level), Ok(()));
        }
        assert_eq!(check_threads(false, multiple), Ok(()));
        let said = |is_initialised_here, level| check_threads(is_initialised_here, level).unwrap_err().to_string();
        let text = said(true, single);
        assert!(text.contains("MPI_THREAD_SINGLE") && text.contains("needs MPI_THREAD_FUNNELED"), "{text}");
        for (level, name) in [(funneled, "MPI_THREAD_FUNNELED"), (serialized, "MPI_THREAD_SERIALIZED")] {
            let text = said(false, level);
            assert!(text.contains(name) && text.contains("needs MPI_THREAD_MULTIPLE"), "{text}");
            assert!(text.contains("hint: initialise MPI by MPI_Init_thread"), "{text}");
        }
    }

    #[test]
    fn a_process_without_a_library_says_why_and_what_helps() {
        assert_eq!(named("Open MPI v4.1.4, package: Debian"), Ok("Open MPI 4.1.4".to_owned()));
        assert_eq!(named("MPICH Version:      4.0.2\nMPICH Release date:"), Ok("MPICH 4.0.2".to_owned()));
        let text = named("no MPI\nno library of MPI was found\ninstall one").unwrap_err().to_string();
        assert!(text.contains("no library of MPI was found") && text.contains("hint: install one"), "{text}");
    }

    #[test]
    fn only_libraries_whose_word_for_it_is_known_sum_in_place() {
        for (library, word) in [
            ("Open MPI 4.1.4", Some(1)),
            ("MPICH 4.0.2", Some(usize::MAX)),
            ("Intel(R) MPI Library 2021.12 for Linux* OS", Some(usize::MAX)),
            ("MPICH 5.0.0", Some(usize::MAX)),
            ("MPICH 6.0.0", None),
            ("MPI of somebody", None),
        ] {
            assert_eq!(in_place(library).map(|word| word as usize), word, "{library}");
        }
    }
}
