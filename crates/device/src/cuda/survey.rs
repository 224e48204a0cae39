//! A description of the CUDA installation of this machine.

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
