//! GPUs of NVIDIA, over the CUDA driver, NVRTC and NCCL, each loaded at run time.
//!
//! `gpu` opens one GPU, `nccl` calls NCCL, `compile` calls NVRTC, `launch` turns operations into launches,
//! and `survey` reports the machine's GPUs and libraries. The code uses cudarc's `result` and `sys` levels,
//! because its safe level tracks streams in its own way. Every entry point first checks that the library is
//! present, because cudarc panics if it is not.
#![allow(unsafe_code)]

mod compile;
mod gpu;
mod launch;
mod nccl;
mod slices;
mod survey;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use gpu::Gpu;
use parking_lot::{Mutex, RwLock};

use ringpull_base::{Buffer, DType, Error, Result};

use super::handle::{Event, Slice, Stream};
use super::loan::{self, Loan};
use super::work::{Collective, CollectiveKind, Work};
use super::{GoOn, Meeting, PinnedHost, Platform, Turn, UniqueId, failed};
pub(super) use survey::survey;

/// The GPUs of this process.
pub(super) struct Cuda {
    gpus: Vec<Gpu>,
    group: Option<nccl::Group>,
    joined: Mutex<BTreeMap<u64, Arc<nccl::Group>>>,
    next: AtomicU64,
    /// The streams that were created and not destroyed, with the device of each.
    streams: Mutex<BTreeMap<u64, usize>>,
    /// True if some work stays on a device until the process ends.
    is_stuck: Arc<AtomicBool>,
}

// SAFETY: contexts and functions may be used by any thread that has made the context current, as every call
// here does.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

fn checked<T>(call: &str, outcome: std::result::Result<T, DriverError>) -> Result<T> {
    outcome.map_err(|cause| {
        let text = cause.error_string().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
        failed("CUDA driver", call, cause.0 as i64, text)
    })
}

/// The names of the driver's library.
const DRIVER: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Returns true if a library can be loaded under one of these names. cudarc tries the same names and panics
/// if none loads. cudarc's own check cannot be used in builds in which candle makes cudarc link the library.
fn is_present(names: &[&str]) -> bool {
    // SAFETY: the initialisers of CUDA's libraries have no conditions. They stay loaded.
    names.iter().any(|name| unsafe { libloading::Library::new(*name) }.map(std::mem::forget).is_ok())
}

/// Initializes the driver. The error names the libraries that were searched for.
fn start_driver() -> Result<()> {
    if !is_present(&DRIVER) {
        return Err(Error::argument(
            "the CUDA driver was not found: looked for libcuda.so and libcuda.so.1 where the loader looks",
            "install NVIDIA's driver, or put the folder of libcuda.so.1 into LD_LIBRARY_PATH",
        ));
    }
    checked("cuInit", result::init())
}

/// A version of CUDA, major and minor.
type Version = (c_int, c_int);

/// Returns the newest version of CUDA that the driver supports.
fn driver_version() -> Result<Version> {
    let mut version = 0;
    // SAFETY: writes one int.
    checked("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) }.result())?;
    Ok((version / 1000, version % 1000 / 10))
}

impl Cuda {
    /// Opens the GPUs with these ordinals, or all GPUs. A GPU that is named twice becomes two devices. This
    /// is slower than one device, and useful in tests.
    pub(super) fn open(which: Option<Vec<usize>>) -> Result<Arc<Self>> {
        start_driver()?;
        let count = checked("cuDeviceGetCount", result::device::get_count())? as usize;
        let which = which.unwrap_or_else(|| (0..count).collect());
        if which.is_empty() || which.iter().any(|ordinal| *ordinal >= count) {
            return Err(Error::argument(
                format!("invalid GPUs {which:?}: the driver shows {count}"),
                "look at nvidia-smi and CUDA_VISIBLE_DEVICES",
            ));
        }
        let gpus = which.iter().map(|ordinal| Gpu::open(*ordinal as c_int)).collect::<Result<Vec<_>>>()?;
        let ordinals: Vec<c_int> = gpus.iter().map(|gpu| gpu.ordinal).collect();
        for gpu in &gpus {
            gpu.reach(&gpus)?;
        }
        // NCCL accepts each GPU only once. If a GPU is named twice, its two devices exchange data by copies.
        let distinct = (1..ordinals.len()).all(|index| !ordinals[..index].contains(&ordinals[index]));
        let group = if distinct { nccl::Group::new(&ordinals)? } else { None };
        let (next, is_stuck) = (AtomicU64::new(1), Arc::new(AtomicBool::new(false)));
        Ok(Arc::new(Cuda { gpus, group, joined: Mutex::default(), next, streams: Mutex::default(), is_stuck }))
    }

    fn current(&self, device: usize) -> Result<&Gpu> {
        let gpu = &self.gpus[device];
        // SAFETY: the context is held for as long as the GPU.
        checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(gpu.context) })?;
        Ok(gpu)
    }

    /// Returns true if `answers` accepts the driver's status of any stream.
    fn any_stream(&self, mut answers: impl FnMut(sys::CUresult) -> bool) -> bool {
        self.streams.lock().iter().any(|(stream, device)| {
            // SAFETY: the stream is not destroyed before the lock is given back.
            self.current(*device).is_ok_and(|_| answers(unsafe { sys::cuStreamQuery(*stream as sys::CUstream) }))
        })
    }

    /// Returns the outcome of a call of NCCL, with a better error if a device has failed. NCCL then reports
    /// only that CUDA failed, but a stream of the failed device has the cause.
    fn explained<T>(&self, outcome: Result<T>) -> Result<T> {
        let Err(of_nccl) = outcome else { return outcome };
        let mut of_device = None;
        self.any_stream(|answer| {
            let is_failure = !matches!(answer, sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY);
            if is_failure {
                of_device = checked("cuStreamQuery", answer.result()).err();
            }
            is_failure
        });
        Err(of_device.unwrap_or(of_nccl))
    }

    /// Waits for the present work of the device's streams, as the driver does when memory is freed. Ends a
    /// collective in which a device has failed, because the other devices would wait for it for ever.
    fn drain(&self, device: usize) {
        let Some(group) = self.group.as_ref().filter(|group| group.is_alive()) else { return };
        let mark = |stream: &u64| -> Option<sys::CUevent> {
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).ok()?;
            // SAFETY: the stream is not destroyed before the lock is given back, and both are of this device.
            unsafe { result::event::record(event, *stream as sys::CUstream) }.is_ok().then_some(event)
        };
        if self.current(device).is_err() {
            return;
        }
        let own = |(stream, of): (&u64, &usize)| (*of == device).then_some(*stream);
        let marks: Vec<sys::CUevent> =
            self.streams.lock().iter().filter_map(own).filter_map(|stream| mark(&stream)).collect();
        let not_ready = sys::CUresult::CUDA_ERROR_NOT_READY;
        // SAFETY: the events were made above.
        let is_busy = |event: &sys::CUevent| unsafe { sys::cuEventQuery(*event) } == not_ready;
        while self.current(device).is_ok() && marks.iter().any(is_busy) {
            if group.is_condemned() || self.any_stream(|it| it != sys::CUresult::CUDA_SUCCESS && it != not_ready) {
                self.abort();
                break;
            }
            std::thread::sleep(nccl::LOOK);
        }
        marks.into_iter().for_each(|event| self.destroy_event(device, event as u64));
    }

    /// Waits until `until` for all streams to finish. Returns true if they finish in time.
    fn is_idle_by(&self, until: Instant) -> bool {
        while self.any_stream(|outcome| outcome == sys::CUresult::CUDA_ERROR_NOT_READY) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Returns the ordinal of the GPU whose memory holds this address. Any context may be current.
fn ordinal_of(address: u64) -> Result<c_int> {
    let mut ordinal: c_int = -1;
    let asked = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: writes one int; an address that the driver does not know is an error and no fault.
    let outcome = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), asked, address) };
    checked("cuPointerGetAttribute", outcome.result()).map(|()| ordinal)
}

/// Pinned memory. It is freed with its buffer, unless a device may use it until the process ends.
struct PinnedMemory {
    start: *mut c_void,
    is_stuck: Arc<AtomicBool>,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; the pointer is only given back.
unsafe impl Sync for PinnedMemory {}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.is_stuck.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the memory came from `cuMemHostAlloc` and is freed once. Portable memory can be freed in
        // any context.
        if let Err(cause) = unsafe { result::free_host(self.start) } {
            tracing::debug!(%cause, "cuMemFreeHost");
        }
    }
}

/// Memory that ranks of this host share, and the driver has pinned.
struct PinnedShare {
    buffer: Option<Buffer>,
    is_stuck: Arc<AtomicBool>,
}

impl Drop for PinnedShare {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        if !self.is_stuck.load(Ordering::Acquire) {
            // SAFETY: the memory was registered by `share_pinned` and is unregistered once.
            match unsafe { sys::cuMemHostUnregister(buffer.bytes_mut().as_mut_ptr().cast()) }.result() {
                Ok(()) => return,
                Err(cause) => tracing::debug!(%cause, "cuMemHostUnregister"),
            }
        }
        // A device may use the memory until the process ends.
        std::mem::forget(buffer);
    }
}

impl Cuda {
    /// Returns pinned memory in which the ranks of this host sum without a further copy. Returns `None` if
    /// the ranks share no memory, or the driver does not pin it.
    fn share_pinned(&self, len_bytes: usize) -> Option<(u64, PinnedHost)> {
        let mut buffer = Buffer::zeroed_for_peers(len_bytes)?;
        let start = buffer.bytes_mut().as_mut_ptr();
        // SAFETY: the memory is mapped, has this length, and stays mapped until it is unregistered. No other
        // registration shares its pages.
        let pinned =
            unsafe { sys::cuMemHostRegister_v2(start.cast(), len_bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }.result();
        if let Err(cause) = pinned {
            tracing::debug!(%cause, len_bytes, "memory that ranks share is not pinned");
            return None;
        }
        let owner = Box::new(PinnedShare { buffer: Some(buffer), is_stuck: Arc::clone(&self.is_stuck) });
        // SAFETY: the memory has this length, is page-aligned, belongs to this buffer alone, and lives as
        // long as its owner. Accesses by the devices and other ranks are ordered against the host's accesses.
        let buffer = unsafe { Buffer::foreign(NonNull::new(start)?, len_bytes, owner) };
        Some((start as u64, Arc::new(RwLock::new(buffer))))
    }
}

impl Platform for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn count(&self) -> usize {
        self.gpus.len()
    }

    fn describe(&self, device: usize) -> String {
        let gpu = &self.gpus[device];
        format!("{} (GPU {})", gpu.name, gpu.ordinal)
    }

    fn has_collectives(&self) -> bool {
        self.group.is_some()
    }

    fn allocate(&self, device: usize, len_bytes: usize) -> Result<u64> {
        self.current(device)?;
        // SAFETY: a caller that reads the memory before writing it breaks the contract of `Memory`, but no
        // rule of Rust.
        checked("cuMemAlloc", unsafe { result::malloc_sync(len_bytes) })
    }

    fn free(&self, device: usize, address: u64) {
        self.drain(device);
        // The driver would wait for kernels that never end.
        if self.is_stuck.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the address came from `allocate` and is given back once; the driver waits for work that
        // uses it.
        let freed = self.current(device).and_then(|_| checked("cuMemFree", unsafe { result::free_sync(address) }));
        if let Err(cause) = freed {
            tracing::debug!(%cause, "memory not given back");
        }
    }

    fn dlpack_name(&self, device: usize) -> (i32, i32) {
        // The driver and the runtime number GPUs in the same way, and both apply CUDA_VISIBLE_DEVICES.
        (loan::CUDA, self.gpus[device].ordinal)
    }

    fn device_of(&self, address: u64) -> Result<usize> {
        self.current(0)?;
        let ordinal = ordinal_of(address)?;
        self.gpus.iter().position(|gpu| gpu.ordinal == ordinal).ok_or_else(|| {
            let known: Vec<String> = self.gpus.iter().map(|gpu| gpu.ordinal.to_string()).collect();
            Error::argument(
                format!("memory of GPU {ordinal} for a store that works on GPUs {}", known.join(", ")),
                "name the GPU in RINGPULL_DEVICES before the store is created, or give a tensor on one of these",
            )
        })
    }

    fn adopt(&self, device: usize, loan: &Loan) -> Result<u64> {
        let gpu = self.current(device)?;
        if loan.len_bytes() == 0 {
            return Ok(loan.address());
        }
        let ordinal = ordinal_of(loan.address())?;
        if ordinal != gpu.ordinal {
            return Err(Error::argument(
                format!("memory of GPU {ordinal} was given as memory of GPU {}", gpu.ordinal),
                "give the tensor with the device that it is on",
            ));
        }
        Ok(loan.address())
    }

    fn disown(&self, _address: u64) {
        // Nothing is kept of it.
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Result<(u64, PinnedHost)> {
        self.current(0)?;
        if let Some(pinned) = self.share_pinned(len_bytes) {
            return Ok(pinned);
        }
        // SAFETY: the memory is made zero below.
        let start =
            checked("cuMemHostAlloc", unsafe { result::malloc_host(len_bytes, sys::CU_MEMHOSTALLOC_PORTABLE) })?;
        let Some(bytes) = NonNull::new(start.cast::<u8>()) else {
            return Err(failed("CUDA driver", "cuMemHostAlloc", -1, "no memory"));
        };
        let owner: Box<dyn Any + Send + Sync> = Box::new(PinnedMemory { start, is_stuck: Arc::clone(&self.is_stuck) });
        // SAFETY: the memory has this length, is page-aligned, belongs to this buffer alone, and is freed
        // with it. Events order the devices' accesses against the host's accesses.
        let mut buffer = unsafe { Buffer::foreign(bytes, len_bytes, owner) };
        buffer.bytes_mut().fill(0);
        Ok((start as u64, Arc::new(RwLock::new(buffer))))
    }

    fn free_pinned(&self, _address: u64) {
        // Its buffer gives it back.
    }

    fn create_stream(&self, device: usize) -> Result<u64> {
        self.current(device)?;
        let stream = checked("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        self.streams.lock().insert(stream as u64, device);
        Ok(stream as u64)
    }

    fn destroy_stream(&self, device: usize, stream: u64) {
        self.streams.lock().remove(&stream);
        // SAFETY: the stream came from `create_stream` and is destroyed once. Its queued work still runs.
        let ended = self
            .current(device)
            .and_then(|_| checked("cuStreamDestroy", unsafe { result::stream::destroy(stream as sys::CUstream) }));
        if let Err(cause) = ended {
            tracing::debug!(%cause, "stream not destroyed");
        }
    }

    fn record(&self, stream: &Stream) -> Result<u64> {
        self.current(stream.device())?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = checked("cuEventCreate", result::event::create(flags))?;
        // SAFETY: both were created on this device.
        checked("cuEventRecord", unsafe { result::event::record(event, stream.id() as sys::CUstream) })?;
        Ok(event as u64)
    }

    fn destroy_event(&self, device: usize, event: u64) {
        // SAFETY: the event came from `record` and is destroyed once; waits that were queued stay.
        let ended = self
            .current(device)
            .and_then(|_| checked("cuEventDestroy", unsafe { result::event::destroy(event as sys::CUevent) }));
        if let Err(cause) = ended {
            tracing::debug!(%cause, "event not destroyed");
        }
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        self.current(stream.device())?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let (stream, event) = (stream.id() as sys::CUstream, event.id() as sys::CUevent);
        // SAFETY: both are alive, because their handles are.
        checked("cuStreamWaitEvent", unsafe { result::stream::wait_event(stream, event, flags) })
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        self.current(event.device())?;
        // SAFETY: the event is alive.
        match unsafe { result::event::query(event.id() as sys::CUevent) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(cause) => checked("cuEventQuery", Err(cause)),
        }
    }

    fn enqueue(&self, stream: &Stream, work: &Work) -> Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        let gpu = self.current(stream.device())?;
        launch::StreamQueue { gpus: &self.gpus, gpu, stream: stream.id() as sys::CUstream }.put(work)
    }

    fn turn(&self) -> Turn<'_> {
        // The locks belong to the process, because several stores may have opened one GPU. They are taken in
        // one order, so that no two stores wait for each other.
        static TURNS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];
        let ordinals: BTreeSet<usize> = self.gpus.iter().map(|gpu| gpu.ordinal.unsigned_abs() as usize % 64).collect();
        ordinals.into_iter().map(|ordinal| TURNS[ordinal].lock()).collect()
    }

    fn collective(&self, streams: &[Arc<Stream>], calls: &[Collective]) -> Result<()> {
        let Some(group) = &self.group else {
            return Err(failed("NCCL", "collective", -1, format!("looked for {}", nccl::NAMES.join(", "))));
        };
        let of_all = calls.iter().map(|call| {
            let of_one = |(device, stream): (usize, &Arc<Stream>)| {
                let (send, receive) = (&call.send[device], &call.receive[device]);
                let counted = if matches!(call.kind, CollectiveKind::ReduceScatter) { receive } else { send };
                nccl::Call {
                    kind: call.kind,
                    dtype: call.dtype,
                    send: send.address(),
                    receive: receive.address(),
                    len: counted.len_bytes() / call.dtype.size_bytes(),
                    stream: stream.id(),
                }
            };
            streams.iter().enumerate().map(of_one).collect()
        });
        self.explained(group.launch(&of_all.collect::<Vec<_>>()))
    }

    fn can_join(&self) -> bool {
        // A GPU that was named twice has no group, and cannot join other ranks' devices either.
        self.group.is_some() && nccl::can_join()
    }

    fn unique_id(&self) -> Result<UniqueId> {
        self.current(0)?;
        nccl::unique_id()
    }

    fn join(&self, meeting: &Meeting, go_on: GoOn<'_>) -> Result<u64> {
        let current = |device| self.current(device).map(drop);
        let group = Arc::new(nccl::Group::join(meeting, &current, go_on)?);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.joined.lock().insert(id, group);
        Ok(id)
    }

    fn leave(&self, joined: u64) {
        // The group is dropped without the lock, because other threads take the lock while they wait, and
        // leaving the group may take seconds.
        let left = self.joined.lock().remove(&joined);
        drop(left);
    }

    fn sum_joined(
        &self,
        joined: u64,
        streams: &[Arc<Stream>],
        dtype: DType,
        parts: &[Slice],
        go_on: GoOn<'_>,
    ) -> Result<()> {
        let Some(group) = self.joined.lock().get(&joined).cloned() else {
            return Err(failed("NCCL", "ncclAllReduce", -1, "the ranks have parted"));
        };
        let call = |(part, stream): (&Slice, &Arc<Stream>)| nccl::Call {
            kind: CollectiveKind::AllReduce,
            dtype,
            send: part.address(),
            receive: part.address(),
            len: part.len_bytes() / dtype.size_bytes(),
            stream: stream.id(),
        };
        let queued = group.launch(&[parts.iter().zip(streams).map(call).collect()]);
        self.explained(queued.and_then(|()| group.settle(go_on)))
    }

    fn check(&self) -> Result<()> {
        self.explained(self.group.as_ref().map_or(Ok(()), nccl::Group::poll))?;
        self.explained(self.joined.lock().values().try_for_each(|group| group.poll()))
    }

    fn abort(&self) {
        let joined = self.joined.lock().values().cloned().collect::<Vec<_>>();
        let groups = || self.group.iter().chain(joined.iter().map(|group| &**group));
        groups().for_each(nccl::Group::condemn);
        let endings: Vec<nccl::AbortWait> = groups().map(nccl::Group::begin_abort).collect();
        let until = Instant::now() + nccl::LONG;
        let running = endings.into_iter().map(|ending| ending.wait(until)).filter(|has_ended| !has_ended).count();
        if running > 0 || !self.is_idle_by(until) {
            self.is_stuck.store(true, Ordering::Release);
        }
    }

    fn host_access(&self, _slice: &Slice, _writes: bool) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_one_clear_error_and_no_panic() {
        let survey = survey();
        if !survey.devices.is_empty() {
            println!("skipped: this machine has GPUs");
            return;
        }
        let error = Cuda::open(None).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("CUDA driver") || error.contains("cuInit"), "{error}");
    }
}
