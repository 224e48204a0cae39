//! The table of a plugin, as `plugin.c` has it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

/// A communicator, whatever it is to the library. It stays on one thread, as all calls of MPI do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Comm(u64, PhantomData<*mut ()>);

impl Comm {
    /// A value to be overwritten by the call that makes a communicator.
    pub const UNSET: Comm = Comm(0, PhantomData);
}

/// Numbers of the element types that every MPI sums.
#[allow(missing_docs, reason = "each is named after the type")]
pub mod element {
    use std::ffi::c_int;

    pub const F32: c_int = 0;
    pub const F64: c_int = 1;
    pub const I8: c_int = 2;
    pub const U8: c_int = 3;
    pub const I32: c_int = 4;
    pub const I64: c_int = 5;
}

/// The end of one request.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct End {
    /// Its place among the requests of the call.
    pub index: c_int,
    /// 0, or MPI's error code.
    pub error: c_int,
}

/// The functions of MPI that the engine calls. Each returns MPI's code unless its comment states otherwise,
/// and may be called as the MPI standard allows for the function of its name.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "each is named after MPI's own function, which its manual describes")]
pub struct Api {
    pub(crate) version: c_uint,
    /// The size of a request in memory.
    pub(crate) request_bytes: c_uint,
    /// The size of a status.
    pub(crate) status_bytes: c_uint,
    /// The name of the interface, for people.
    #[allow(dead_code, reason = "scripts/wheel reads it")]
    interface: *const c_char,
    pub thread_single: c_int,
    pub thread_funneled: c_int,
    pub thread_serialized: c_int,
    pub thread_multiple: c_int,
    pub get_library_version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int,
    pub error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    pub initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub finalized: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub finalize: unsafe extern "C" fn() -> c_int,
    pub query_thread: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub init_thread: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    /// `MPI_COMM_WORLD`.
    pub world: unsafe extern "C" fn() -> Comm,
    /// `MPI_COMM_SELF`.
    pub comm_self: unsafe extern "C" fn() -> Comm,
    /// `MPI_Comm_set_errhandler` with `MPI_ERRORS_RETURN`.
    pub set_errors_return: unsafe extern "C" fn(Comm) -> c_int,
    pub comm_rank: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub comm_size: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub comm_split: unsafe extern "C" fn(Comm, c_int, c_int, *mut Comm) -> c_int,
    /// `MPI_Comm_split_type` by hosts.
    pub comm_split_hosts: unsafe extern "C" fn(Comm, c_int, *mut Comm) -> c_int,
    pub comm_free: unsafe extern "C" fn(Comm) -> c_int,
    /// `MPI_Iprobe` for any message.
    pub probe: unsafe extern "C" fn(Comm) -> c_int,
    pub isend: SendCall,
    pub issend: SendCall,
    pub irecv: unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, Comm, *mut c_void) -> c_int,
    pub(crate) testsome:
        unsafe extern "C" fn(c_int, *mut c_void, *mut c_int, *mut c_void, *mut c_int, *mut End) -> c_int,
    /// `MPI_Request_get_status`.
    pub(crate) is_done: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub(crate) get_count: unsafe extern "C" fn(*const c_void, c_int, *mut c_int) -> c_int,
    pub(crate) wait: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    /// `MPI_Bcast` of bytes.
    pub bcast: unsafe extern "C" fn(*mut c_void, c_int, c_int, Comm) -> c_int,
    /// `MPI_Allreduce`, a sum in place.
    pub allreduce: unsafe extern "C" fn(*mut c_void, c_int, c_int, Comm) -> c_int,
    /// `MPI_Allgather` of bytes.
    pub allgather: unsafe extern "C" fn(*const c_void, c_int, *mut c_void, Comm) -> c_int,
    /// `MPI_Alltoall` of bytes.
    pub alltoall: unsafe extern "C" fn(*const c_void, c_int, *mut c_void, Comm) -> c_int,
    /// `MPI_Reduce_scatter_block`, a sum.
    pub reduce_scatter: unsafe extern "C" fn(*const c_void, *mut c_void, c_int, c_int, Comm) -> c_int,
    /// Returns 1 if the library has the three functions that follow, and 0 otherwise; no error code.
    pub survives_losses: unsafe extern "C" fn() -> c_int,
    /// `MPIX_Comm_get_failed`: the number of ranks that have failed, and those of them for which there is
    /// room.
    pub get_failed: unsafe extern "C" fn(Comm, *mut c_int, c_int, *mut c_int) -> c_int,
    pub ack_failed: unsafe extern "C" fn(Comm, c_int, *mut c_int) -> c_int,
    pub agree: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
}

// SAFETY: the table is constant, and its text too.
unsafe impl Sync for Api {}

/// `MPI_Isend` or `MPI_Issend` of bytes: data, their number, the rank they go to, the tag, the communicator,
/// the place of the request.
pub type SendCall = unsafe extern "C" fn(*const c_void, c_int, c_int, c_int, Comm, *mut c_void) -> c_int;
