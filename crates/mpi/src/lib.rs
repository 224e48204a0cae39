//! MPI behind one table of C functions.
//!
//! The code that calls MPI is built once for each binary interface (Open MPI; MPICH, which Intel MPI shares;
//! the standard one of MPI 5): `plugin.c`, 15 KB each, which `build.rs` compiles with the compilers of MPI
//! that it finds and puts into this crate. Nothing else of ringpull is compiled against an MPI, or linked
//! with one. [`load`] finds the library that this process must use when `dist_sync_mpi` is created, and the
//! plugin that fits it:
//!
//! 1. the MPI that the process has loaded already, as mpi4py does, unless another MPI's `mpirun` started it;
//! 2. the MPI of the `mpirun` that started the process; of that family, the one that `RINGPULL_MPI` names
//!    comes first;
//! 3. without such an `mpirun`: the one that `RINGPULL_MPI` names, that of the environment (`lib/` of a
//!    virtual environment), that of the `mpirun` in the `PATH`, and those that the system's loader finds.
//!
//! It is loaded for all (`RTLD_GLOBAL`): the plugin names no library, and takes the functions that are there.
//!
//! - [`Api`], [`Comm`], [`Requests`]: the functions and types of MPI;
//! - `family`: the binary interfaces; `process`: the MPI, launcher and environment of this process;
//! - `choice`: the libraries to try, in order, or why there is none; `load`: loads them.

mod choice;
mod family;
mod load;
mod process;
mod requests;
mod table;

pub use choice::MissingMpi;
pub use load::{is_rank, load, run_in};
pub use requests::Requests;
pub use table::{Api, Comm, End, SendCall, element};
