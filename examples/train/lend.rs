//! candle's CUDA tensors as the store's, without a copy. Built where the CUDA toolkit is, as `net::device`
//! says; elsewhere only the words remain.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use ringpull::Devices;

/// `tensor`, of f32 on a GPU and contiguous, as the store's: reading and writing it follows the order of
/// candle's stream.
#[cfg(candle_cuda)]
#[allow(unsafe_code)]
pub(crate) fn lend(devices: &Arc<Devices>, tensor: &Tensor) -> Result<ringpull::Tensor> {
    use candle_core::{Storage, cuda::CudaStorageSlice};

    let kept = tensor.contiguous()?;
    let (storage, layout) = kept.storage_and_layout();
    let lent = match &*storage {
        Storage::Cuda(cuda) if layout.start_offset() == 0 => match &cuda.slice {
            CudaStorageSlice::F32(slice) if slice.len() == kept.elem_count() => {
                // SAFETY: the tensor keeps its storage, and candle works on one stream, the slice's.
                unsafe { devices.lent_slice(slice, kept.dims(), Box::new(kept.clone())) }
                    .map_err(candle_core::Error::wrap)
            }
            _ => candle_core::bail!("the store is lent whole tensors of f32"),
        },
        _ => candle_core::bail!("the store is lent whole tensors on a GPU"),
    };
    drop(storage);
    lent
}

/// As above, in a build that has no such tensors.
#[cfg(not(candle_cuda))]
pub(crate) fn lend(_: &Arc<Devices>, tensor: &Tensor) -> Result<ringpull::Tensor> {
    candle_core::bail!("a tensor on {:?} in a build without candle's CUDA", tensor.device())
}
