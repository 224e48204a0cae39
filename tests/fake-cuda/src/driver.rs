//! `libcuda.so.1`: the entry points that we call, and those that cudarc's safe layer calls for its slices.
//!
//! Each does what CUDA's documentation defines, and also refuses mistakes that a driver would refuse later,
//! elsewhere or never. Arguments are C's: the caller must pass the pointers that the header defines.
#![allow(unsafe_code)]
#![allow(non_snake_case, missing_docs, clippy::not_unsafe_ptr_arg_deref)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::calls::entries;
use crate::codes::{
    INVALID_DEVICE, INVALID_PTX, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_READY, NOT_REGISTERED, NOT_SUPPORTED,
    Outcome, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED, UNSUPPORTED_PTX_VERSION, text,
};
use crate::cubin;
use crate::findings::report;
use crate::machine;
use crate::memory::{self, MemoryHome};
use crate::ptx::{self, Kernels, PtxKernel};
use crate::settings::SETTINGS;
use crate::streams::{self, Stream};
use crate::work::{self, Place};

/// Compute capability 8.0, two multiprocessors.
pub(crate) const CAPABILITY: [c_int; 2] = [8, 0];
const PROCESSORS: c_int = 2;

/// A kernel, and the device whose context it was loaded in.
type Function = (usize, Arc<PtxKernel>);

static MODULES: LazyLock<Mutex<HashMap<usize, (usize, Kernels)>>> = LazyLock::new(Mutex::default);
static FUNCTIONS: LazyLock<Mutex<HashMap<usize, Function>>> = LazyLock::new(Mutex::default);

/// Writes a result.
fn put<T>(to: *mut T, value: T) -> Outcome<()> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: C's caller gave room for a result of this type.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns the memory that a call names. If the driver does not know it, that is a finding and an invalid
/// value.
fn known(call: &str, address: u64, len: usize) -> Outcome<memory::MemoryRegion> {
    memory::find(address, len).map_err(|text| {
        report("illegal address", &format!("{call}: {text}"));
        INVALID_VALUE
    })
}

/// Returns the device of the memory that a call names. If it is none of a device, that is a finding and an
/// invalid value.
fn of_device(call: &str, address: u64, len: usize) -> Outcome<usize> {
    let (MemoryHome::Device(device) | MemoryHome::Host(device)) = known(call, address, len)?.home;
    Ok(device)
}

/// Queues a copy between memory that the driver knows.
fn put_copy(stream: &Stream, what: &'static str, from: u64, to: u64, len: usize) {
    stream.put(what, move |stamp| work::copy(stamp, &Place::Known(from), &Place::Known(to), len));
}

/// The kernels of PTX that this driver and its devices take.
///
/// # Safety
/// The image ends with a zero.
unsafe fn ptx_kernels(image: *const c_char) -> Outcome<Kernels> {
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let after = |word: &str| text.split(word).nth(1)?.split_whitespace().next().map(str::to_owned);
    let (major, minor) = (SETTINGS.driver_version / 1000, SETTINGS.driver_version % 1000 / 10);
    // PTX 9.0 came with CUDA 13.0, 8.0 with 12.0, and so on.
    let newest = f64::from(major - 4) + f64::from(minor) / 10.0;
    if after(".version").and_then(|version| version.parse::<f64>().ok()).is_none_or(|version| version > newest) {
        return Err(UNSUPPORTED_PTX_VERSION);
    }
    let of_target = after(".target").and_then(|target| target.strip_prefix("sm_")?.parse::<c_int>().ok());
    if of_target.is_none_or(|target| target > CAPABILITY[0] * 10 + CAPABILITY[1]) {
        report("invalid PTX", &format!("for sm_{of_target:?} on a device of {CAPABILITY:?}"));
        return Err(INVALID_PTX);
    }
    ptx::module(&text).map_err(|cause| {
        report("not in the double", &cause);
        INVALID_PTX
    })
}

entries! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if SETTINGS.visible.is_empty() {
            return Err(NO_DEVICE);
        }
        machine::start();
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, SETTINGS.driver_version)
    }

    fn cuGetErrorString(code: c_int, string: *mut *const c_char) {
        let known = text(code).ok_or(INVALID_VALUE)?;
        put(string, known.as_ptr())
    }

    /// NVRTC asks here for a cache of the driver, but does not need one.
    fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) {
        Err(NOT_FOUND)
    }

    fn cuGetErrorName(code: c_int, string: *mut *const c_char) {
        let known = text(code).ok_or(INVALID_VALUE)?;
        put(string, known.as_ptr())
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, machine::devices()?.len() as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        machine::device(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let text = format!("Fake GPU {}\0", machine::device(device)?.physical);
        if name.is_null() || (len as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller gave `len` bytes, which are enough.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        machine::device(device)?;
        let known = match attribute {
            16 => PROCESSORS,
            75 => CAPABILITY[0],
            76 => CAPABILITY[1],
            // Memory pools.
            115 => 0,
            _ => {
                report("not in the double", &format!("cuDeviceGetAttribute of {attribute}"));
                return Err(INVALID_VALUE);
            }
        };
        put(value, known)
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        machine::device(device)?;
        put(bytes, memory::room(device as usize).1)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) {
        machine::device(from)?;
        machine::device(to)?;
        put(can, c_int::from(SETTINGS.has_peers && from != to))
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        machine::device(device)?.retained.fetch_add(1, Ordering::AcqRel);
        put(context, machine::context_of(device as usize))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let retained = &machine::device(device)?.retained;
        let released = retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
        released.map(drop).map_err(|_| crate::codes::INVALID_CONTEXT)
    }

    fn cuCtxSetCurrent(context: usize) {
        let index = if context == 0 { None } else { Some(machine::of_context(context)?) };
        machine::set_current(index);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        machine::devices()?;
        put(context, machine::current_if_any().map_or(0, machine::context_of))
    }

    fn cuCtxSynchronize() {
        let device = machine::current("cuCtxSynchronize")?;
        streams::drain(device);
        machine::known(device).check()
    }

    fn cuCtxEnablePeerAccess(other: usize, flags: c_uint) {
        let device = machine::current("cuCtxEnablePeerAccess")?;
        let peer = machine::of_context(other)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer == device {
            return Err(INVALID_DEVICE);
        }
        if !SETTINGS.has_peers {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let is_new = machine::known(device).peers.lock().insert(peer);
        if is_new { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        let device = machine::current("cuModuleLoadData")?;
        // SAFETY: an image is a cubin, or PTX that ends with a zero.
        let kernels = unsafe { if cubin::is_cubin(image) { cubin::kernels(image) } else { ptx_kernels(image) } }?;
        let id = streams::fresh();
        MODULES.lock().insert(id, (device, kernels));
        put(module, id)
    }

    fn cuModuleUnload(module: usize) {
        machine::current("cuModuleUnload")?;
        let gone = MODULES.lock().remove(&module);
        gone.map(drop).ok_or_else(|| streams::no_handle("cuModuleUnload", "module", module))
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        machine::current("cuModuleGetFunction")?;
        let modules = MODULES.lock();
        let found = modules.get(&module);
        let (device, kernels) = found.ok_or_else(|| streams::no_handle("cuModuleGetFunction", "module", module))?;
        // SAFETY: a name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let kernel = kernels.get(&*name).ok_or(NOT_FOUND)?;
        let id = streams::fresh();
        FUNCTIONS.lock().insert(id, (*device, Arc::clone(kernel)));
        put(function, id)
    }

    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: usize, parameters: *const *const c_void, extra: *const c_void,
    ) {
        let stream = streams::of_handle("cuLaunchKernel", stream)?;
        let functions = FUNCTIONS.lock();
        let found = functions.get(&function);
        let (device, kernel) = found.ok_or_else(|| streams::no_handle("cuLaunchKernel", "function", function))?;
        if *device != stream.device {
            let text = format!("{} of GPU {device} on a stream of GPU {}", kernel.name, stream.device);
            report("wrong context", &text);
            return Err(crate::codes::INVALID_CONTEXT);
        }
        if !kernel.can_run() {
            report("not in the double", &format!("{} as a GPU's own code", kernel.name));
            return Err(NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.iter().map(|axis| u64::from(*axis)).product::<u64>();
        let fits = grid.iter().chain(&block).all(|axis| *axis > 0) && threads <= 1024 && block_z <= 64
            && i32::try_from(grid_x).is_ok() && grid_y <= 65_535 && grid_z <= 65_535 && shared_bytes <= 48 << 10;
        if !fits || !extra.is_null() || (parameters.is_null() && !kernel.parameters.is_empty()) {
            report("invalid launch", &format!("{} with grid {grid:?} and block {block:?}", kernel.name));
            return Err(INVALID_VALUE);
        }
        let mut bytes = vec![0; kernel.parameters.last().map_or(0, |last| last.offset + last.len)];
        for (index, place) in kernel.parameters.iter().enumerate() {
            // SAFETY: there is a pointer for each parameter of the kernel, to as many bytes as it has.
            let given = unsafe { std::slice::from_raw_parts((*parameters.add(index)).cast::<u8>(), place.len) };
            bytes[place.offset..place.offset + place.len].copy_from_slice(given);
        }
        let (device, kernel) = (*device, Arc::clone(kernel));
        drop(functions);
        stream.put("a kernel", move |stamp| work::launch(stamp, device, &kernel, [grid, block], &bytes));
        Ok(())
    }

    fn cuMemAlloc_v2(address: *mut u64, len: usize) {
        let device = machine::current("cuMemAlloc")?;
        put(address, memory::allocate(device, len)?)
    }

    fn cuMemFree_v2(address: u64) {
        let current = machine::current("cuMemFree")?;
        if address == 0 {
            return Ok(());
        }
        let device = memory::find(address, 1).ok().map_or(current, |region| match region.home {
            MemoryHome::Device(device) | MemoryHome::Host(device) => device,
        });
        // The driver waits for work that may use the memory.
        streams::drain(device);
        memory::free(address).map_err(|text| {
            report("illegal address", &format!("cuMemFree: {text}"));
            INVALID_VALUE
        })
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (left, all) = memory::room(machine::current("cuMemGetInfo")?);
        put(free, left)?;
        put(total, all)
    }

    fn cuMemHostAlloc(address: *mut u64, len: usize, flags: c_uint) {
        let device = machine::current("cuMemHostAlloc")?;
        if flags & !7 != 0 {
            return Err(INVALID_VALUE);
        }
        put(address, memory::pin(device, len)?)
    }

    fn cuMemFreeHost(address: u64) {
        machine::devices()?;
        memory::unpin(address).map_err(|text| {
            report("illegal address", &format!("cuMemFreeHost: {text}"));
            INVALID_VALUE
        })
    }

    fn cuMemHostRegister_v2(address: u64, len: usize, flags: c_uint) {
        let device = machine::current("cuMemHostRegister")?;
        if flags & !15 != 0 {
            return Err(INVALID_VALUE);
        }
        memory::register(device, address, len)
    }

    fn cuMemHostUnregister(address: u64) {
        machine::devices()?;
        memory::unregister(address).map_err(|text| {
            report("illegal address", &format!("cuMemHostUnregister: {text}"));
            NOT_REGISTERED
        })
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) {
        machine::devices()?;
        let Ok(region) = memory::find(address, 1) else { return Err(INVALID_VALUE) };
        let (MemoryHome::Device(device) | MemoryHome::Host(device)) = region.home;
        match attribute {
            // CU_POINTER_ATTRIBUTE_MEMORY_TYPE: host 1, device 2.
            2 => put(value.cast::<c_uint>(), if matches!(region.home, MemoryHome::Device(_)) { 2 } else { 1 }),
            9 => put(value.cast::<c_int>(), device as c_int),
            _ => {
                report("not in the double", &format!("cuPointerGetAttribute of {attribute}"));
                Err(INVALID_VALUE)
            }
        }
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        let stream = streams::of_handle("cuMemcpyHtoDAsync", stream)?;
        of_device("cuMemcpyHtoDAsync", to, len)?;
        // Pageable memory is copied before the call returns.
        let source = match memory::find(from, len) {
            Ok(_) => Place::Known(from),
            // SAFETY: the caller gave this many bytes of its own memory.
            Err(_) => Place::Content(unsafe { std::slice::from_raw_parts(from as *const u8, len) }.to_vec()),
        };
        stream.put("a copy to a device", move |stamp| work::copy(stamp, &source, &Place::Known(to), len));
        Ok(())
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        let stream = streams::of_handle("cuMemcpyDtoHAsync", stream)?;
        of_device("cuMemcpyDtoHAsync", from, len)?;
        let is_pinned = memory::find(to, len).is_ok();
        let target = if is_pinned { Place::Known(to) } else { Place::Pageable(to as usize) };
        stream.put("a copy to the host", move |stamp| work::copy(stamp, &Place::Known(from), &target, len));
        if !is_pinned {
            // The call returns when the copy is done.
            stream.mark().synchronize();
        }
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
        let stream = streams::of_handle("cuMemcpyDtoDAsync", stream)?;
        of_device("cuMemcpyDtoDAsync", from, len)?;
        of_device("cuMemcpyDtoDAsync", to, len)?;
        put_copy(&stream, "a copy on a device", from, to, len);
        Ok(())
    }

    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, len: usize, stream: usize) {
        let stream = streams::of_handle("cuMemcpyPeerAsync", stream)?;
        for (address, context) in [(from, from_context), (to, to_context)] {
            let (of, named) = (of_device("cuMemcpyPeerAsync", address, len)?, machine::of_context(context)?);
            if of != named {
                let text = format!("cuMemcpyPeerAsync: memory of GPU {of} with the context of GPU {named}");
                report("wrong context", &text);
                return Err(INVALID_VALUE);
            }
        }
        put_copy(&stream, "a copy between devices", from, to, len);
        Ok(())
    }

    fn cuMemsetD8Async(address: u64, value: u8, len: usize, stream: usize) {
        let stream = streams::of_handle("cuMemsetD8Async", stream)?;
        of_device("cuMemsetD8Async", address, len)?;
        stream.put("a memset", move |stamp| work::fill(stamp, address, value, len));
        Ok(())
    }

    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        let device = machine::current("cuStreamCreate")?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        put(stream, streams::create(device, flags == 0))
    }

    fn cuStreamDestroy_v2(stream: usize) {
        machine::current("cuStreamDestroy")?;
        streams::destroy(stream)
    }

    fn cuStreamSynchronize(stream: usize) {
        let stream = streams::of_handle("cuStreamSynchronize", stream)?;
        stream.mark().synchronize();
        machine::known(stream.device).check()
    }

    fn cuStreamQuery(stream: usize) {
        let stream = streams::of_handle("cuStreamQuery", stream)?;
        if stream.is_idle() { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) {
        let stream = streams::of_handle("cuStreamWaitEvent", stream)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(mark) = streams::event("cuStreamWaitEvent", event)?.mark() {
            stream.wait_for(&mark);
        }
        Ok(())
    }

    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        let device = machine::current("cuEventCreate")?;
        if flags & !3 != 0 {
            return Err(INVALID_VALUE);
        }
        put(event, streams::create_event(device))
    }

    fn cuEventDestroy_v2(event: usize) {
        machine::current("cuEventDestroy")?;
        streams::destroy_event(event)
    }

    fn cuEventRecord(event: usize, stream: usize) {
        let stream = streams::of_handle("cuEventRecord", stream)?;
        let event = streams::event("cuEventRecord", event)?;
        if event.device != stream.device {
            let text = format!("cuEventRecord: an event of GPU {} on a stream of GPU {}", event.device, stream.device);
            report("wrong context", &text);
            return Err(crate::codes::INVALID_HANDLE);
        }
        event.record(&stream);
        Ok(())
    }

    fn cuEventQuery(event: usize) {
        machine::current("cuEventQuery")?;
        let event = streams::event("cuEventQuery", event)?;
        machine::known(event.device).check()?;
        if event.mark().is_none_or(|mark| mark.is_done()) { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize(event: usize) {
        machine::current("cuEventSynchronize")?;
        let event = streams::event("cuEventSynchronize", event)?;
        if let Some(mark) = event.mark() {
            mark.synchronize();
        }
        machine::known(event.device).check()
    }
}
