//! Makes tensors of cudarc's slices, without a copy. candle's CUDA tensors are such slices.
#![allow(unsafe_code)]

use std::any::Any;

use cudarc::driver::{CudaSlice, DevicePtr};

use ringpull_base::{Element, Error, Result, Tensor};

use crate::{CUDA, Devices, Loan};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

impl Devices {
    /// Returns a tensor over all elements of `slice`, which `lender` keeps, in C order of `shape`. It is
    /// ready on the slice's own stream: work that is queued there after a store's call has released the
    /// tensor runs after the store's work. cudarc does not know of this order, so other streams of cudarc
    /// must be made to wait for the slice's stream.
    ///
    /// Returns an error if the slice is on none of these devices, or on the per-thread default stream.
    ///
    /// # Safety
    /// The slice is not dropped before `lender`, and only work on its stream touches its elements.
    pub unsafe fn lent_slice<T: Element>(
        &self,
        slice: &CudaSlice<T>,
        shape: &[usize],
        lender: Box<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        let (stream, ordinal) = (slice.stream(), slice.ordinal());
        let device = self.named_by_dlpack(CUDA, ordinal as i32).ok_or_else(|| {
            let known: Vec<String> = (0..self.count()).map(|device| self.place(device)).collect();
            Error::argument(
                format!("a slice on GPU {ordinal} for a store that works on {}", known.join(", ")),
                "open the GPU that the slice is on",
            )
        })?;
        if stream.cu_stream() as usize == PER_THREAD {
            return Err(Error::argument(
                "a slice on the per-thread default stream, which a store's threads cannot use",
                "work on a stream of your own: `CudaContext::new_stream`, candle's `Device::new_cuda_with_stream`",
            ));
        }
        let (address, used) = slice.device_ptr(stream);
        drop(used);
        // SAFETY: the slice has that many bytes there; the caller promises the rest.
        let loan = unsafe { Loan::new(address, slice.num_bytes()) };
        self.lent(device, (T::DTYPE, shape), &loan, Some(stream.cu_stream() as u64), lender)
    }
}
