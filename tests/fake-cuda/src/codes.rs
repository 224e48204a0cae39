//! The error codes that the fake driver returns, and their texts.
#![allow(missing_docs)]

use std::ffi::{CStr, c_int};

/// The result of a call. Its error is a code of the library to which the call belongs.
pub(crate) type Outcome<T> = Result<T, c_int>;

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_INITIALIZED: c_int = 3;
pub const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_PTX: c_int = 218;
pub const UNSUPPORTED_PTX_VERSION: c_int = 222;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const ILLEGAL_ADDRESS: c_int = 700;
pub const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub const ALREADY_REGISTERED: c_int = 712;
pub const NOT_REGISTERED: c_int = 713;
pub const MISALIGNED_ADDRESS: c_int = 716;
pub const NO_BINARY_FOR_GPU: c_int = 209;
pub const PEER_ACCESS_UNSUPPORTED: c_int = 217;
pub const LAUNCH_FAILED: c_int = 719;
pub const NOT_SUPPORTED: c_int = 801;

/// The driver's words for a code, for those that tests read.
pub(crate) fn text(code: c_int) -> Option<&'static CStr> {
    Some(match code {
        0 => c"no error",
        INVALID_VALUE => c"invalid argument",
        OUT_OF_MEMORY => c"out of memory",
        NOT_INITIALIZED => c"initialization error",
        NO_DEVICE => c"no CUDA-capable device is detected",
        INVALID_DEVICE => c"invalid device ordinal",
        INVALID_CONTEXT => c"invalid device context",
        PEER_ACCESS_UNSUPPORTED => c"peer access is not supported between these two devices",
        INVALID_PTX => c"a PTX JIT compilation failed",
        UNSUPPORTED_PTX_VERSION => c"the provided PTX was compiled with an unsupported toolchain.",
        INVALID_HANDLE => c"invalid resource handle",
        NOT_FOUND => c"named symbol not found",
        NOT_READY => c"device not ready",
        ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        PEER_ACCESS_ALREADY_ENABLED => c"peer access is already enabled",
        MISALIGNED_ADDRESS => c"misaligned address",
        NO_BINARY_FOR_GPU => c"no kernel image is available for execution on the device",
        NOT_SUPPORTED => c"operation not supported",
        LAUNCH_FAILED => c"unspecified launch failure",
        _ => return None,
    })
}
