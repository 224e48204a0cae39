//! Finds the MPI that this process should use and loads it, before code that is built against it.
//!
//! A wheel holds its native code twice: built against Open MPI, and against MPICH, whose binary interface
//! Intel MPI shares. Each copy is both the command and the native part of the Python package. Neither names a
//! library of MPI, so it takes the functions of whichever MPI the process has loaded for all (`RTLD_GLOBAL`).
//! Which one that is:
//!
//! 1. the MPI that the process has loaded already, as mpi4py does;
//! 2. the MPI of the `mpirun` that started the process; of that family, the one that `RINGPULL_MPI` names
//!    comes first;
//! 3. without such an `mpirun`: the one that `RINGPULL_MPI` names, that of the environment (`lib/` of a
//!    virtual environment), that of the `mpirun` in the `PATH`, and what the system's loader finds.
//!
//! If there is none, the copy for MPICH is loaded together with a small library. All its MPI functions fail,
//! and its version string is the reason. So the kinds without MPI work, and `dist_sync_mpi` is an error that
//! says what was found.
//!
//! - [`family`]: the two binary interfaces; `process`: what this process says of itself and of its launcher;
//! - `choice`: the libraries to try, in order, or why there is none;
//! - `load`: loads the MPI and the code;
//! - [`installed`]: where pip has put that code, seen from the command.

mod choice;
pub mod family;
pub mod installed;
mod load;
mod process;

pub use load::{load, run, run_without_mpi};
