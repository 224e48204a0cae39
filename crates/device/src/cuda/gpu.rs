//! One GPU: its context, its kernels, and its access to other GPUs.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_int};

use cudarc::driver::{result, sys};

use ringpull_base::Result;

use super::{checked, compile, driver_version};
use crate::kernels::UNITS;

/// One GPU, and the kernels that were loaded for it.
pub(super) struct Gpu {
    pub(super) ordinal: c_int,
    pub(super) context: sys::CUcontext,
    pub(super) name: String,
    pub(super) processors: u32,
    pub(super) kernels: HashMap<&'static str, sys::CUfunction>,
}

impl Gpu {
    pub(super) fn open(ordinal: c_int) -> Result<Self> {
        let device = checked("cuDeviceGet", result::device::get(ordinal))?;
        let name = checked("cuDeviceGetName", result::device::get_name(device))?;
        let attribute = |attribute| {
            // SAFETY: the device was just asked for.
            checked("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, attribute) })
        };
        let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let processors = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        // SAFETY: the primary context is what other libraries of the process use too; it is kept until the
        // process ends.
        let context = checked("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just retained.
        checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        let architecture = compile::architecture((major, minor), driver_version()?)?;
        let mut kernels = HashMap::new();
        for unit in &UNITS {
            let image = compile::cached(unit, &architecture)?;
            // SAFETY: PTX ends with a zero, and the module is kept until the process ends.
            let module = checked("cuModuleLoadData", unsafe { result::module::load_data(image.as_ptr().cast()) })?;
            for kernel in unit.kernels {
                let symbol = CString::new(*kernel).expect("names hold no zero");
                // SAFETY: the module was just loaded.
                let function = unsafe { result::module::get_function(module, symbol) };
                kernels.insert(*kernel, checked("cuModuleGetFunction", function)?);
            }
        }
        Ok(Gpu { ordinal, context, name, processors, kernels })
    }

    /// Lets this GPU read and write the memory of the other GPUs, if the machine can.
    pub(super) fn reach(&self, others: &[Gpu]) -> Result<()> {
        // SAFETY: the contexts are held.
        checked("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })?;
        for other in
            others.iter().filter(|other| other.ordinal != self.ordinal && can_reach(self.ordinal, other.ordinal))
        {
            // SAFETY: both contexts are held. That it was allowed before is no error.
            let outcome = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
            if outcome != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                checked("cuCtxEnablePeerAccess", outcome.result())?;
            }
        }
        Ok(())
    }
}

pub(super) fn can_reach(from: c_int, to: c_int) -> bool {
    let mut can = 0;
    // SAFETY: writes one int; ordinals are devices of the driver API.
    unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) == sys::CUresult::CUDA_SUCCESS && can != 0 }
}
