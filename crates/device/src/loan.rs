//! The description of memory that another library lends: its bytes, and `DLPack`'s kind of device.
//!
//! `handle` keeps such memory, platforms take it in, and `lent` makes tensors of it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use ringpull_base::Buffer;

/// `kDLCUDA`: memory of a GPU of NVIDIA.
pub const CUDA: i32 = 2;
/// `kDLCUDAManaged`: memory that migrates, which a GPU uses as its own.
pub(super) const CUDA_MANAGED: i32 = 13;
/// `kDLExtDev`: reserved for tests of devices that DLPack does not know, such as simulated ones.
pub(super) const EXTENSION: i32 = 12;

/// Bytes of a device's memory that their owner has promised to keep.
pub struct Loan {
    address: u64,
    len_bytes: usize,
}

impl Loan {
    /// `len_bytes` bytes from `address`.
    ///
    /// # Safety
    /// They are memory of the device that the loan is used with, which is the host's where the
    /// device is simulated, aligned for the elements that they hold, and stay so for as long as the lender
    /// given along with the loan lives. Nobody touches them but in the order of the stream that the tensor
    /// over them is ready on, or when the store is done with it.
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
        // SAFETY: as `new` was promised.
        unsafe { Buffer::foreign(start, self.len_bytes, Box::new(())) }
    }
}
