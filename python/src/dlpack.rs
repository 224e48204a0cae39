//! DLPack's structures, unversioned and versioned, as in DLPack's header.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fmt;

use ringpull_base::ElementType;
use ringpull_device as device;

pub(crate) const NAME: &CStr = c"dltensor";
pub(crate) const USED_NAME: &CStr = c"used_dltensor";
pub(crate) const VERSIONED_NAME: &CStr = c"dltensor_versioned";
pub(crate) const USED_VERSIONED_NAME: &CStr = c"used_dltensor_versioned";

/// The flag of a versioned tensor that is read-only.
pub(crate) const READ_ONLY: u64 = 1;

/// The kinds of memory that the host can read: `kDLCPU` and `kDLCUDAHost`.
const HOST_DEVICES: [i32; 2] = [1, 3];

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

impl Device {
    /// Returns true if the host can read the device's memory.
    pub(crate) fn is_host(self) -> bool {
        HOST_DEVICES.contains(&self.kind)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            device::CUDA => write!(out, "cuda:{}", self.id),
            kind => write!(out, "DLPack device {kind}:{}", self.id),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

#[repr(C)]
pub(crate) struct Managed {
    pub(crate) tensor: DlTensor,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
pub(crate) struct Versioned {
    pub(crate) version: [u32; 2],
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub(crate) flags: u64,
    pub(crate) tensor: DlTensor,
}

impl DlTensor {
    /// The element type, if tensors of this type can be sent.
    pub(crate) fn element(&self) -> Option<&'static ElementType> {
        let DataType { code, bits, lanes } = self.dtype;
        ElementType::of_dlpack(code, bits.into()).filter(|_| lanes == 1)
    }

    /// The lengths of the dimensions.
    ///
    /// # Safety
    /// `shape` points to `ndim` numbers, as DLPack promises.
    pub(crate) unsafe fn shape(&self) -> Vec<usize> {
        // SAFETY: the caller's promise.
        unsafe { numbers(self.shape, self.ndim) }.into_iter().map(|len| len as usize).collect()
    }

    /// The strides in elements; `None` for C order.
    ///
    /// # Safety
    /// `strides` is null or points to `ndim` numbers, as DLPack promises.
    pub(crate) unsafe fn strides(&self) -> Option<Vec<i64>> {
        // SAFETY: the caller's promise.
        (!self.strides.is_null()).then(|| unsafe { numbers(self.strides, self.ndim) })
    }
}

unsafe fn numbers(start: *const i64, count: i32) -> Vec<i64> {
    if count <= 0 || start.is_null() {
        return Vec::new();
    }
    // SAFETY: the callers' promise.
    unsafe { std::slice::from_raw_parts(start, count as usize) }.to_vec()
}
