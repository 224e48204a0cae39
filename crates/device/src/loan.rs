//! The description of memory that another library lends: its address, its length, and `DLPack`'s codes of
//! devices.
//!
//! `handle` owns such memory, platforms register it, and `lent` makes tensors of it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use ringpull_base::Buffer;

/// `kDLCUDA`: memory of a GPU of NVIDIA.
pub const CUDA: i32 = 2;
/// `kDLCUDAManaged`: memory that migrates, which a GPU uses as its own.
pub(super) const CUDA_MANAGED: i32 = 13;
/// `kDLExtDev`: reserved for tests of devices that DLPack does not know, such as simulated ones.
pub(super) const EXTENSION: i32 = 12;

/// A range of a device's memory that its owner has promised to keep.
pub struct Loan {
    address: u64,
    len_bytes: usize,
}

impl Loan {
    /// Returns a loan of `len_bytes` bytes from `address`.
    ///
    /// # Safety
    /// The bytes are memory of the device with which the loan is used (host memory if the device is
    /// simulated), and are aligned for their elements. They stay valid as long as the lender that is passed
    /// with the loan lives. They are touched only in the order of the stream on which the tensor over them is
    /// ready, or when the store is done with it.
    pub unsafe fn new(address: u64, len_bytes: usize) -> Self {
        Loan { address, len_bytes }
    }

    /// The address, as the lender names it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes, for devices whose memory is the host's.
    pub(super) fn as_host(&self) -> Buffer {
        let start = NonNull::new(self.address as *mut u8).unwrap_or(NonNull::<u64>::dangling().cast());
        // SAFETY: as the caller of `new` promises.
        unsafe { Buffer::foreign(start, self.len_bytes, Box::new(())) }
    }
}
