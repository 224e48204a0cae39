//! Programs that initialise MPI themselves before they create a store.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use ringpull_base::config;

/// The levels of thread support that the tests ask for, as Open MPI and MPICH number them.
pub(crate) const SERIALIZED: c_int = 2;
pub(crate) const MULTIPLE: c_int = 3;

type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;

/// The MPI of the `mpirun` that started this process, loaded for this program alone, as mpi4py loads it.
fn library() -> Library {
    let name = if config::text("OMPI_COMM_WORLD_RANK").is_some() { "libmpi.so.40" } else { "libmpich.so.12" };
    // SAFETY: an MPI does nothing when it is loaded.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.unwrap()
}

/// Initialises MPI with this level; this process's rank.
pub(crate) fn initialise(level: c_int) -> usize {
    let mut provided = 0;
    let library = library();
    // SAFETY: every MPI has this function, which takes null arguments.
    let code = unsafe {
        let initialise: Symbol<InitThread> = library.get(b"MPI_Init_thread").unwrap();
        initialise(null_mut(), null_mut(), level, &raw mut provided)
    };
    assert_eq!((code, provided), (0, level));
    // It stays until the process ends.
    std::mem::forget(library);
    let rank = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(config::text);
    rank.unwrap().parse().unwrap()
}

/// Ends MPI, as the program does that initialised it.
pub(crate) fn finalise() {
    let library = library();
    // SAFETY: as above; nothing of MPI is under way.
    let code = unsafe {
        let finalise: Symbol<unsafe extern "C" fn() -> c_int> = library.get(b"MPI_Finalize").unwrap();
        finalise()
    };
    assert_eq!(code, 0);
}
