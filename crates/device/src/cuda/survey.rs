//! A description of the CUDA installation of this machine. Asks without keeping anything open.
#![allow(unsafe_code)]

use std::ffi::c_int;

use cudarc::driver::result;

use super::gpu::can_reach;
use super::{DRIVER, checked, compile, driver_version, is_present, nccl, start_driver};
use crate::survey::{Library, Survey};

/// Returns a description of this machine's devices. Nothing is left open.
pub(crate) fn survey() -> Survey {
    let found = |version: Option<String>, names: &str| {
        version.map_or_else(|| Library::Missing(format!("not found (looked for {names})")), Library::Version)
    };
    let mut survey = Survey {
        built: true,
        driver: found(None, "libcuda.so, libcuda.so.1"),
        nccl: found(nccl::version(), &nccl::NAMES.join(", ")),
        nvrtc: found(compile::version(), "libnvrtc.so and its versions"),
        ..Survey::default()
    };
    if !is_present(&DRIVER) {
        return survey;
    }
    survey.driver = match driver_version() {
        Ok((major, minor)) => Library::Version(format!("CUDA {major}.{minor}")),
        Err(cause) => Library::Missing(cause.to_string()),
    };
    let count = match start_driver().and_then(|()| checked("cuDeviceGetCount", result::device::get_count())) {
        Ok(count) => count,
        Err(cause) => {
            survey.driver = Library::Missing(format!("{}: {cause}", survey.driver));
            return survey;
        }
    };
    for ordinal in 0..count {
        let name = result::device::get(ordinal).and_then(result::device::get_name);
        survey.devices.push(name.unwrap_or_else(|cause| cause.to_string()));
        let reached = (0..count).filter(|other| *other != ordinal && can_reach(ordinal, *other));
        survey.peers.extend(reached.map(|other| (ordinal as usize, other as usize)));
    }
    survey
}

/// Asks the MPI library on this machine, if there is one, whether it takes device memory.
pub(crate) fn cuda_aware_mpi() -> String {
    const NAMES: [&str; 3] = ["libmpi.so", "libmpi.so.40", "libmpi.so.12"];
    // SAFETY: the library's initialisers have no conditions; Open MPI's question takes nothing and may be
    // asked at any time.
    unsafe {
        let Some(library) = NAMES.into_iter().find_map(|name| libloading::Library::new(name).ok()) else {
            return format!("no MPI library (looked for {})", NAMES.join(", "));
        };
        let asked = library.get::<unsafe extern "C" fn() -> c_int>(b"MPIX_Query_cuda_support\0").map(|ask| ask());
        // Some libraries must not be unloaded.
        std::mem::forget(library);
        match asked {
            Ok(0) => "the MPI library takes host memory only".to_owned(),
            Ok(_) => "the MPI library takes device memory, and is given it".to_owned(),
            Err(_) => "the MPI library does not say".to_owned(),
        }
    }
}
