//! Lends candle's CUDA tensors to the store without a copy. It is built only with the CUDA toolkit; otherwise
//! there is only an error.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use ringpull::Devices;

/// Returns `tensor` as a tensor of the store. It must be contiguous, of f32 and on a GPU. The store reads and
/// writes it in the order of candle's stream.
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

/// The same function in a build without candle's CUDA: it returns an error.
#[cfg(not(candle_cuda))]
pub(crate) fn lend(_: &Arc<Devices>, tensor: &Tensor) -> Result<ringpull::Tensor> {
    candle_core::bail!("a tensor on {:?} in a build without candle's CUDA", tensor.device())
}
