//! Makes tensors of device memory of another library, without a copy: of torch, `CuPy` and JAX by DLPack, and
//! of candle.
//!
//! Such a tensor is ready on its owner's stream, if that is known. Work that is queued there after the store
//! has taken or written the tensor runs after the store's work, as with our own tensors. Otherwise it is
//! ready on a stream of ours. The owner's work must then be ordered before this stream, and the host must
//! wait for this stream before the owner goes on.
#![allow(unsafe_code)]

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use ringpull_base::{DType, Error, Result, Tensor};

use super::devices::{Devices, array_of};
use super::handle::{Memory, Slice, Stream};
use super::loan::{CUDA, CUDA_MANAGED, Loan};
use super::work::Work;

/// A lender that does not know our streams. It is kept until the work of the tensor's stream is done, or for
/// ever if that cannot be determined.
struct HeldLoan {
    stream: Arc<Stream>,
    limit: Duration,
    lender: ManuallyDrop<Box<dyn Any + Send + Sync>>,
}

impl Drop for HeldLoan {
    fn drop(&mut self) {
        match self.stream.record().and_then(|event| event.synchronize(self.limit)) {
            // SAFETY: dropped once, here.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.lender) },
            Err(cause) => tracing::warn!(%cause, "memory lent to a device is not given back"),
        }
    }
}

impl Devices {
    /// Returns the device with this code and number in DLPack, if it is one of these.
    pub fn named_by_dlpack(&self, code: i32, number: i32) -> Option<usize> {
        let code = if code == CUDA_MANAGED { CUDA } else { code };
        (0..self.count()).find(|device| self.platform().dlpack_name(*device) == (code, number))
    }

    /// Returns the device of another library's memory, from an address in the memory.
    pub fn holder_of(&self, address: u64) -> Result<usize> {
        self.platform().device_of(address)
    }

    /// Returns a tensor over a `loan` of `device`'s memory, which `lender` keeps. It is ready on `stream`,
    /// its owner's stream, which must outlive it. If none is given, it is ready on
    /// [`own_stream`](Self::own_stream), and the owner's work must be ordered before that.
    pub fn lent(
        &self,
        device: usize,
        (dtype, shape): (DType, &[usize]),
        loan: &Loan,
        stream: Option<u64>,
        lender: Box<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        let len_bytes = dtype.len_bytes(shape)?;
        if loan.len_bytes() != len_bytes {
            return Err(Error::argument(
                format!("cannot use {} bytes on {} as {dtype} {shape:?}", loan.len_bytes(), self.place(device)),
                "lend as much memory as the tensor has",
            ));
        }
        let (stream, lender): (_, Box<dyn Any + Send + Sync>) = if let Some(id) = stream {
            (Stream::foreign(self.platform(), device, id), lender)
        } else {
            let own = Arc::clone(self.user(device)?);
            let kept = HeldLoan { stream: Arc::clone(&own), limit: self.limit(), lender: ManuallyDrop::new(lender) };
            (own, Box::new(kept))
        };
        let memory = Memory::lent(self.platform(), device, loan, lender)?;
        Ok(self.tensor(dtype, shape, Slice::all(&memory), stream).at(loan.address() as usize))
    }

    /// Returns the platform's name of the stream of `device` for tensors whose owner has given no stream.
    pub fn own_stream(&self, device: usize) -> Result<u64> {
        self.user(device).map(|stream| stream.id())
    }

    /// Copies a tensor on its device. The copy is ready on the tensor's stream. Does not wait for the device.
    pub fn copy_beside(&self, tensor: &Tensor) -> Result<Tensor> {
        let guard = tensor.read_anywhere()?;
        let array = self.array(guard.remote())?;
        let memory = Memory::on(self.platform(), array.device(), array.slice().len_bytes())?;
        let copy = Slice::all(&memory);
        self.platform().enqueue(array.stream(), &Work::copy(array.slice().clone(), copy.clone()))?;
        Ok(self.tensor(tensor.dtype(), tensor.shape(), copy, Arc::clone(array.shared_stream())))
    }

    /// Blocks until the work of the tensor's stream is done. Does nothing if the owner queues its work there
    /// too.
    pub fn settle(&self, tensor: &Tensor) -> Result<()> {
        match array_of(tensor.remote()) {
            Some(array) if !array.stream().is_foreign() => array.stream().record()?.synchronize(self.limit()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::super::loan::EXTENSION;
    use super::*;
    use std::slice::from_ref;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Host memory for simulated devices. It records when it has been returned.
    struct Lender(Arc<AtomicBool>, #[allow(dead_code)] Vec<f32>);

    impl Drop for Lender {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    fn lend(devices: &Devices, device: usize, values: Vec<f32>, stream: Option<u64>) -> (Tensor, Arc<AtomicBool>) {
        let (len, start) = (values.len(), values.as_ptr() as u64);
        let gone = Arc::new(AtomicBool::new(false));
        // SAFETY: the vector lives in the lender and is touched by nobody else.
        let loan = unsafe { Loan::new(start, len * 4) };
        let lender = Box::new(Lender(Arc::clone(&gone), values));
        (devices.lent(device, (DType::F32, &[len]), &loan, stream, lender).unwrap(), gone)
    }

    #[test]
    fn lent_memory_is_summed_where_it_is_and_given_back() {
        let devices = Devices::simulated(2).unwrap();
        let (tensor, gone) = lend(&devices, 1, vec![1.0, 2.0, 3.0], None);
        let array = devices.array(tensor.remote()).unwrap();
        let layout = Layout::new(3, 4, 2);
        let parts = devices.parts(&layout).unwrap();
        devices.lane(1).follow(array.stream()).unwrap();
        devices.join().unwrap();
        let twice = [array.slice().clone(), array.slice().clone()];
        devices.sum_parts(DType::F32, &layout, &twice, &parts, &mut crate::SumScratch::default()).unwrap();
        devices.join().unwrap();
        devices.gather_parts(DType::F32, &layout, &parts, from_ref(array.slice())).unwrap();
        array.stream().follow(devices.lane(1)).unwrap();
        devices.settle(&tensor).unwrap();
        assert_eq!(devices.download(&tensor).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
        drop(twice);
        assert!(!gone.load(Ordering::Acquire));
        devices.drain(Duration::from_secs(10)).unwrap();
        drop(tensor);
        assert!(gone.load(Ordering::Acquire));
    }

    #[test]
    fn the_owners_stream_orders_what_is_lent() {
        let devices = Devices::simulated(1).unwrap();
        let owners = Stream::on(devices.platform(), 0).unwrap();
        let (tensor, _) = lend(&devices, 0, vec![5.0; 4], Some(owners.id()));
        let copy = devices.copy_beside(&tensor).unwrap();
        // The owner goes on at once, on its stream.
        let array = devices.array(tensor.remote()).unwrap();
        devices.platform().enqueue(&owners, &Work::zero(array.slice().clone())).unwrap();
        assert_eq!(devices.download(&copy).unwrap().to_vec::<f32>().unwrap(), [5.0; 4]);
        assert_eq!(devices.download(&tensor).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
    }

    #[test]
    fn a_lender_without_a_stream_is_kept_until_what_is_queued_on_ours_is_done() {
        let devices = Devices::simulated(1).unwrap();
        let (tensor, gone) = lend(&devices, 0, vec![1.0; 1 << 20], None);
        let copy = Slice::all(&Memory::on(devices.platform(), 0, 4 << 20).unwrap());
        let array = devices.array(tensor.remote()).unwrap();
        for _ in 0..50 {
            devices.platform().enqueue(array.stream(), &Work::copy(array.slice().clone(), copy.clone())).unwrap();
        }
        let last = array.stream().record().unwrap();
        drop(tensor);
        assert!(devices.platform().is_done(&last).unwrap() && gone.load(Ordering::Acquire));
    }

    #[test]
    fn devices_have_dlpacks_names() {
        let devices = Devices::simulated(2).unwrap();
        assert_eq!(devices.named_by_dlpack(EXTENSION, 1), Some(1));
        assert_eq!(devices.named_by_dlpack(EXTENSION, 2), None);
        assert_eq!(devices.named_by_dlpack(CUDA, 0), None);
    }

    #[test]
    fn a_loan_is_as_long_as_the_tensor() {
        let devices = Devices::simulated(1).unwrap();
        // SAFETY: no byte is lent.
        let loan = unsafe { Loan::new(0, 0) };
        let error = devices.lent(0, (DType::F32, &[2]), &loan, None, Box::new(())).err().unwrap().to_string();
        assert!(error.contains("0 bytes on sim:0 as f32 [2]"), "{error}");
        devices.lent(0, (DType::F32, &[0]), &loan, None, Box::new(())).unwrap();
    }
}
