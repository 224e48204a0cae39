//! MPI behind one table of C functions.
//!
//! The code that calls MPI is one file, `plugin.c`. `build.rs` compiles it once for each binary interface
//! (Open MPI; MPICH, which Intel MPI shares; the standard one of MPI 5) whose MPI compiler it finds, and puts
//! the results, 15 KB each, into this crate. Nothing else of ringpull is compiled against an MPI, or linked
//! with one. [`load`] finds the library that this process must use when `dist_sync_mpi` is created, and the
//! plugin that fits it:
//!
//! 1. the MPI that the process has loaded already, as mpi4py does, unless another MPI's `mpirun` started it;
//! 2. the MPI of the `mpirun` that started the process; if `RINGPULL_MPI` names another library of the same
//!    family, that library comes first;
//! 3. without such an `mpirun`: the MPI that `RINGPULL_MPI` names, then the MPI in `lib/` of the virtual
//!    environment, then the MPI of the `mpirun` in the `PATH`, and then those that the system's loader finds.
//!
//! The library is loaded with `RTLD_GLOBAL`, so the whole process sees it. The plugin is linked with no
//! library, and uses the functions that are loaded.
//!
//! - [`Api`], [`Comm`], [`Requests`]: the functions and types of MPI;
//! - `family`: the binary interfaces; `process`: the MPI, launcher and environment of this process;
//! - `choice`: the libraries to try, in order, or the reason that there is none; `load`: loads them.

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
