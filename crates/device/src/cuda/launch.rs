//! Operations as copies and launches on one stream.
#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use ringpull_base::{DType, Error, Result};
use ringpull_kernels::compress::{Codec, SumFormat};
use ringpull_kernels::optim::Optimizer;

use super::{Gpu, checked};
use crate::handle::Slice;
use crate::kernels::{self, ADDENDS, PAIRS};
use crate::work::{Operation, Work};

/// The number of threads of a block.
const BLOCK: u32 = 256;
/// The number of blocks of a launch per multiprocessor. It is enough to hide the latency of memory.
const BLOCKS_EACH: u32 = 16;

/// `Addends` of sum.cu.
#[repr(C)]
struct SumArguments([u64; ADDENDS]);

/// `Pairs` of copy.cu.
#[repr(C)]
struct CopyArguments {
    from: [u64; PAIRS],
    to: [u64; PAIRS],
    bytes: [u64; PAIRS],
}

/// A stream whose GPU is current.
pub(super) struct StreamQueue<'a> {
    pub(super) gpus: &'a [Gpu],
    pub(super) gpu: &'a Gpu,
    pub(super) stream: sys::CUstream,
}

/// The arguments of a launch, as the driver takes them.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { [$((&raw const $value).cast_mut().cast::<c_void>()),*] };
}

impl StreamQueue<'_> {
    /// Queues `work`.
    pub(super) fn put(&self, work: &Work) -> Result<()> {
        let (reads, writes) = (&work.reads[..], &work.writes[..]);
        match (&work.operation, reads, writes) {
            (Operation::Copy, [from], [to]) => self.copy(from, to),
            (Operation::Copy, _, _) => {
                reads.chunks(PAIRS).zip(writes.chunks(PAIRS)).try_for_each(|(f, t)| self.copy_many(f, t))
            }
            (Operation::Zero, _, [to]) => {
                // SAFETY: the slice lies within memory of this GPU.
                checked("cuMemsetD8Async", unsafe {
                    result::memset_d8_async(to.address(), 0, to.len_bytes(), self.stream)
                })
            }
            (Operation::Sum(dtype), _, [to]) => self.sum(*dtype, reads, to),
            (Operation::Quantise2 { threshold }, [gradient, _], [codes, residual]) => {
                self.quantise("quantise_2bit", [codes, residual, gradient], *threshold)
            }
            (Operation::Quantise1 { threshold }, [gradient, _], [codes, residual]) => {
                self.quantise("quantise_1bit", [codes, residual, gradient], *threshold)
            }
            (Operation::AddDequantised2 { threshold }, [codes, _], [sum]) => {
                let (to, from, len) = (sum.address(), codes.address(), sum.len_bytes() as u64 / 4);
                self.launch("add_dequantised_2bit", len / 4, &mut arguments!(to, from, *threshold, len))
            }
            (Operation::AddDequantised1, [codes, _], [sum]) => {
                let (to, from, len) = (sum.address(), codes.address(), sum.len_bytes() as u64 / 4);
                self.launch("add_dequantised_1bit", len / 8, &mut arguments!(to, from, len))
            }
            (Operation::DecodeSum { codec, count }, [sums], [values]) => self.decode_sum(*codec, *count, sums, values),
            (Operation::Update { optimizer, dtype, updates }, [gradient, ..], [weight, slots @ ..]) => {
                self.update(optimizer, *dtype, *updates, [gradient, weight], slots)
            }
            (operation, _, _) => {
                Err(Error::bug(format!("{operation:?} with {} reads and {} writes", reads.len(), writes.len())))
            }
        }
    }

    fn copy(&self, from: &Slice, to: &Slice) -> Result<()> {
        let (source, target, bytes) = (from.address(), to.address(), to.len_bytes());
        // SAFETY: both slices lie within their memory, which the caller keeps until the stream has done the
        // copy.
        unsafe {
            match (from.device(), to.device()) {
                (None, Some(_)) => {
                    let copied = sys::cuMemcpyHtoDAsync_v2(target, source as *const c_void, bytes, self.stream);
                    checked("cuMemcpyHtoDAsync", copied.result())
                }
                (Some(_), None) => {
                    let copied = sys::cuMemcpyDtoHAsync_v2(target as *mut c_void, source, bytes, self.stream);
                    checked("cuMemcpyDtoHAsync", copied.result())
                }
                (Some(a), Some(b)) if a != b => {
                    let (source_context, target_context) = (self.gpus[a].context, self.gpus[b].context);
                    let copied =
                        result::memcpy_peer_async(target_context, target, source_context, source, bytes, self.stream);
                    checked("cuMemcpyPeerAsync", copied)
                }
                (Some(_), Some(_)) => {
                    checked("cuMemcpyDtoDAsync", result::memcpy_dtod_async(target, source, bytes, self.stream))
                }
                (None, None) => Err(Error::bug("a device's copy from host to host")),
            }
        }
    }

    fn copy_many(&self, from: &[Slice], to: &[Slice]) -> Result<()> {
        let mut pairs = CopyArguments { from: [0; PAIRS], to: [0; PAIRS], bytes: [0; PAIRS] };
        for (index, (from, to)) in from.iter().zip(to).enumerate() {
            (pairs.from[index], pairs.to[index]) = (from.address(), to.address());
            pairs.bytes[index] = to.len_bytes() as u64;
        }
        let longest = pairs.bytes.iter().max().copied().unwrap_or(0);
        self.launch_rows("copy_many", longest / 16, to.len() as u32, &mut arguments!(pairs))
    }

    /// Queues a sum. If it has more addends than a launch takes, the next launch continues with the result of
    /// the previous one.
    fn sum(&self, dtype: DType, addends: &[Slice], to: &Slice) -> Result<()> {
        let (target, size) = (to.address(), dtype.size_bytes() as u64);
        let len = to.len_bytes() as u64 / size;
        let mut rest = addends;
        let mut started = false;
        while !rest.is_empty() {
            let room = ADDENDS - usize::from(started);
            let (now, later) = rest.split_at(room.min(rest.len()));
            let mut list = SumArguments([target; ADDENDS]);
            let first = usize::from(started);
            now.iter().enumerate().for_each(|(index, slice)| list.0[first + index] = slice.address());
            let count = (now.len() + first) as i32;
            self.launch(&kernels::sum(dtype), len * size / 16, &mut arguments!(target, list, count, len))?;
            (rest, started) = (later, true);
        }
        Ok(())
    }

    fn quantise(&self, kernel: &str, [codes, residual, gradient]: [&Slice; 3], threshold: f32) -> Result<()> {
        let (to, left, from) = (codes.address(), residual.address(), gradient.address());
        let len = gradient.len_bytes() as u64 / 4;
        self.launch(kernel, codes.len_bytes() as u64, &mut arguments!(to, left, from, threshold, len))
    }

    fn decode_sum(&self, codec: Codec, count: usize, sums: &Slice, values: &Slice) -> Result<()> {
        let Some(SumFormat { bits, factor, unit }) = codec.stored(count) else {
            return Err(Error::bug(format!("codec {codec:?} on a device does not sum integers")));
        };
        let (to, from, len) = (values.address(), sums.address(), values.len_bytes() as u64 / 4);
        let (bits, count) = (bits as u32, count as i32);
        self.launch("decode_sum", len, &mut arguments!(to, from, bits, factor, count, unit, len))
    }

    fn update(
        &self,
        optimizer: &Optimizer,
        dtype: DType,
        updates: u64,
        [gradient, weight]: [&Slice; 2],
        slots: &[Slice],
    ) -> Result<()> {
        let (rule, step) = optimizer.step_on_device(updates.saturating_add(1));
        let len = (weight.len_bytes() / dtype.size_bytes()) as u64;
        let (to, from) = (weight.address(), gradient.address());
        let mastered = optimizer.multi_precision && dtype.is_half();
        let (slots, master) = slots.split_at(slots.len() - usize::from(mastered));
        let slot = |index: usize| slots.get(index).map_or(0, Slice::address);
        let (slot0, slot1, slot2) = (slot(0), slot(1), slot(2));
        let Some(master) = master.first().map(Slice::address) else {
            let kernel = format!("update_{dtype}");
            return self.launch(&kernel, len, &mut arguments!(to, from, slot0, slot1, slot2, step, rule, len));
        };
        let fresh = i32::from(updates == 0);
        let kernel = format!("update_{dtype}_master");
        self.launch(&kernel, len, &mut arguments!(to, from, slot0, slot1, slot2, master, step, rule, fresh, len))
    }

    fn launch(&self, kernel: &str, threads: u64, arguments: &mut [*mut c_void]) -> Result<()> {
        self.launch_rows(kernel, threads, 1, arguments)
    }

    /// Launches a kernel with `rows` rows of blocks. Each row has blocks for `threads` threads, but at most
    /// `BLOCKS_EACH` blocks per multiprocessor. Threads loop over the remaining elements.
    fn launch_rows(&self, kernel: &str, threads: u64, rows: u32, arguments: &mut [*mut c_void]) -> Result<()> {
        let Some(function) = self.gpu.kernels.get(kernel) else {
            return Err(Error::bug(format!("there is no kernel {kernel}")));
        };
        let blocks = threads.div_ceil(BLOCK.into()).clamp(1, (self.gpu.processors * BLOCKS_EACH).into()) as u32;
        // SAFETY: the arguments match the kernel's definition, and the driver reads them before the call
        // returns. The caller keeps the memory.
        let launched =
            unsafe { result::launch_kernel(*function, (blocks, rows, 1), (BLOCK, 1, 1), 0, self.stream, arguments) };
        checked(kernel, launched)
    }
}
